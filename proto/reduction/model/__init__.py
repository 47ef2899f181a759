"""The values of the protocol: formats of elements, parts of a job, frames, and the status of a reducer.

Frames are what cores, engine and transports exchange. `reduction.wire` turns them into bytes and back, and is the only
package that knows the schema.
"""

from reduction.model.frames import (
    PROTOCOL_VERSION,
    Abort,
    Ack,
    Configure,
    Goodbye,
    Hello,
    Join,
    Minimum,
    Moved,
    Peers,
    Push,
    ReducerFrame,
    Result,
    Start,
    Waiting,
    Welcome,
    WorkerFrame,
)
from reduction.model.job import (
    NOWHERE,
    Collective,
    Configuration,
    Member,
    NamedReducers,
    Peer,
    Place,
    Presence,
    job_title,
)
from reduction.model.lobby import LobbyEntry, LobbyRequest
from reduction.model.status import (
    Event,
    EventKind,
    JobStatus,
    LastRank,
    Planes,
    ReducerStatus,
    WaitTimes,
)
from reduction.model.wire_sizes import FORMATS, DType, Format, ReduceOp

__all__ = [
    "FORMATS",
    "NOWHERE",
    "PROTOCOL_VERSION",
    "Abort",
    "Ack",
    "Collective",
    "Configuration",
    "Configure",
    "DType",
    "Event",
    "EventKind",
    "Format",
    "Goodbye",
    "Hello",
    "JobStatus",
    "Join",
    "LastRank",
    "LobbyEntry",
    "LobbyRequest",
    "Member",
    "Minimum",
    "Moved",
    "NamedReducers",
    "Peer",
    "Peers",
    "Place",
    "Planes",
    "Presence",
    "Push",
    "ReduceOp",
    "ReducerFrame",
    "ReducerStatus",
    "Result",
    "Start",
    "WaitTimes",
    "Waiting",
    "Welcome",
    "WorkerFrame",
    "job_title",
]
