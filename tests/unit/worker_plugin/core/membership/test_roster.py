"""A rank's links: dialling, being welcomed or refused, and being cut off, tested through the communicator."""

import pytest
from reduction.errors import (
    CollectiveMismatch,
    JobBusy,
    LocalProtocolError,
    MalformedFrame,
    OutOfOrder,
    RankTaken,
    ReducerDraining,
    ReducerUnavailable,
    ReductionError,
    ResourceExhausted,
    StaleInstance,
    Unauthenticated,
    UnsupportedVersion,
    WorkerLost,
)
from reduction.model import Abort, Configure, Hello, Join, Minimum, Start, Welcome
from support.scenes.rank_scene import (
    CREDIT,
    INSTANCE,
    Scene,
    epoch,
    failure,
    incarnation,
    link_number,
    nonce,
    peers,
    send,
)

from worker_plugin.core.actions import Fail, Log, Open, Shut
from worker_plugin.core.events import Received, StreamLost
from worker_plugin.core.membership import roster
from worker_plugin.core.membership.roster import BUSY_S


def opened(scene, *reducers, **changes):
    return [Open(link_number(name), f"{name}:1", scene.join(**changes)) for name in reducers]


def test_the_first_tick_dials_every_reducer_once():
    scene = Scene()
    assert scene.tick(0.0) == opened(scene, "a", "b")
    assert scene.tick(0.1) == []


def test_a_join_identifies_the_caller():
    scene = Scene(rank=1)
    assert scene.tick(0.0)[0].join == Join("job", b"", 1, 2, nonce(1), "h1", 0, CREDIT)


def test_a_rank_joins_again_with_the_instance_and_the_minimum_that_it_knows():
    scene = Scene(rank=1, reducers="a").run()
    scene.issue()
    scene.result("a", 0, minimum=1)
    scene.lose("a", now=1.0)
    assert scene.tick(1.0) == opened(scene, "a", instance=INSTANCE, minimum=1)


def test_welcome_asks_for_nothing_before_there_is_an_epoch():
    scene = Scene()
    scene.tick(0.0)
    assert scene.welcome("a") == []


@pytest.mark.parametrize(
    "frame", [Minimum(1), Start(1, 0), peers("PP"), Configure(epoch(1)), Welcome(incarnation("a"), CREDIT)]
)
def test_a_frame_before_welcome_and_a_second_welcome_are_out_of_order(frame):
    scene = Scene()
    scene.tick(0.0)
    if isinstance(frame, Welcome):
        scene.receive("a", frame)
    kind, text = failure(scene.receive("a", frame))
    assert kind is OutOfOrder
    assert text.startswith(f"a:1 sent {type(frame).__name__} while ")


# ---- two addresses, one reducer ----

TWINS = Log(30, "a:1 and b:1 are the same reducer; using b:1")


def welcome_by_a(scene, now=0.0):
    """Let the reducer behind address a also welcome this rank on the stream to address b."""
    return scene.receive("b", Welcome(incarnation("a"), CREDIT), now)


@pytest.mark.parametrize("first", ["is up", "has ended", "is dialled again"])
def test_the_first_address_of_a_reducer_is_retired_for_good_when_a_second_one_reaches_it(first):
    """A reducer has one stream per rank, so the second Join has ended the first stream.

    If it was dialled again, the first would end the second stream, and so on forever.
    """
    scene = Scene(stall_warn_s=1e6)
    scene.tick(0.0)
    scene.welcome("a")
    if first != "is up":
        scene.lose("a", now=0.1)
    if first == "is dialled again":
        assert scene.tick(1.0) == opened(scene, "a")
    assert welcome_by_a(scene, now=1.1) == ([TWINS] if first == "has ended" else [Shut(0), TWINS])
    if first != "has ended":
        assert scene.peers("a", "PL") == [], "the last frames of its stream mean nothing"
        assert scene.abort("a", WorkerLost("not ours")) == []
        assert scene.lose("a", now=1.2) == []
    assert scene.tick(9.0) == []


