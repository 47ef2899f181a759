from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Presence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRESENCE_UNSPECIFIED: _ClassVar[Presence]
    PRESENCE_PRESENT: _ClassVar[Presence]
    PRESENCE_LOST: _ClassVar[Presence]
    PRESENCE_LEFT: _ClassVar[Presence]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_REDUCER_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_REDUCER_DRAINING: _ClassVar[ErrorCode]
    ERROR_CODE_RESOURCE_EXHAUSTED: _ClassVar[ErrorCode]
    ERROR_CODE_JOB_BUSY: _ClassVar[ErrorCode]
    ERROR_CODE_RANK_TAKEN: _ClassVar[ErrorCode]
    ERROR_CODE_COLLECTIVE_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_MALFORMED_FRAME: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_OUT_OF_ORDER: _ClassVar[ErrorCode]
    ERROR_CODE_COLLECTIVE_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_INSTANCE: _ClassVar[ErrorCode]
    ERROR_CODE_WORKER_LOST: _ClassVar[ErrorCode]
    ERROR_CODE_PEER_LEFT: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_CODE_DATA_CORRUPTED: _ClassVar[ErrorCode]
    ERROR_CODE_WORKER_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_WORKERS_MISSING: _ClassVar[ErrorCode]
    ERROR_CODE_REPLICAS_DIFFER: _ClassVar[ErrorCode]

class ReduceOp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REDUCE_OP_UNSPECIFIED: _ClassVar[ReduceOp]
    REDUCE_OP_SUM: _ClassVar[ReduceOp]
    REDUCE_OP_AVG: _ClassVar[ReduceOp]
    REDUCE_OP_MIN: _ClassVar[ReduceOp]
    REDUCE_OP_MAX: _ClassVar[ReduceOp]
    REDUCE_OP_PRODUCT: _ClassVar[ReduceOp]

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_FLOAT64: _ClassVar[DType]
    DTYPE_BFLOAT16: _ClassVar[DType]
    DTYPE_FLOAT16: _ClassVar[DType]
    DTYPE_INT32: _ClassVar[DType]
    DTYPE_INT64: _ClassVar[DType]
    DTYPE_UINT8: _ClassVar[DType]
    DTYPE_INT8: _ClassVar[DType]
    DTYPE_BOOL: _ClassVar[DType]
    DTYPE_INT8_BLOCK: _ClassVar[DType]
    DTYPE_FP8_BLOCK: _ClassVar[DType]
    DTYPE_TOPK: _ClassVar[DType]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_ENDED: _ClassVar[Outcome]
    OUTCOME_FAILED: _ClassVar[Outcome]
    OUTCOME_LOST: _ClassVar[Outcome]

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_KIND_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_KIND_JOINED: _ClassVar[EventKind]
    EVENT_KIND_EPOCH: _ClassVar[EventKind]
    EVENT_KIND_LOST: _ClassVar[EventKind]
    EVENT_KIND_FAILED: _ClassVar[EventKind]
    EVENT_KIND_ENDED: _ClassVar[EventKind]
    EVENT_KIND_DRAINING: _ClassVar[EventKind]
PRESENCE_UNSPECIFIED: Presence
PRESENCE_PRESENT: Presence
PRESENCE_LOST: Presence
PRESENCE_LEFT: Presence
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_REDUCER_UNAVAILABLE: ErrorCode
ERROR_CODE_REDUCER_DRAINING: ErrorCode
ERROR_CODE_RESOURCE_EXHAUSTED: ErrorCode
ERROR_CODE_JOB_BUSY: ErrorCode
ERROR_CODE_RANK_TAKEN: ErrorCode
ERROR_CODE_COLLECTIVE_TIMEOUT: ErrorCode
ERROR_CODE_MALFORMED_FRAME: ErrorCode
ERROR_CODE_UNSUPPORTED_VERSION: ErrorCode
ERROR_CODE_OUT_OF_ORDER: ErrorCode
ERROR_CODE_COLLECTIVE_MISMATCH: ErrorCode
ERROR_CODE_STALE_INSTANCE: ErrorCode
ERROR_CODE_WORKER_LOST: ErrorCode
ERROR_CODE_PEER_LEFT: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_UNAUTHENTICATED: ErrorCode
ERROR_CODE_DATA_CORRUPTED: ErrorCode
ERROR_CODE_WORKER_FAILED: ErrorCode
ERROR_CODE_WORKERS_MISSING: ErrorCode
ERROR_CODE_REPLICAS_DIFFER: ErrorCode
REDUCE_OP_UNSPECIFIED: ReduceOp
REDUCE_OP_SUM: ReduceOp
REDUCE_OP_AVG: ReduceOp
REDUCE_OP_MIN: ReduceOp
REDUCE_OP_MAX: ReduceOp
REDUCE_OP_PRODUCT: ReduceOp
DTYPE_UNSPECIFIED: DType
DTYPE_FLOAT32: DType
DTYPE_FLOAT64: DType
DTYPE_BFLOAT16: DType
DTYPE_FLOAT16: DType
DTYPE_INT32: DType
DTYPE_INT64: DType
DTYPE_UINT8: DType
DTYPE_INT8: DType
DTYPE_BOOL: DType
DTYPE_INT8_BLOCK: DType
DTYPE_FP8_BLOCK: DType
DTYPE_TOPK: DType
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_ENDED: Outcome
OUTCOME_FAILED: Outcome
OUTCOME_LOST: Outcome
EVENT_KIND_UNSPECIFIED: EventKind
EVENT_KIND_JOINED: EventKind
EVENT_KIND_EPOCH: EventKind
EVENT_KIND_LOST: EventKind
EVENT_KIND_FAILED: EventKind
EVENT_KIND_ENDED: EventKind
EVENT_KIND_DRAINING: EventKind

