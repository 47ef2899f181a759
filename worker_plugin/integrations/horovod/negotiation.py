"""Collectives by name: a collective happens once all ranks have issued it, in whatever order each of them did.

Horovod promises this, but our reducers match collectives by their order. So a thread of each rank tells the others what
is pending (one small all-gather over Gloo), and what is pending on all ranks happens in rank 0's order. Ranks that
issue different things under one name all get an error that says what, and nothing else is lost. A rank with nothing
pending sends nothing, and the others wait for it. The price is one such round for every collective that is waited for.

A rank that has joined (`hvd.join`) keeps answering: it contributes zeros to all-reduces until all ranks have joined.
"""

from __future__ import annotations

import collections
import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroup

from worker_plugin.process.at_exit import ClosedAtExit

#: Pause between rounds while ranks have different things pending, in seconds.
AGAIN_S = 0.001
#: How long a round may take when this rank leaves, in seconds.
CLOSE_S = 1.0
#: How often to poll whether a round has ended, in seconds.
LOOK_S = 0.0002
#: Bytes of the all-gather that usually suffice; a longer text needs a second one.
ROUND_BYTES = 2048
#: The name under which a joined rank is pending.
_JOIN = "join.all"
#: Kinds of collectives in which joined ranks can take part.
_FOR_JOINED = ("allreduce", "barrier", "optimizer")


class HorovodInternalError(RuntimeError):
    """A collective failed on all ranks: they disagree about it, or a rank or the reducers are gone."""


@dataclass(eq=False)
class Handle:
    """A collective that this rank has issued."""

    name: str
    #: What must be the same on all ranks; JSON.
    same: dict[str, Any]
    #: This rank's own part; JSON.
    own: Any
    #: Performs it, on the negotiation's thread; gets each rank's own part.
    run: Callable[[list[Any]], object]
    #: Converts the return value of `run`, or the value of the torch future that it returned, into the result.
    unpack: Callable[[Any], Any]
    outcome: Any = None
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def finish(self, outcome: Any = None, error: Exception | None = None) -> None:
        """Wake up the waiting threads, once a future is done."""
        self.outcome, self.error = outcome, error
        if isinstance(outcome, torch._C.Future):
            outcome.add_done_callback(lambda _: self.done.set())
        else:
            self.done.set()

    def wait(self) -> Any:
        """Return the result.

        Raises:
            HorovodInternalError: it failed.
        """
        self.done.wait()
        try:
            if self.error is not None:
                raise self.error.with_traceback(None)
            # A future's `wait` also makes the current stream of a GPU wait.
            is_future = isinstance(self.outcome, torch._C.Future)
            return self.unpack(self.outcome.wait() if is_future else self.outcome)
        except (HorovodInternalError, ValueError):
            raise
        except Exception as error:
            raise HorovodInternalError(f"{self.name}: {error}") from error


