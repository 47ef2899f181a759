"""All errors of the project, grouped by what the caller should do.

    ReductionError
    |-- ConfigError (also ValueError)     fix the argument, setting or command line
    |-- ClosedError                       the state was closed: make a new one
    |-- Unauthenticated                   fix token or certificates: one side does not accept the other's
    |-- RetryableError                    try again later with a new state; after a collective, see below
    |   |-- ReducerUnavailable            no reducer could be reached in time
    |   |   `-- ReducerAbsent             nothing listens on its address: its process is gone
    |   |-- ReducerDraining               the reducer is about to stop and takes no new jobs
    |   |-- ResourceExhausted             a process has used up memory, descriptors, threads, or a reducer's limit
    |   |-- JobBusy                       a live job already has this name
    |   |   `-- RankTaken                 a live process already is this rank of the job
    |   |-- CollectiveTimeout             a collective did not finish within timeout_s
    |   |   `-- WorkersMissing            ranks did not even reach the job's first collective within timeout_s
    |   `-- DataCorrupted                 a checksum does not match; the stream is reopened and the data sent again
    |-- ProtocolError                     do not retry: one side has a bug or another version
    |   |-- LocalProtocolError            this process
    |   `-- RemoteProtocolError           the other side
    |       |-- MalformedFrame            bytes that are not a valid frame
    |       |-- UnsupportedVersion        the two sides speak different protocol versions
    |       |-- OutOfOrder                a valid frame at the wrong time
    |       `-- CollectiveMismatch        ranks disagree on what a collective is
    `-- JobAborted                        restart from a checkpoint
        |-- StaleInstance                 the job was restarted; this is an old instance
        |-- WorkerLost                    a rank died or was cut off
        |-- WorkerFailed                  a rank had an error of its own and can no longer take part
        |-- ReplicasDiffer                the ranks no longer have the same weights
        `-- PeerLeft                      a rank closed while others still had collectives

Nothing is wrong with the job after a RetryableError. But once a collective has been issued, ranks may differ by the
last one, so restore a checkpoint on all ranks first.

Errors that cross the wire carry a `code` of the schema's ErrorCode. `from_code` turns it back into an error.
"""

from __future__ import annotations

from typing import ClassVar

from reduction.text import printable


class ReductionError(Exception):
    """Root of all errors; `code` is its number on the wire."""

    code: ClassVar[int] = 14


class ConfigError(ReductionError, ValueError):
    """A setting, argument or command line option is wrong; the message says which value and limit."""


class ClosedError(ReductionError):
    """The communicator was closed; make a new state."""


class Unauthenticated(ReductionError):
    """A token is missing or wrong, or one side does not accept the other's certificate."""

    code = 15


class RetryableError(ReductionError):
    """Nothing is wrong with the job itself. The same call may succeed later on a new state.

    Once a collective has been issued, ranks may differ by the last one: restore a checkpoint on all ranks first.
    """


class ReducerUnavailable(RetryableError):
    """No reducer could be reached in time; the message lists the addresses tried."""

    code = 1


class ReducerAbsent(ReducerUnavailable):
    """The reducer's host answered that nothing listens there, so the process is gone, not just the connection."""


class ReducerDraining(RetryableError):
    """The reducer was told to stop and takes no new jobs."""

    code = 2


class ResourceExhausted(RetryableError):
    """A process is out of memory, descriptors or threads, or a reducer takes no more; the message names the limit."""

    code = 3


class JobBusy(RetryableError):
    """A live job of this name exists; choose another name or wait for its end."""

    code = 4


class RankTaken(JobBusy):
    """Another live process already claims this rank of the job."""

    code = 5


class CollectiveTimeout(RetryableError):
    """A collective did not finish within `timeout_s` of its first push.

    Some ranks may have its result and others not: restore a checkpoint on all ranks before continuing. If
    `Work.wait(timeout)` raised it, the collective continues, and no checkpoint is needed.
    """

    code = 6


class WorkersMissing(CollectiveTimeout):
    """Ranks did not reach the first collective, or not return to it, within `timeout_s`; the message names them."""

    code = 18


class DataCorrupted(RetryableError):
    """A push or result does not match its checksum; this ends the stream, not the job."""

    code = 16


class ProtocolError(ReductionError):
    """A rule of proto/README.md was broken; retrying cannot help."""


class LocalProtocolError(ProtocolError):
    """This process broke a rule, which is a bug here."""


class RemoteProtocolError(ProtocolError):
    """The other side broke a rule because of a bug there or version skew."""


class MalformedFrame(RemoteProtocolError):
    """Bytes that are not a valid frame, or a field outside its limits."""

    code = 7


class UnsupportedVersion(RemoteProtocolError):
    """The peer speaks another protocol version."""

    code = 8


class OutOfOrder(RemoteProtocolError):
    """A valid frame that this state of the protocol does not allow."""

    code = 9


class CollectiveMismatch(RemoteProtocolError):
    """Ranks disagree on shape, dtype, op, layout or world size; the message names the ranks."""

    code = 10


class JobAborted(ReductionError):
    """The job cannot continue; restart it from its last checkpoint."""


class StaleInstance(JobAborted):
    """The job was restarted under the same name; messages of the old instance are refused."""

    code = 11


class WorkerLost(JobAborted):
    """A rank died or was cut off from every reducer; the message names rank and host."""

    code = 12


class WorkerFailed(JobAborted):
    """A rank had an error of its own in the middle of a step; the message names the rank and the cause."""

    code = 17


class ReplicasDiffer(JobAborted):
    """The ranks no longer have the same weights; the message names ranks and the first tensor that differs."""

    code = 19


class PeerLeft(JobAborted):
    """A rank left while others still had collectives; the message names it."""

    code = 13


_BY_CODE: dict[int, type[ReductionError]] = {
    error.code: error
    for error in (
        Unauthenticated,
        ReducerUnavailable,
        ReducerDraining,
        ResourceExhausted,
        JobBusy,
        RankTaken,
        CollectiveTimeout,
        MalformedFrame,
        UnsupportedVersion,
        OutOfOrder,
        CollectiveMismatch,
        StaleInstance,
        WorkerLost,
        PeerLeft,
        DataCorrupted,
        WorkerFailed,
        WorkersMissing,
        ReplicasDiffer,
    )
}


_BY_NAME: dict[str, type[ReductionError]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, ReductionError)
}


def from_name(name: str, message: str) -> ReductionError:
    """Return the error that a peer named by its class, or a ReductionError if the name is unknown."""
    return _BY_NAME.get(name, ReductionError)(printable(message))


def code_to_others(error: ReductionError) -> int:
    """Return the code that a rank sends to the others for the error that ended it.

    One of our errors without a code is the rank's own. An error of unknown type came from elsewhere.
    """
    is_own = error.code == ReductionError.code and type(error) is not ReductionError
    return WorkerFailed.code if is_own else error.code


def from_code(code: int, message: str) -> ReductionError:
    """Return the error that a peer reported. A code of a newer version becomes a ReductionError."""
    return _BY_CODE.get(code, ReductionError)(printable(message))
