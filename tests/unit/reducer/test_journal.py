"""The reducer's log: a line for each event, with its job and rank."""

import logging
import re
from dataclasses import replace

import pytest
from reduction import wire
from reduction.errors import MalformedFrame, Unauthenticated
from reduction.limits import ENDED_JOBS_MAX, EVENT_CHARS_MAX, EVENTS_MAX
from reduction.log_limit import BURST, KEYS_MAX, REPEAT_S
from reduction.model import (
    Collective,
    Configuration,
    DType,
    EventKind,
    Goodbye,
    Hello,
    Join,
    Member,
    Outcome,
    Push,
    ReduceOp,
)

from reducer.engine import Engine

KIB = 1024
SUM = Collective(ReduceOp.SUM, DType.FLOAT32, 2, 7)


class Sink:
    def on_frame(self, frame):
        pass

    def on_closed(self, error):
        pass


class Scene:
    def __init__(self, caplog):
        self.now = 0.0
        self.engine = Engine(memory_limit_bytes=1 << 30, clock=lambda: self.now)
        self.caplog = caplog

    def join(self, rank, *, job="job", life=b"1", world_size=2, peer=""):
        stream = self.engine.open(Sink(), peer)
        instance, nonce = life.ljust(16), life + bytes([rank]) * 15
        stream.send(Join(job, instance, rank, world_size, nonce, f"host-{rank}", 0, 64 * KIB))
        return stream

    def run(self):
        """Have two ranks join and send Hello."""
        streams = [self.join(rank) for rank in range(2)]
        self.hello(streams)
        return streams

    def hello(self, streams, epoch=1, life=b"1", **changes):
        members = (Member("a:1", self.engine.jobs.incarnation),)
        configuration = Configuration(life.ljust(16), epoch, KIB, members)
        send(streams, Hello(replace(configuration, **changes), 0))

    def lines(self):
        """Return and clear the logged lines."""
        lines = [record.getMessage() for record in self.caplog.records]
        self.caplog.clear()
        return lines


@pytest.fixture
def scene(caplog):
    caplog.set_level(logging.INFO)
    return Scene(caplog)


def send(streams, frame):
    for stream in streams:
        stream.send(frame)


def push(seq=0):
    return Push(1, seq, 0, SUM, seq, memoryview(bytes(8)))


def told(scene):
    """Return the events that the Status call reports."""
    return [(event.kind.name, event.job, event.text) for event in scene.engine.status().events]


def test_a_job_is_logged_from_its_first_join_to_its_end(scene):
    first = scene.join(0)
    assert scene.lines() == ["join job=job rank=0/2 host=host-0"]
    streams = [first, scene.join(1)]
    scene.now = 1.0
    scene.hello(streams)
    assert scene.lines() == ["join job=job rank=1/2 host=host-1", "job started job=job ranks=2"]
    send(streams, push())
    scene.now = 3.0
    streams[1].close("cut")
    streams[1] = scene.join(1)
    assert scene.lines() == [
        "lost job=job rank=1 host=host-1 reason=cut",
        "join job=job rank=1/2 host=host-1",
    ]
    scene.hello(streams, 2)
    assert scene.lines() == [], "another epoch is no other start"
    scene.now = 37.5
    scene.engine.drain()
    send(streams, Goodbye(1, 1))
    assert scene.lines() == [
        "job ended job=job ranks=2 collectives=1 received_bytes=16 sent_bytes=16 seconds=36.5 "
        "last_rank=1 last_share=1.00"
    ]
    assert told(scene) == [
        ("JOINED", "job", "rank 0 of 2 joined from host-0"),
        ("JOINED", "job", "rank 1 of 2 joined from host-1"),
        ("EPOCH", "job", "membership epoch 1 started with 2 ranks"),
        ("LOST", "job", "rank 1 on host-1 lost: cut"),
        ("JOINED", "job", "rank 1 of 2 joined from host-1"),
        ("EPOCH", "job", "membership epoch 2 started with 2 ranks: a stream had broken"),
        ("DRAINING", "", "draining: its jobs are asked to leave"),
        ("ENDED", "job", "ended after 36 s"),
    ]
    events = scene.engine.status().events
    assert [event.number for event in events] == list(range(1, 9))
    assert [event.at_s for event in events] == [0.0] * 2 + [1.0] + [3.0] * 3 + [37.5] * 2


