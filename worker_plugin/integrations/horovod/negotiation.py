"""Collectives by name: a collective happens when all ranks have issued it, in whatever order each of them did.

Horovod promises that, and our reducers match collectives by their order. So a thread of each rank
tells the others what is pending (one small all-gather over Gloo), and what is pending on all ranks
happens in rank 0's order. Ranks that issue different things under one name all get an error that
says what, and nothing else is lost. A rank without anything pending says nothing, and the others
wait for it. Price: one such round for every collective that is waited for.

A rank that has joined (`hvd.join`) goes on answering: it gives zeros to all-reduces, until all ranks
have joined.
"""

from __future__ import annotations

import collections
import json
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from reduction.errors import ReductionError
from torch.distributed.distributed_c10d import ProcessGroup

from worker_plugin.process.at_exit import ClosedAtExit

#: How long to wait before asking again, where ranks have different things pending, in seconds.
AGAIN_S = 0.001
#: How long a round may take when this rank leaves, in seconds.
CLOSE_S = 1.0
#: How often to look whether a round is over, in seconds.
LOOK_S = 0.0002
#: Bytes of the all-gather that usually suffices; a longer text needs a second one.
ROUND_BYTES = 2048


class HorovodInternalError(RuntimeError):
    """A collective failed on all ranks: they disagree about it, or a rank or the reducers are gone."""


@dataclass(eq=False)
class Entry:
    """A collective that this rank has issued.

    `run` makes it happen, on the negotiation's thread. It gets what each rank said of it, by rank; a
    joined rank's is None.
    """

    name: str
    #: What all ranks must say alike; JSON.
    same: dict[str, Any]
    run: Callable[[list[Any]], Any]
    #: What each rank says for itself; JSON, and not null, which stands for a joined rank.
    own: Any = True
    result: Any = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        """Let those go on who wait for it."""
        self.result, self.error = result, error
        self.done.set()

    def wait(self) -> Any:
        """Return what `run` returned.

        Raises:
            HorovodInternalError: it failed.
        """
        self.done.wait()
        if self.error is not None:
            if isinstance(self.error, (HorovodInternalError, ValueError)):
                raise self.error.with_traceback(None)
            raise HorovodInternalError(f"{self.name}: {self.error}") from self.error
        return self.result