def test_retiring_it_in_a_running_epoch_breaks_the_stream():
    """The Hello of this epoch may have been sent on the stream that ended; if not, rank 0 makes a new epoch."""
    scene = Scene(rank=1)
    scene.tick(0.0)
    scene.welcome("a")
    scene.receive("a", Configure(epoch(1, "a")))
    scene.start("a")
    assert welcome_by_a(scene, now=1.0) == [Shut(0), TWINS, send("b", Hello(epoch(1, "a"), 0))]
    assert scene.core.epochs.broken_since == 1.0


# ---- refused ----


def refused(scene, error, now=0.0):
    """Let reducer a refuse the Join and end the stream; return the actions of both events."""
    return scene.abort("a", error, now) + scene.lose("a", None, now)


@pytest.mark.parametrize(
    "error", [JobBusy("live"), RankTaken("taken"), StaleInstance("stale"), ResourceExhausted("no memory")]
)
def test_a_temporary_refusal_is_retried_for_a_while(error):
    scene = Scene(reducers="a", stall_warn_s=1e6)
    scene.tick(0.0)
    assert refused(scene, error, now=1.0) == []
    scene.tick(1.1)
    scene.welcome("a", now=2.0)  # the patience starts over
    scene.lose("a", now=3.0)
    scene.tick(9.0)
    assert refused(scene, error, now=10.0) == []
    assert scene.tick(10.049) == []
    assert scene.tick(10.05) == opened(scene, "a")
    assert refused(scene, error, now=10.0 + BUSY_S - 0.1) == []
    scene.tick(14.0)
    assert failure(scene.abort("a", error, now=14.0)) == (type(error), str(error))


def test_a_draining_reducer_is_tried_again_until_the_join_timeout():
    scene = Scene(reducers="a")
    scene.tick(0.0)
    assert refused(scene, ReducerDraining("stopping"), now=10.0) == []
    assert scene.tick(11.0)[:1] == opened(scene, "a")
    refused(scene, ReducerDraining("stopping"), now=59.0)
    kind, text = failure(scene.tick(60.0))
    assert kind is ReducerUnavailable
    assert "60 s (join_timeout_s): a:1 (stopping); check that `reducer serve` runs there" in text


@pytest.mark.parametrize(
    "error",
    [
        Unauthenticated("a wrong token"),
        UnsupportedVersion("version 2"),
        CollectiveMismatch("world size"),
        MalformedFrame("what?"),
        WorkerLost("rank 1 is gone"),
        ReductionError("a bug"),
    ],
)
def test_other_refusals_are_final_and_reported_to_the_other_reducers(error):
    scene = Scene()
    scene.tick(0.0)
    scene.welcome("b")
    assert scene.abort("a", error) == [
        send("b", Abort(error.code, f"rank 0 (h0): {error}")),
        Fail(scene.core.error),
    ]
    assert (type(scene.core.error), str(scene.core.error)) == (type(error), str(error))


def test_a_refusal_below_the_level_of_frames_is_final_too():
    """A TLS failure, or a proxy that asks for a token, sends no Abort."""
    scene = Scene()
    scene.tick(0.0)
    scene.welcome("b")
    error = Unauthenticated("a:1: it requires TLS")
    assert scene.lose("a", error) == [send("b", Abort(15, f"rank 0 (h0): {error}")), Fail(error)]


BAD_TOKEN = Unauthenticated("a wrong token")


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        *(
            (error, refused)
            for error in (ResourceExhausted("no memory"), JobBusy("live"), ReducerDraining("no"))
        ),
        (BAD_TOKEN, refused),
        (BAD_TOKEN, lambda scene, error, now: scene.lose("a", error, now)),
    ],
)
def test_while_running_a_refusal_by_one_of_several_reducers_is_retried(error, ends):
    scene = Scene().run()
    scene.lose("a", now=0.0)
    scene.tick(0.0)
    assert ends(scene, error, now=0.1) == []
    assert scene.tick(0.2)[0] == opened(scene, "a")[0]


@pytest.mark.parametrize(
    ("reducers", "error"), [("a", BAD_TOKEN), ("ab", StaleInstance("another life of the job"))]
)
def test_while_running_a_refusal_is_final_by_the_only_reducer_or_after_a_job_restart(reducers, error):
    scene = Scene(1, reducers).run()
    scene.lose("a", now=0.0)
    scene.tick(0.0)
    assert failure(scene.abort("a", error, now=0.1)) == (type(error), str(error))