class WorkerFrame(_message.Message):
    __slots__ = ("join", "hello", "push", "ack", "goodbye", "abort", "moved", "link_rate")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    LINK_RATE_FIELD_NUMBER: _ClassVar[int]
    join: Join
    hello: Hello
    push: Push
    ack: Ack
    goodbye: Goodbye
    abort: Abort
    moved: Moved
    link_rate: LinkRate
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., push: _Optional[_Union[Push, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., link_rate: _Optional[_Union[LinkRate, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("protocol", "job", "instance", "rank", "world_size", "nonce", "host", "minimum", "credit_bytes", "wire_dtype", "local_size", "group", "place", "named", "run", "life_port")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LIFE_PORT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: str
    instance: bytes
    rank: int
    world_size: int
    nonce: bytes
    host: str
    minimum: int
    credit_bytes: int
    wire_dtype: int
    local_size: int
    group: str
    place: Place
    named: NamedReducers
    run: str
    life_port: int
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[str] = ..., instance: _Optional[bytes] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., nonce: _Optional[bytes] = ..., host: _Optional[str] = ..., minimum: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., wire_dtype: _Optional[int] = ..., local_size: _Optional[int] = ..., group: _Optional[str] = ..., place: _Optional[_Union[Place, _Mapping]] = ..., named: _Optional[_Union[NamedReducers, _Mapping]] = ..., run: _Optional[str] = ..., life_port: _Optional[int] = ...) -> None: ...

class NamedReducers(_message.Message):
    __slots__ = ("text", "count")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    text: str
    count: int
    def __init__(self, text: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("configuration", "held")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    configuration: Configuration
    held: int
    def __init__(self, configuration: _Optional[_Union[Configuration, _Mapping]] = ..., held: _Optional[int] = ...) -> None: ...

class Push(_message.Message):
    __slots__ = ("epoch", "seq", "chunk", "collective", "held", "crc32c", "payload")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    chunk: int
    collective: Collective
    held: int
    crc32c: int
    payload: bytes
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., chunk: _Optional[int] = ..., collective: _Optional[_Union[Collective, _Mapping]] = ..., held: _Optional[int] = ..., crc32c: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Collective(_message.Message):
    __slots__ = ("op", "dtype", "numel", "fingerprint")
    OP_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NUMEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    op: ReduceOp
    dtype: DType
    numel: int
    fingerprint: int
    def __init__(self, op: _Optional[_Union[ReduceOp, str]] = ..., dtype: _Optional[_Union[DType, str]] = ..., numel: _Optional[int] = ..., fingerprint: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: int
    def __init__(self, held: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("held", "minimum")
    HELD_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    held: int
    minimum: int
    def __init__(self, held: _Optional[int] = ..., minimum: _Optional[int] = ...) -> None: ...

class ReducerFrame(_message.Message):
    __slots__ = ("welcome", "configure", "start", "result", "minimum", "peers", "abort", "moved", "waiting", "link_rate")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LINK_RATE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    configure: Configuration
    start: Start
    result: Result
    minimum: Minimum
    peers: Peers
    abort: Abort
    moved: Moved
    waiting: Waiting
    link_rate: LinkRate
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., configure: _Optional[_Union[Configuration, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., minimum: _Optional[_Union[Minimum, _Mapping]] = ..., peers: _Optional[_Union[Peers, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., link_rate: _Optional[_Union[LinkRate, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("incarnation", "credit_bytes", "data_port", "data_key", "siblings", "place")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    DATA_KEY_FIELD_NUMBER: _ClassVar[int]
    SIBLINGS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    credit_bytes: int
    data_port: int
    data_key: bytes
    siblings: _containers.RepeatedScalarFieldContainer[int]
    place: Place
    def __init__(self, incarnation: _Optional[bytes] = ..., credit_bytes: _Optional[int] = ..., data_port: _Optional[int] = ..., data_key: _Optional[bytes] = ..., siblings: _Optional[_Iterable[int]] = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Start(_message.Message):
    __slots__ = ("epoch", "minimum")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    minimum: int
    def __init__(self, epoch: _Optional[int] = ..., minimum: _Optional[int] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("epoch", "seq", "chunk", "minimum", "crc32c", "payload")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    chunk: int
    minimum: int
    crc32c: int
    payload: bytes
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., chunk: _Optional[int] = ..., minimum: _Optional[int] = ..., crc32c: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Minimum(_message.Message):
    __slots__ = ("minimum",)
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    minimum: int
    def __init__(self, minimum: _Optional[int] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("seq", "chunk", "waited_s", "count", "missing", "epoch")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    seq: int
    chunk: int
    waited_s: float
    count: int
    missing: _containers.RepeatedCompositeFieldContainer[Peer]
    epoch: int
    def __init__(self, seq: _Optional[int] = ..., chunk: _Optional[int] = ..., waited_s: _Optional[float] = ..., count: _Optional[int] = ..., missing: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., epoch: _Optional[int] = ...) -> None: ...

class Peers(_message.Message):
    __slots__ = ("peers", "draining")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    draining: bool
    def __init__(self, peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., draining: _Optional[bool] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("rank", "nonce", "host", "presence", "streams", "place", "ended")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    rank: int
    nonce: bytes
    host: str
    presence: Presence
    streams: int
    place: Place
    ended: bool
    def __init__(self, rank: _Optional[int] = ..., nonce: _Optional[bytes] = ..., host: _Optional[str] = ..., presence: _Optional[_Union[Presence, str]] = ..., streams: _Optional[int] = ..., place: _Optional[_Union[Place, _Mapping]] = ..., ended: _Optional[bool] = ...) -> None: ...

class LinkRate(_message.Message):
    __slots__ = ("bytes_per_s",)
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    bytes_per_s: int
    def __init__(self, bytes_per_s: _Optional[int] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("host", "link_mbit")
    HOST_FIELD_NUMBER: _ClassVar[int]
    LINK_MBIT_FIELD_NUMBER: _ClassVar[int]
    host: bytes
    link_mbit: int
    def __init__(self, host: _Optional[bytes] = ..., link_mbit: _Optional[int] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("instance", "epoch", "chunk_bytes", "members", "checksums", "added")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    instance: bytes
    epoch: int
    chunk_bytes: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    checksums: bool
    added: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, instance: _Optional[bytes] = ..., epoch: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., checksums: _Optional[bool] = ..., added: _Optional[_Iterable[str]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("address", "incarnation", "weight")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: bytes
    weight: int
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., weight: _Optional[int] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("version", "incarnation", "uptime_seconds", "draining", "memory_reserved_bytes", "memory_limit_bytes", "jobs", "siblings", "cpu_seconds", "resident_bytes", "events", "ended")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SIBLINGS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    version: str
    incarnation: bytes
    uptime_seconds: float
    draining: bool
    memory_reserved_bytes: int
    memory_limit_bytes: int
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    siblings: _containers.RepeatedScalarFieldContainer[int]
    cpu_seconds: float
    resident_bytes: int
    events: _containers.RepeatedCompositeFieldContainer[Event]
    ended: _containers.RepeatedCompositeFieldContainer[EndedJob]
    def __init__(self, version: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., uptime_seconds: _Optional[float] = ..., draining: _Optional[bool] = ..., memory_reserved_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., siblings: _Optional[_Iterable[int]] = ..., cpu_seconds: _Optional[float] = ..., resident_bytes: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[EndedJob, _Mapping]]] = ...) -> None: ...

class EndedJob(_message.Message):
    __slots__ = ("job", "group", "world_size", "id", "outcome", "collectives", "received_bytes", "sent_bytes", "seconds", "ago_s", "waited_for", "waited_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    AGO_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_FOR_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: str
    world_size: int
    id: bytes
    outcome: Outcome
    collectives: int
    received_bytes: int
    sent_bytes: int
    seconds: float
    ago_s: float
    waited_for: int
    waited_s: float
    def __init__(self, job: _Optional[str] = ..., group: _Optional[str] = ..., world_size: _Optional[int] = ..., id: _Optional[bytes] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., collectives: _Optional[int] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., ago_s: _Optional[float] = ..., waited_for: _Optional[int] = ..., waited_s: _Optional[float] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("number", "at_s", "kind", "job", "text")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_s: float
    kind: EventKind
    job: str
    text: str
    def __init__(self, number: _Optional[int] = ..., at_s: _Optional[float] = ..., kind: _Optional[_Union[EventKind, str]] = ..., job: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "world_size", "peers", "epoch", "started", "minimum", "open_slots", "reserved_bytes", "received_bytes", "sent_bytes", "chunk_bytes", "credit_bytes", "under_way_bytes", "last", "waits", "group", "planes", "waiting")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    OPEN_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    job: str
    world_size: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    epoch: int
    started: bool
    minimum: int
    open_slots: int
    reserved_bytes: int
    received_bytes: int
    sent_bytes: int
    chunk_bytes: int
    credit_bytes: int
    under_way_bytes: int
    last: _containers.RepeatedCompositeFieldContainer[LastRank]
    waits: Waits
    group: str
    planes: Planes
    waiting: Waiting
    def __init__(self, job: _Optional[str] = ..., world_size: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., epoch: _Optional[int] = ..., started: _Optional[bool] = ..., minimum: _Optional[int] = ..., open_slots: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., under_way_bytes: _Optional[int] = ..., last: _Optional[_Iterable[_Union[LastRank, _Mapping]]] = ..., waits: _Optional[_Union[Waits, _Mapping]] = ..., group: _Optional[str] = ..., planes: _Optional[_Union[Planes, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ...) -> None: ...

class Planes(_message.Message):
    __slots__ = ("grpc", "tcp", "shared")
    GRPC_FIELD_NUMBER: _ClassVar[int]
    TCP_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    grpc: int
    tcp: int
    shared: int
    def __init__(self, grpc: _Optional[int] = ..., tcp: _Optional[int] = ..., shared: _Optional[int] = ...) -> None: ...

class LastRank(_message.Message):
    __slots__ = ("rank", "chunks", "waited_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    chunks: int
    waited_s: float
    def __init__(self, rank: _Optional[int] = ..., chunks: _Optional[int] = ..., waited_s: _Optional[float] = ...) -> None: ...

class Waits(_message.Message):
    __slots__ = ("p50_s", "p90_s", "p99_s", "max_s")
    P50_S_FIELD_NUMBER: _ClassVar[int]
    P90_S_FIELD_NUMBER: _ClassVar[int]
    P99_S_FIELD_NUMBER: _ClassVar[int]
    MAX_S_FIELD_NUMBER: _ClassVar[int]
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    def __init__(self, p50_s: _Optional[float] = ..., p90_s: _Optional[float] = ..., p99_s: _Optional[float] = ..., max_s: _Optional[float] = ...) -> None: ...

class LobbyRequest(_message.Message):
    __slots__ = ("job", "nonce", "entry", "life_port", "takes_news")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    LIFE_PORT_FIELD_NUMBER: _ClassVar[int]
    TAKES_NEWS_FIELD_NUMBER: _ClassVar[int]
    job: str
    nonce: bytes
    entry: bytes
    life_port: int
    takes_news: bool
    def __init__(self, job: _Optional[str] = ..., nonce: _Optional[bytes] = ..., entry: _Optional[bytes] = ..., life_port: _Optional[int] = ..., takes_news: _Optional[bool] = ...) -> None: ...

class LobbyResponse(_message.Message):
    __slots__ = ("entries", "adds", "has_more")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ADDS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[LobbyEntry]
    adds: bool
    has_more: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[LobbyEntry, _Mapping]]] = ..., adds: _Optional[bool] = ..., has_more: _Optional[bool] = ...) -> None: ...

class LobbyEntry(_message.Message):
    __slots__ = ("nonce", "entry", "gone", "ended")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    entry: bytes
    gone: bool
    ended: bool
    def __init__(self, nonce: _Optional[bytes] = ..., entry: _Optional[bytes] = ..., gone: _Optional[bool] = ..., ended: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("timeout_seconds",)
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    timeout_seconds: float
    def __init__(self, timeout_seconds: _Optional[float] = ...) -> None: ...