class Negotiation:
    """The thread that makes one process set's collectives happen.

    Args:
        group: of Gloo; nothing else uses it.
        stand_in: does a joined rank's part in a collective, by what the others say of it.
    """

    def __init__(
        self, group: ProcessGroup, stand_in: Callable[[str, dict[str, Any]], Callable[[], Any]]
    ) -> None:
        self._group = group
        self._size = dist.get_world_size(group)
        self._stand_in = stand_in
        self._arrived: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._counts: dict[str, int] = collections.defaultdict(int)
        self._pending: dict[str, Entry] = {}
        #: Ranks that have joined, as all ranks know it, in the order in which they did.
        self._joined: list[int] = []
        self._joining: Entry | None = None
        self._is_over = False
        #: When to give up the round that is under way, on the clock of `time.monotonic`.
        self._leave_at = math.inf
        self._thread = threading.Thread(target=self._run, name="reduction-horovod", daemon=True)
        self._thread.start()
        _negotiations.add(self)

    def name(self, kind: str, given: str | None) -> str:
        """Return a collective's name: the given one, or one by the order of issue."""
        if given is not None:
            return f"{kind}.{given}"
        self._counts[kind] += 1
        return f"{kind}.noname.{self._counts[kind]}"

    def submit(self, entry: Entry) -> Entry:
        """Issue a collective, and return at once.

        Raises:
            ValueError: one of this name is pending.
            HorovodInternalError: it is over.
        """
        with self._lock:
            if self._is_over:
                raise HorovodInternalError("Horovod has been shut down")
            if entry.name in self._names:
                raise ValueError(
                    f"{entry.name} is pending already: wait for it, or give this one another name"
                )
            self._names.add(entry.name)
        self._arrived.put(entry)
        return entry

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.submit(Entry(self.name("barrier", None), {"kind": "barrier"}, lambda _: None)).wait()

    def join(self) -> int:
        """Give zeros to what the others issue, until all ranks have joined; return the rank that was the last."""
        return int(self.submit(Entry("join", {}, lambda _: None)).wait())

    def begin_close(self) -> None:
        """End the thread, in the background. What is pending fails."""
        with self._lock:
            self._is_over = True
        self._leave_at = min(self._leave_at, time.monotonic() + CLOSE_S)
        self._arrived.put(None)

    def close(self) -> None:
        """End the thread, which may be in the middle of a round that another rank does not come to."""
        self.begin_close()
        self._thread.join(2 * CLOSE_S)  # a collective that is under way may take longer

    def _run(self) -> None:
        error: BaseException = HorovodInternalError("Horovod has been shut down")
        try:
            while self._take(may_wait=not self._pending and self._joining is None):
                if not self._round():
                    time.sleep(AGAIN_S)
        except Exception as failure:
            error = HorovodInternalError(f"the ranks cannot agree any more: {failure}")
        with self._lock:
            self._is_over = True
        self._take(may_wait=False)
        for entry in [*self._pending.values(), *([self._joining] if self._joining else [])]:
            entry.finish(error=error)

    def _take(self, *, may_wait: bool) -> bool:
        """Take what has arrived; return whether to go on."""
        while may_wait or not self._arrived.empty():
            entry = self._arrived.get()
            may_wait = False
            if entry is None:
                return False
            if entry.name == "join":
                self._joining = entry
            else:
                self._pending[entry.name] = entry
        return True

    def _round(self) -> bool:
        """Tell the others what is pending here, and do what is pending everywhere; return whether there was any."""
        mine = {name: [entry.same, entry.own] for name, entry in self._pending.items()}
        said = self._exchange(
            {"joined": self._joining is not None, "pending": mine, "counts": dict(self._counts)}
        )
        new = [rank for rank, one in enumerate(said) if one["joined"] and rank not in self._joined]
        self._joined += new
        active = [rank for rank in range(self._size) if rank not in self._joined]
        if not active:
            joining, self._joining = self._joining, None
            last, self._joined = self._joined[-1], []
            assert joining is not None
            # Some have issued more than others. From here on the same names mean the same again.
            for name in {name for one in said for name in one["counts"]}:
                self._counts[name] = max(one["counts"].get(name, 0) for one in said)
            self._forget(joining)
            joining.finish(last)
            return True
        names = [
            name
            for name in said[active[0]]["pending"]
            if all(name in said[rank]["pending"] for rank in active)
        ]
        for name in names:
            self._do(
                name, [said[rank]["pending"][name] if rank in active else None for rank in range(self._size)]
            )
        return bool(names) or bool(new)

    def _do(self, name: str, said: list[Any]) -> None:
        """Make a collective happen, or fail, on all ranks alike."""
        entry = self._pending.pop(name, None)
        first = next(rank for rank, one in enumerate(said) if one is not None)
        other = next(
            (rank for rank, one in enumerate(said) if one is not None and one[0] != said[first][0]), None
        )
        if other is not None:
            text = (
                f"{name}: ranks disagree about it: rank {first} has {_text(said[first][0])}, rank {other} has "
                f"{_text(said[other][0])}"
            )
            if entry is not None:
                self._forget(entry)
                entry.finish(error=HorovodInternalError(text))
            return
        if entry is None:
            self._stand_in(name, said[first][0])()
            return
        self._forget(entry)
        try:
            result = entry.run([None if one is None else one[1] for one in said])
        except (RuntimeError, ReductionError, ValueError) as error:
            entry.finish(error=error)
            return
        if isinstance(result, torch._C.Future):
            result.add_done_callback(lambda done: _finish(entry, done))
        else:
            entry.finish(result)

    def _forget(self, entry: Entry) -> None:
        with self._lock:
            self._names.discard(entry.name)

    def _exchange(self, said: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what each rank says."""
        text = json.dumps(said).encode()
        head = len(text).to_bytes(8, "little") + text[: ROUND_BYTES - 8]
        parts = self._gathered(head, ROUND_BYTES)
        sizes = [int.from_bytes(part[:8], "little") for part in parts]
        parts = [part[8:] for part in parts]
        most = max(sizes)
        if most > ROUND_BYTES - 8:
            parts = self._gathered(text, most)
        return [json.loads(part[:size]) for part, size in zip(parts, sizes, strict=True)]

    def _gathered(self, content: bytes, nbytes: int) -> list[bytes]:
        mine = torch.zeros(nbytes, dtype=torch.uint8)
        mine[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        parts = [torch.empty(nbytes, dtype=torch.uint8) for _ in range(self._size)]
        work = dist.all_gather(parts, mine, group=self._group, async_op=True)
        assert work is not None
        # Not in C++, where the thread could not be stopped, and would end the process with abort() if the interpreter
        # ended meanwhile.
        while not work.is_completed():
            if time.monotonic() > self._leave_at:
                raise HorovodInternalError("Horovod has been shut down")
            time.sleep(LOOK_S)
        work.wait()
        return [part.numpy().tobytes() for part in parts]


#: A thread that is in C++ when the interpreter ends would end the process with abort().
_negotiations: ClosedAtExit[Negotiation] = ClosedAtExit()


def _finish(entry: Entry, done: torch.futures.Future[Any]) -> None:
    try:
        entry.finish(done.value())
    except Exception as error:
        entry.finish(error=error)


def _text(same: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in same.items())
