"""Records of ranks with known clocks, for the tests in this folder."""

from reduction.timeline.record import Lane, Note, Record, Span


def span(seq, issued, *, shift=0.0, push_s=0.5, whole=None, lanes=("r:1",)):
    """Return a collective that was pushed within push_s and complete at `whole`; times are read from a clock."""
    whole = issued + 2 if whole is None else whole
    at = issued + shift
    lane = Lane(at + 0.2, at + 0.2 + push_s, at + 0.6, whole + shift)
    return Span(
        seq,
        "SUM of 4 x float32",
        16,
        0,
        at,
        at + 0.1,
        whole + shift,
        whole + shift + 0.1,
        dict.fromkeys(lanes, lane),
    )


def record(rank, spans, *, clock="one", unix_offset=1000.0, error="", world_size=2, notes=(), job="cnn"):
    """Return a record of a host that is named like its clock."""
    notes = tuple(Note(*note) for note in notes)
    return Record(job, rank, world_size, f"host-{clock}", clock, unix_offset, error, tuple(spans), notes)
