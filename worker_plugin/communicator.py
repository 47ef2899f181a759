"""The interface that every communicator implements, and what it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from reduction.errors import ReductionError
from reduction.model import DType, ReduceOp

from worker_plugin.tensors.encoding import ParameterSlice
from worker_plugin.tensors.futures import Future
from worker_plugin.timeline.recorder import Recorder

#: The text of the ClosedError that later collectives raise.
CLOSED = "the state was closed; make a new one"
#: The text of the ClosedError of collectives that were in flight at an abort.
ABORTED = "the state was aborted; make a new one"


@dataclass(frozen=True, slots=True)
class Request:
    """A collective, as it is asked for. All ranks must ask for the same ones in the same order."""

    #: Contiguous; it may be in float32 where `dtype` has 16 bits. It gets the result.
    tensor: torch.Tensor
    #: Type of the user's tensor, and of the result.
    dtype: DType
    op: ReduceOp
    #: Tells collectives of the same size apart, see `layout.fingerprint`.
    fingerprint: int
    #: Which parameters lie where in the tensor, in order and without gaps; one slice where that
    #: does not matter.
    slices: Sequence[ParameterSlice]


class Communicator(Protocol):
    """One rank's part in the collectives of a group of ranks. Made by the first collective, used by any thread."""

    @property
    def error(self) -> ReductionError | None:
        """What has ended it, but for `close`."""

    @property
    def job(self) -> str | None:
        """The job's name, once the ranks have agreed on it."""

    @property
    def local_size(self) -> int:
        """How many ranks of a node are summed in each contribution; 1 as long as that is not known."""

    @property
    def recorder(self) -> Recorder | None:
        """What it has done lately; None as long as it does nothing."""

    def submit(self, request: Request) -> Future:
        """Issue the next collective and return at once.

        Raises:
            ReductionError: the communicator has failed or was closed; the collective was not
                issued.
        """

    def connect(self) -> None:
        """Wait until all ranks and reducers are there, so that the first collective need not.

        Raises:
            ReductionError: the communicator has failed or was closed.
        """

    def abandon(self, error: ReductionError) -> None:
        """Fail here and on all other ranks; nothing happens if it is over already."""

    def begin_close(self) -> None:
        """Leave in good order, in the background. Idempotent."""

    def close(self) -> None:
        """Leave in good order; return within `close_timeout_s` and a few seconds for streams and processes.

        From a callback of a future it returns at once, because that runs on a thread which is
        needed.
        """

    def leave(self) -> None:
        """Leave when all that was issued is done, because nobody can issue any more.

        It may be called in any line of any thread, where garbage happens to be collected, with any
        lock held. So it only hands over: it takes no lock and starts no thread.
        """
