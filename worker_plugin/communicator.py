"""The interface that every communicator implements, and the requests that it takes."""

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
    """A request for a collective. All ranks must make the same requests in the same order."""

    #: Contiguous; may be float32 where `dtype` has 16 bits. It receives the result.
    tensor: torch.Tensor
    #: Type of the user's tensor, and of the result.
    dtype: DType
    op: ReduceOp
    #: Distinguishes collectives of the same size; see `layout.fingerprint`.
    fingerprint: int
    #: The positions of parameters in the tensor, in order and without gaps; one slice where that does not matter.
    slices: Sequence[ParameterSlice]


class Communicator(Protocol):
    """One rank's part in the collectives of a group of ranks. Created by the first collective, used by any thread.

    What ends it:

                      collectives in flight    the other ranks           it returns
        abandon       fail                     fail, with its error      immediately
        begin_close   fail                     fail if they need more    immediately
        close         fail                     fail if they need more    when this rank has left
        leave         complete                 fail if they need more    immediately, even within a garbage collection
    """

    @property
    def error(self) -> ReductionError | None:
        """The error that ended it, other than a `close`."""

    @property
    def job(self) -> str | None:
        """The job's name, once the ranks have agreed on it."""

    @property
    def local_size(self) -> int:
        """Number of ranks of a node that are summed in each contribution; 1 until it is known."""

    @property
    def recorder(self) -> Recorder | None:
        """Its recent activity; None while it does nothing."""

    def submit(self, request: Request) -> Future:
        """Issue the next collective and return immediately.

        Raises:
            ReductionError: the communicator has failed or was closed. The collective was not issued.
        """

    def connect(self) -> None:
        """Wait until all ranks and reducers are there, so that the first collective need not wait.

        Raises:
            ReductionError: the communicator has failed or was closed.
        """

    def abandon(self, error: ReductionError) -> None:
        """Fail here and on all other ranks. Does nothing if the communicator has already ended."""

    def begin_close(self) -> None:
        """Leave cleanly, in the background. Idempotent."""

    def close(self) -> None:
        """Leave cleanly. Return within `close_timeout_s` plus a few seconds for streams and processes.

        From a callback of a future it returns immediately, because such a callback runs on a thread that is needed.
        """

    def leave(self) -> None:
        """Leave once everything issued is done, because no more can be issued.

        It may be called on any line of any thread where garbage happens to be collected, with any lock held. So it only
        schedules the work: it takes no lock and starts no thread.
        """