@pytest.mark.parametrize(
    ("last", "end"), [([], "seconds=0.0"), ([1, 0, 1, 1], "last_rank=1 last_share=0.75")]
)
def test_the_end_names_the_rank_that_was_waited_for_most_often(scene, last, end):
    streams = scene.run()
    for seq, rank in enumerate(last):
        send([streams[1 - rank], streams[rank]], push(seq))
    send(streams, Goodbye(len(last), len(last)))
    assert re.fullmatch(rf"job ended job=job ranks=2 .* {end}", scene.lines()[-1])


def test_a_job_that_never_starts(scene):
    stream = scene.join(1, world_size=3)
    scene.now = 2.0
    stream.close("its call ended")
    assert scene.lines()[1:] == [
        "lost job=job rank=1 host=host-1 reason=its call ended",
        "job ended before it started job=job ranks=1/3 seconds=2.0",
    ]
    assert told(scene)[-1] == ("ENDED", "job", "ended before it started, with 1/3 ranks")
    assert scene.engine.status().ended == ()


def test_the_failure_that_ends_a_job_is_one_line(scene):
    streams = scene.run()
    scene.lines()
    streams[1].reject(MalformedFrame("no"))
    warning, end = scene.lines()
    assert warning == "closed stream job=job rank=0,1 error=MalformedFrame reason=rank 1 (host-1): no"
    assert end.startswith("job ended job=job ranks=2 ")


def test_a_line_names_a_few_of_many_ranks(scene):
    streams = [scene.join(rank, world_size=20) for rank in range(20)]
    scene.lines()
    streams[1].reject(MalformedFrame("no"))
    assert "rank=0,1,2,3,4,5,6,7,... error=" in scene.lines()[0]


def test_repeated_refusals_are_rate_limited(scene):
    scene.run()
    scene.lines()
    for port in range(BURST + 4):
        scene.join(0, life=b"2", peer=f"ipv4:10.0.0.1:{port}")
    lines = scene.lines()
    assert len(lines) == BURST
    assert lines[0].startswith("refused job=job rank=0 error=JobBusy reason=job 'job' is live")
    scene.join(1, life=b"2", peer="ipv4:10.0.0.1:1")
    [line] = scene.lines()
    assert line.startswith("refused job=job rank=1 error=StaleInstance reason=")
    scene.now = REPEAT_S
    scene.engine.tick()
    assert scene.lines()[-1] == "left out kind=refused JobBusy peer=ipv4:10.0.0.1 times=4"
    scene.join(0, life=b"2", peer="ipv4:10.0.0.1:9")
    scene.join(0, life=b"2", peer="ipv4:10.0.0.2:9")
    assert len(scene.lines()) == 1
    scene.engine.close()
    assert scene.lines() == ["left out kind=refused JobBusy peer=ipv4:10.0.0.1 times=1"]


def test_refusals_due_to_a_drain_or_a_restart_are_not_warnings(scene):
    scene.run()
    scene.caplog.clear()
    scene.join(0, life=b"2")
    scene.join(1, life=b"2")
    scene.engine.drain()
    scene.join(0, job="another")
    scene.engine.open(Sink()).reject(MalformedFrame("no"))
    levels = [(record.args[3], record.levelname) for record in scene.caplog.records]
    assert levels == [
        ("JobBusy", "INFO"),
        ("StaleInstance", "INFO"),
        ("ReducerDraining", "INFO"),
        ("MalformedFrame", "WARNING"),
    ]


def test_a_job_that_starts_over(scene):
    streams = scene.run()
    streams[0].close("cut")
    scene.lines()
    scene.join(0, life=b"2")
    warning, ended, joined = scene.lines()
    assert warning.startswith("closed stream job=job rank=1 error=StaleInstance")
    assert ended.startswith("job ended job=job ranks=2")
    assert joined == "join job=job rank=0/2 host=host-0"