def test_a_stream_that_was_welcomed_is_redialed_whatever_ended_it():
    scene = Scene(reducers="a").run()
    scene.lose("a", Unauthenticated("an expired certificate"), 0.0)
    assert scene.tick(0.0) == opened(scene, "a")


# ---- cut off ----


def test_unreachable_reducers_are_redialed_with_growing_pauses():
    scene = Scene(reducers="a")
    scene.tick(0.0)
    dialled = []
    now = 0.0
    for _ in range(26):
        scene.lose("a", ReducerUnavailable("refused"), now)
        pause = 0.0
        while not scene.tick(now + pause):
            pause = round(pause + 0.05, 2)
        dialled.append(pause)
        now = 0.0
    assert dialled == [0.05, *[0.1] * 10, *[0.2] * 10, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_the_join_timeout_error_lists_the_addresses_if_no_reducer_is_reachable():
    scene = Scene()
    scene.tick(0.0)
    scene.lose("a", ReducerUnavailable("a:1: refused"))
    scene.lose("b", ReducerUnavailable("b:1: no route"))
    scene.tick(59.9)
    kind, text = failure(scene.tick(60.0))
    assert kind is ReducerUnavailable
    assert (
        "2 of 2 reducers could not be reached within 60 s (join_timeout_s): a:1 (refused), b:1 (no route)"
        in text
    )


@pytest.mark.parametrize("error", [MalformedFrame("garbage"), LocalProtocolError("a bug")])
def test_a_stream_ended_by_a_protocol_error_is_not_redialed(error):
    scene = Scene().run()
    assert failure(scene.lose("a", error)) == (type(error), str(error))


# ---- siblings: further processes behind one address ----


def test_siblings_of_a_reducer_are_dialed_once():
    scene = Scene(reducers="a")
    scene.tick(0.0)
    scene.receive("a", Welcome(incarnation("a"), CREDIT, siblings=(7, 8)))
    dialled = [action.address for action in scene.tick(1.0) if isinstance(action, Open)]
    assert dialled == ["a:7", "a:8"]
    scene.lose("a")
    scene.tick(2.0)
    scene.receive("a", Welcome(incarnation("a"), CREDIT, siblings=(7, 8)))
    assert [link.address for link in scene.core.roster] == ["a:1", "a:7", "a:8"]


def test_siblings_of_a_restarted_reducer_replace_the_former_ones():
    scene = Scene(reducers="a")
    scene.tick(0.0)
    for life in range(20):
        siblings = (2 * life + 7, 2 * life + 8)
        scene.receive("a", Welcome(incarnation(chr(life + 65)), CREDIT, siblings=siblings), now=life)
        dialled = [action.address for action in scene.tick(life + 0.5) if isinstance(action, Open)]
        assert set(dialled) == {f"a:{port}" for port in siblings}, "none of a former life"
        scene.lose("a", now=life + 0.5)
        scene.handle(StreamLost(1, None), now=life + 0.5)
        scene.handle(StreamLost(2, None), now=life + 0.5)
        scene.tick(life + 0.9)
    assert {link.address for link in scene.core.roster} == {"a:1", "a:45", "a:46"}
    assert [link.id for link in scene.core.roster] == [0, 1, 2]


# ---- reducers that advertise more and more others ----


def test_endless_chains_of_siblings_are_cut_off_with_a_warning(monkeypatch):
    monkeypatch.setattr(roster, "LINKS_MAX", 600)
    scene = Scene(reducers="a", stall_warn_s=1e6)
    scene.tick(0.0)
    warnings = []
    for number in range(5):
        siblings = tuple(range(255 * number + 2, 255 * number + 257))
        welcome = Welcome(number.to_bytes(16), CREDIT, siblings=siblings)
        warnings += [
            action.text
            for action in scene.handle(Received(number, welcome), number)
            if isinstance(action, Log)
        ]
        scene.tick(number + 0.5)
    assert len(scene.core.roster.links) == 600
    assert warnings[0] == "a rank may have 600 links: a:601 and others that reducers name are left out"
    assert scene.core.error is None
