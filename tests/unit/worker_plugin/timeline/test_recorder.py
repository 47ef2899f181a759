"""The recorder's bounds, and the data that a new epoch leaves unchanged."""

from reduction.model import Collective, DType, ReduceOp

from worker_plugin.timeline.recorder import KEPT, KEPT_IN_TRACE, NOTES_KEPT, Recorder, write

SUM = Collective(ReduceOp.SUM, DType.FLOAT32, 4, 0)


def recorder():
    made = Recorder(None)
    made.addresses = {0: "a:1", 1: "b:2"}
    made.describe("../my job", 3, 4)
    return made


def test_only_the_latest_spans_are_kept():
    made = recorder()
    for seq in range(KEPT + 5):
        made.begin(seq, SUM)
        made.note(f"line {seq}")
    record = made.record()
    assert [span.seq for span in record.spans] == list(range(5, KEPT + 5))
    assert len(record.notes) == NOTES_KEPT
    assert record.notes[-1].text == f"line {KEPT + 4}"
    made.keep_many()
    for seq in range(KEPT + 5, KEPT_IN_TRACE):
        made.begin(seq, SUM)
    assert len(made.record().spans) == KEPT_IN_TRACE - 5


def test_a_new_epoch_does_not_change_recorded_times():
    made = recorder()
    progress = made.begin(0, SUM)
    progress.on_push(0, 8)
    progress.on_push(1, 8)
    progress.on_result(0)
    before = made.record().spans[0].lanes["a:1"]
    progress.on_push(0, 8)  # the other half's reducer is gone, and this one takes over
    assert made.record().spans[0].lanes["a:1"] == before
    progress.on_result(1)
    progress.whole = progress.issued
    last = made.record().spans[0].lanes["b:2"].last_result
    progress.on_result(1)
    assert made.record().spans[0].lanes["b:2"].last_result == last


def test_a_reducer_that_got_nothing_the_first_time_has_no_lane():
    made = recorder()
    progress = made.begin(0, SUM)
    progress.on_push(0, 16)
    progress.on_push(1, 16)
    progress.on_result(1)
    (span,) = made.record().spans
    assert list(span.lanes) == ["a:1"]
    assert (span.unpushed, span.lanes["a:1"].first_result) == (0, None)


def test_no_job_name_escapes_the_directory(tmp_path):
    path = write(recorder().record(), tmp_path / "new" / "folder")
    assert path.parent == tmp_path / "new" / "folder"
    assert path.name.startswith(".._my_job~")
    assert path.name.endswith("-rank3.json")