class Negotiation:
    """The thread that performs one process set's collectives.

    Args:
        group: for use on this thread only.
        stand_in: performs a joined rank's part in a collective, from the others' description of it.
    """

    def __init__(self, group: ProcessGroup, stand_in: Callable[[dict[str, Any]], object]) -> None:
        self.group = group
        self._size = dist.get_world_size(group)
        self._stand_in = stand_in
        #: Guards `_counts`, `_pending` and `_is_over`, and notifies the thread of changes.
        self._changed = threading.Condition()
        #: Number of collectives issued without a name, by kind.
        self._counts: dict[str, int] = collections.defaultdict(int)
        self._pending: dict[str, Handle] = {}
        self._is_over = False
        #: Ranks that have joined, as known to all ranks, in the order in which they did.
        self._joined: list[int] = []
        #: When to give up the present round, on the clock of `time.monotonic`.
        self._leave_at = math.inf
        self._thread = threading.Thread(target=self._run, name="reduction-horovod", daemon=True)
        self._thread.start()
        _negotiations.add(self)

    def issue(
        self,
        kind: str,
        name: str | None,
        run: Callable[[list[Any]], object] = lambda _: None,
        unpack: Callable[[Any], Any] = lambda outcome: outcome,
        own: Any = None,
        **same: Any,
    ) -> Handle:
        """Issue a collective, and return immediately. One without a name gets one by the order of issue.

        Raises:
            ValueError: a collective of this name is pending.
            HorovodInternalError: the negotiation has ended.
        """
        with self._changed:
            if self._is_over:
                raise HorovodInternalError("Horovod has been shut down")
            if name is None:
                self._counts[kind] += 1
                name = f"noname.{self._counts[kind]}"
            handle = Handle(f"{kind}.{name}", {"kind": kind, **same}, own, run, unpack)
            if handle.name in self._pending:
                raise ValueError(
                    f"{handle.name} is already pending: wait for it, or give this one a different name"
                )
            self._pending[handle.name] = handle
            self._changed.notify()
        return handle

    def begin_close(self) -> None:
        """End the thread in the background. Pending collectives fail."""
        self._leave_at = min(self._leave_at, time.monotonic() + CLOSE_S)
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread, which may be in the middle of a round that another rank does not join."""
        self.begin_close()
        self._thread.join(2 * CLOSE_S)  # a collective in progress may take longer

    def _run(self) -> None:
        error = HorovodInternalError("Horovod has been shut down")
        try:
            while self._has_work():
                if not self._round():
                    time.sleep(AGAIN_S)
        except Exception as failure:
            error = HorovodInternalError(f"the ranks can no longer agree: {failure}")
        with self._changed:
            self._is_over = True
        for handle in self._pending.values():
            handle.finish(error=error)

    def _has_work(self) -> bool:
        """Wait until something is pending; return whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_over)
            return not self._is_over

    def _round(self) -> bool:
        """Tell the others what is pending here, and do what is pending everywhere; return whether anything was."""
        with self._changed:
            mine = {name: [handle.same, handle.own] for name, handle in self._pending.items()}
            counts = dict(self._counts)
        said = self._exchange({"pending": mine, "counts": counts})
        new = [rank for rank, one in enumerate(said) if _JOIN in one["pending"] and rank not in self._joined]
        self._joined += new
        active = [rank for rank in range(self._size) if rank not in self._joined]
        if not active:
            last, self._joined = self._joined[-1], []
            with self._changed:
                # Some ranks have issued more than others. From here on the same names mean the same again.
                for kind in {kind for one in said for kind in one["counts"]}:
                    self._counts[kind] = max(one["counts"].get(kind, 0) for one in said)
                joining = self._pending.pop(_JOIN)
            joining.finish(last)
            return True
        names = [
            name
            for name in said[active[0]]["pending"]
            if all(name in said[rank]["pending"] for rank in active)
        ]
        for name in names:
            self._do(name, {rank: said[rank]["pending"][name] for rank in active})
        return bool(names or new)

    def _do(self, name: str, said: dict[int, Any]) -> None:
        """Perform a collective on all ranks, or fail it on all of them. `said` is by rank, without joined ranks."""
        with self._changed:
            handle = self._pending.pop(name, None)
        first, (same, _) = next(iter(said.items()))
        other = next((rank for rank, (theirs, _) in said.items() if theirs != same), None)
        error = None
        if other is not None:
            error = (
                f"{name}: ranks disagree about it: rank {first} has {_text(same)}, rank {other} has "
                f"{_text(said[other][0])}"
            )
        elif self._joined and same["kind"] not in _FOR_JOINED:
            error = (
                f"ranks {sorted(self._joined)} have joined, and can only take part in allreduce and barrier"
            )
        if handle is None:
            if error is None:
                self._stand_in(same)
        elif error is not None:
            handle.finish(error=HorovodInternalError(error))
        else:
            try:
                outcome = handle.run([own for _, own in said.values()])
            except Exception as failure:
                handle.finish(error=failure)
            else:
                handle.finish(outcome)

    def _exchange(self, mine: dict[str, Any]) -> list[Any]:
        """Return each rank's text. A long text is announced by its length."""
        text = json.dumps(mine)
        said = self._gathered(text if len(text) <= ROUND_BYTES else str(len(text)), ROUND_BYTES)
        longest = max((one for one in said if isinstance(one, int)), default=0)
        return self._gathered(text, longest) if longest else said

    def _gathered(self, text: str, nbytes: int) -> list[Any]:
        mine = torch.frombuffer(bytearray(text.ljust(nbytes).encode()), dtype=torch.uint8)
        parts = [torch.empty_like(mine) for _ in range(self._size)]
        work = dist.all_gather(parts, mine, group=self.group, async_op=True)
        assert work is not None
        # Not in C++, where the thread could not be stopped, and would end the process with abort() if the interpreter
        # ended in the meantime.
        while not work.is_completed():
            if time.monotonic() > self._leave_at:
                raise HorovodInternalError("Horovod has been shut down")
            time.sleep(LOOK_S)
        work.wait()
        return [json.loads(part.numpy().tobytes()) for part in parts]


#: A thread that is in C++ when the interpreter ends would end the process with abort().
_negotiations: ClosedAtExit[Negotiation] = ClosedAtExit()


def _text(same: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in same.items())
