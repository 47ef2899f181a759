"""Every kept fuzzing input, replayed on every run of pytest without a fuzzing engine."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from fuzz import __main__ as command
from fuzz import frames, scripts
from fuzz.mutate import mutate
from fuzz.targets import CORPUS, TARGETS, corpus
from google.protobuf.message import DecodeError
from reduction import wire
from reduction.errors import ReductionError
from reduction.transports.shared import PeerMemory
from reduction.wire import reducer_frames, worker_frames

from reducer.core.job import Job
from worker_plugin.core.rank import RankCore

BYTES_MAX = 300_000


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_shows_no_bug(name: str) -> None:
    inputs = corpus(name)
    assert inputs, "a corpus with nothing in it proves nothing"
    for path in inputs:
        try:
            TARGETS[name].run(path.read_bytes())
        except Exception as error:
            pytest.fail(f"python -m tests.fuzz --target {name} --replay {path}: {error!r}")


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_show_no_bug(name: str) -> None:
    for seed in TARGETS[name].seeds:
        TARGETS[name].run(seed)


def test_the_corpus_is_small_and_has_only_known_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS) == set(command.NAMES)
    paths = [path for name in TARGETS for path in corpus(name)]
    assert sum(path.stat().st_size for path in paths) <= BYTES_MAX
    assert all(path.stat().st_size <= TARGETS[path.parent.name].longest for path in paths)


# ---- fuzzing must be able to fail ----


def _raise(error: Exception) -> Callable[..., object]:
    def bug(*_: object) -> object:
        raise error

    return bug


@pytest.mark.parametrize(
    ("name", "owner", "method"),
    [
        ("worker_frame", worker_frames, "_join_from_pb"),
        ("reducer_frame", reducer_frames, "_welcome_from_pb"),
        ("status", wire.status, "peer_from_pb"),
        ("drain", wire.drain, "parse"),
        ("reducer_session", Job, "_on_push"),
        ("reducer_data_port", Job, "_on_hello"),
        ("reducer_local_port", PeerMemory, "view"),
        ("worker_core", RankCore, "_on_frame"),
        ("worker_data_plane", RankCore, "_on_frame"),
        ("worker_local_plane", PeerMemory, "view"),
    ],
)
def test_a_bug_is_found(name: str, owner: object, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, method, _raise(KeyError("a bug")))
    found = []
    for path in corpus(name):
        try:
            TARGETS[name].run(path.read_bytes())
        except (KeyError, AssertionError, TimeoutError) as error:
            found.append(error)
            break
    assert found


@pytest.mark.parametrize(
    ("name", "owner"), [("worker_frame", worker_frames), ("reducer_frame", reducer_frames)]
)
def test_an_error_that_is_not_documented_is_a_bug(
    name: str, owner: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (DecodeError("raw"), ReductionError("some error")):
        monkeypatch.setattr(owner, "parse", _raise(error))
        with pytest.raises(type(error), match=str(error)):
            TARGETS[name].run(TARGETS[name].seeds[0])


# ---- scripts, mutation and seeds ----


def test_scripts_survive_a_round_trip() -> None:
    records = [scripts.Record(7, 255), scripts.Record(0, 1, b"frame"), scripts.Record(5, 0, bytes(1000))]
    assert scripts.decode(scripts.encode(records)) == records
    assert scripts.decode(scripts.encode(records)[:-1])[:2] == records[:2]
    assert scripts.decode(b"\0\0\0") == []
    assert len(scripts.decode(bytes(4 * 1000))) == scripts.RECORDS_MAX


@pytest.mark.parametrize("name", TARGETS)
def test_mutation_is_bounded_repeatable_and_keeps_frames_valid(name: str) -> None:
    target = TARGETS[name]

    def by_bytes(data: bytes, longest: int) -> bytes:
        return (data + b"!")[:longest]

    frames_in = frames_out = 0
    for number in range(300):
        data = target.seeds[number % len(target.seeds)]
        one, two = (
            mutate(data, target.longest, target.shape, random.Random(number), by_bytes) for _ in range(2)
        )
        assert one == two, "all choices come from the seed"
        assert len(one) <= target.longest
        if target.shape == "worker":
            frames_in += 1
            frames_out += _is_worker_frame(one)
    assert frames_out >= frames_in // 10, "or nothing gets past the parser"


def _is_worker_frame(data: bytes) -> bool:
    try:
        wire.worker_frame_from_wire(data)
    except ReductionError:
        return False
    return True


def test_every_frame_of_the_seeds_is_valid() -> None:
    for frame, data in zip(frames.WORKER_FRAMES, frames.WORKER_BYTES, strict=True):
        assert wire.worker_frame_from_wire(data) == frame
    for frame, data in zip(frames.REDUCER_FRAMES, frames.REDUCER_BYTES, strict=True):
        assert wire.reducer_frame_from_wire(data) == frame