def test_streams_are_labeled_until_they_end(scene):
    nobody = scene.engine.open(Sink())
    assert nobody.label == "job=? rank=?"
    nobody.reject(MalformedFrame("no"))
    assert scene.lines() == ["refused job=? rank=? error=MalformedFrame reason=no"]
    stream = scene.join(1)
    assert stream.label == "job=job rank=1"
    stream.close("cut")
    assert stream.label == "job=? rank=?"


# ---- calls that never become streams ----


def wrong_token(peer):
    return Unauthenticated(f"{peer} shows a wrong token: pass --token-file")


def refuse(scene, peer, error=None):
    scene.engine.note_refused_call(peer, error or wrong_token(peer))


def test_refused_calls_are_counted_by_host_and_error_though_their_ports_differ(scene):
    for port in range(40_000, 40_500):
        refuse(scene, f"ipv4:10.0.0.1:{port}")
    lines = scene.lines()
    assert len(lines) == BURST
    assert lines[0] == (
        "refused a call error=Unauthenticated reason=ipv4:10.0.0.1:40000 shows a wrong token: pass --token-file"
    )
    assert scene.engine.errors["Unauthenticated"] == 500, "the metric counts every refusal"
    scene.now = REPEAT_S
    scene.engine.tick()
    count = 500 - BURST
    assert scene.lines() == [f"left out kind=refused call Unauthenticated peer=ipv4:10.0.0.1 times={count}"]
    refuse(scene, "ipv4:10.0.0.2:40000")
    refuse(scene, "ipv6:[::1]:40000")
    refuse(scene, "ipv4:10.0.0.1:40001", MalformedFrame("no frame"))
    assert len(scene.lines()) == 3, "other hosts and other errors have their own lines"


def names(scene, number):
    """Refuse a call for the lobby of a made-up job."""
    peer = f"ipv4:10.0.0.1:{number}"
    refuse(scene, peer, Unauthenticated(f"{peer} shows a wrong token for the lobby of job 'x{number}'"))


def lengths(scene, number):
    peer = f"ipv4:10.0.0.1:{number}"
    refuse(scene, peer, MalformedFrame(f"length of a first message is {'x' * (number % 99)}{number}"))


def garbage(scene, number):
    stream = scene.engine.open(Sink(), f"ipv4:10.0.0.1:{number}")
    stream.reject(MalformedFrame(f"Join.job is 'x{number}'"))


def joins(scene, number):
    """Join a job with its own name, and leave."""
    stream = scene.join(0, job=f"x{number}", peer=f"ipv4:10.0.0.1:{number}")
    stream.close(f"it said {number}")


def failures(scene, number):
    stream = scene.join(0, job=f"x{number}", peer=f"ipv4:10.0.0.1:{number}")
    stream.reject(MalformedFrame(f"{number}"))


def whole_jobs(scene, number):
    stream = scene.join(0, job=f"x{number}", world_size=1, peer=f"ipv4:10.0.0.1:{number}")
    scene.hello([stream])
    stream.send(Goodbye(0, 0))


def taken_ranks(scene, number):
    scene.join(number % 2, job="job", life=b"2", peer=f"ipv4:10.0.0.1:{number}")


@pytest.mark.parametrize("call", [names, lengths, garbage, joins, failures, whole_jobs, taken_ranks])
def test_ten_thousand_calls_from_a_stranger_log_at_most_twenty_lines(scene, call):
    scene.run()
    scene.lines()
    for number in range(10_000):
        call(scene, number)
        scene.now += 0.004
        if not number % 10:
            scene.engine.tick()
    scene.engine.close()
    assert 1 <= len(scene.lines()) <= 20


def test_refused_calls_do_not_displace_what_is_known_of_jobs(scene):
    scene.run()
    for _ in range(BURST):
        scene.join(0, life=b"2")
    for number in range(KEYS_MAX + 1):
        refuse(scene, f"host-{number}.a:1", MalformedFrame("no frame"))
    scene.lines()
    scene.join(0, life=b"2")
    assert scene.lines() == [], "the refusal of this rank is still remembered"


# ---- events that the Status call reports ----


def test_a_new_epoch_event_lists_what_has_changed(scene):
    streams = scene.run()
    one = (Member("a:1", scene.engine.jobs.incarnation),)
    two = (*one, Member("b:1", bytes(16)))
    changes = [
        {"members": two},
        {"members": two, "chunk_bytes": 2 * KIB},
        {},
        {"added": ("c:1",)},
        {},
    ]
    for epoch, change in enumerate(changes, start=2):
        scene.hello(streams, epoch, **change)
    assert [text.partition(": ")[2] for kind, _, text in told(scene) if kind == "EPOCH"] == [
        "",
        "with b:1",
        "chunks of 2048 bytes",
        "without b:1, chunks of 1024 bytes",
        "reducers found: c:1",
        "reducers found: none",
    ]


def test_a_failure_is_reported_in_one_short_printable_line(scene):
    streams = scene.run()
    streams[0].reject(MalformedFrame("\x1b[2J" + "x" * 1000))
    [failed] = [event for event in scene.engine.status().events if event.kind is EventKind.FAILED]
    assert failed.text.startswith("rank 0,1: MalformedFrame: ")
    assert r"\x1b[2J" in failed.text
    assert len(failed.text) == EVENT_CHARS_MAX


def test_a_refused_rank_adds_no_event(scene):
    # A stranger could otherwise push out all other events.
    scene.run()
    before = told(scene)
    for _ in range(3):
        scene.join(1, life=b"2")
    assert told(scene) == before


def test_only_the_latest_events_are_kept(scene):
    for number in range(40):
        send([scene.join(rank, job=f"job-{number}") for rank in range(2)], Goodbye(0, 0))
    status = scene.engine.status()
    assert [event.number for event in status.events] == list(range(121 - EVENTS_MAX, 121))
    assert wire.status_from_wire(wire.status_to_wire(status)).events == status.events


def test_ended_jobs_stay_in_the_status_for_a_while(scene):
    streams = scene.run()
    send(streams, push())
    scene.now = 3.0
    send(streams, Goodbye(1, 1))
    scene.now = 10.0
    [ended] = scene.engine.status().ended
    assert (ended.title, ended.world_size, ended.outcome) == ("job", 2, Outcome.ENDED)
    assert (ended.collectives, ended.received_bytes, ended.sent_bytes) == (1, 16, 16)
    assert (ended.seconds, ended.ago_s) == (3.0, 7.0)
    assert ended.id != b"1".ljust(16), "who knows a job's instance could name it in a Join"


def test_an_ended_job_reports_its_outcome_and_the_rank_it_waited_for(scene):
    streams = scene.run()
    streams[0].send(push())
    scene.now = 2.0
    streams[1].send(push())
    streams[0].reject(MalformedFrame("bad"))
    streams = [scene.join(rank, life=b"2") for rank in range(2)]
    scene.hello(streams, life=b"2")
    for stream in streams:
        stream.close("reset")
    failed, lost = scene.engine.status().ended
    assert (failed.outcome, failed.waited_for, failed.waited_s) == (Outcome.FAILED, 1, 2.0)
    assert (lost.outcome, lost.waited_s) == (Outcome.LOST, 0.0)


def test_doctor_jobs_are_not_reported(scene):
    streams = [scene.join(rank, job="doctor-1a2b") for rank in range(2)]
    scene.hello(streams)
    send(streams, Goodbye(0, 0))
    assert not scene.engine.jobs.by_name
    assert (scene.engine.status().ended, scene.engine.status().events) == ((), ())


def test_only_the_latest_ended_jobs_are_kept(scene):
    for number in range(ENDED_JOBS_MAX + 3):
        scene.now = float(number)
        send(scene.run(), Goodbye(0, 0))
    ended = scene.engine.status().ended
    assert [round(scene.now - job.ago_s) for job in ended] == list(range(3, ENDED_JOBS_MAX + 3))
    assert wire.status_from_wire(wire.status_to_wire(scene.engine.status())).ended == ended
