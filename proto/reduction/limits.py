"""All bounds of the protocol. A test compares them with the table "Limits" of proto/README.md.

Both sides import these, so a reducer refuses exactly the frames that a worker would not send. A worker's choices
within these bounds are in `worker_plugin/core/flow/credit.py`, and `layout.py` has the formula that cuts a collective.
"""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20

# ---- chunks, credit, membership ----

#: The chunk size is a multiple of this, so that each chunk begins at an element of every dtype and
#: at a codec's block.
CHUNK_BYTES_MULTIPLE = KIB
#: A chunk cannot be smaller than the multiple of its size.
CHUNK_BYTES_MIN = CHUNK_BYTES_MULTIPLE
#: A larger chunk would gain nothing. It only takes memory, and no longer fits the processor's caches.
CHUNK_BYTES_MAX = 4 * MIB
#: Elements of one collective. This keeps the index of a chunk within 32 bits even with the smallest
#: chunks.
NUMEL_MAX = 1 << 39
#: Credit of one rank at one reducer. A rank's credit is never less than one chunk either.
CREDIT_BYTES_MAX = 1024 * MIB
#: A worker requests this credit unless its user sets one. It covers 100 ms at 2.7 Gbit/s, which only
#: long paths need.
CREDIT_BYTES_ASKED = 32 * MIB
#: A reducer grants this much of the requested credit without regard to other jobs. It is enough for short paths.
CREDIT_BYTES_USUAL = 4 * MIB
#: A reducer that cannot grant this much of the requested credit refuses the job.
CREDIT_BYTES_LEAST = MIB
#: Each push takes at least this much credit, so that the number of empty pushes is also bounded.
CHARGE_BYTES_MIN = KIB
#: Ranks of a job, and processes of a node. A Peers frame that names all of them must fit
#: REDUCER_CONTROL_BYTES_MAX.
WORLD_SIZE_MAX = 4096
#: Reducers of a configuration. A Hello that names all of them must fit WORKER_CONTROL_BYTES_MAX.
MEMBERS_MAX = 1024
#: Addresses of reducers that were added while the job runs. With MEMBERS_MAX members they must fit
#: WORKER_CONTROL_BYTES_MAX.
ADDED_MAX = 128
#: The weight of a member is a number of 16 bits.
WEIGHT_MAX = (1 << 16) - 1
#: The rate of a host's link in Mbit/s. No card will be a hundred times as fast as today's fastest.
LINK_MBIT_MAX = 100_000_000
#: An epoch is a positive number of 63 bits, so it also fits a signed integer.
EPOCH_MAX = (1 << 63) - 1

# ---- names ----

#: Instances, incarnations and nonces are random, and long enough to never collide.
ID_BYTES = 16
#: A job's name appears in log lines and tables, so it has to stay readable.
JOB_NAME_BYTES_MAX = 200
#: Identifies one run of a job: a random number, or the scheduler's name for it.
RUN_BYTES_MAX = 200
#: A worker describes a longer list of ranks by its beginning and a hash
#: (`worker_plugin/discovery/rank_group.py`).
GROUP_BYTES_MAX = 100
#: Host names and addresses. A DNS name has at most 253 characters.
HOST_BYTES_MAX = 255
#: A worker describes a longer list of its configured reducers by the beginning of the list
#: (`worker_plugin/discovery/named.py`). An Abort has room for two such descriptions.
NAMED_BYTES_MAX = 600
#: The message of an Abort is cut to this length; it also has to fit the status of a gRPC call.
MESSAGE_CHARS_MAX = 2000
#: A Waiting names only the first few missing ranks, because people read it.
WAITING_RANKS_MAX = 8
#: A TCP port has 16 bits.
PORT_MAX = (1 << 16) - 1

# ---- frames ----

#: The largest frame on the wire is a chunk with its header.
FRAME_BYTES_MAX = CHUNK_BYTES_MAX + 256 * KIB
#: A worker's frames other than Push. The largest is a Hello with MEMBERS_MAX members, 0.3 MB. Two
#: bytes of a frame may become an object of 62 bytes, so this bounds the memory that decoding takes.
WORKER_CONTROL_BYTES_MAX = 320 * KIB
#: A reducer's frames other than Result. The largest is a Peers with WORLD_SIZE_MAX ranks, 1.2 MB.
REDUCER_CONTROL_BYTES_MAX = 2 * MIB
#: Fields of a Push or Result that are parsed in Python; ours have 6. The generated parser reads a
#: frame with more. A 4 MiB frame made only of two-byte fields took seconds and 290 MB in Python, but
#: takes the generated parser 0.1 s.
FRAME_FIELDS_MAX = 64
#: Jobs in the answer of a Status call. gRPC limits that answer to 4 MiB.
STATUS_JOBS_MAX = 1 << 16
#: Seconds that a reducer may be told to drain, a week.
DRAIN_S_MAX = 604_800
#: Events that a reducer remembers and lists in the answer of a Status call. They are for people who
#: look every second or two.
EVENTS_MAX = 64
#: Ended jobs that a reducer remembers, for people who watch its status.
ENDED_JOBS_MAX = 16
#: The text of an event is cut to this length, because it is one line on a screen.
EVENT_CHARS_MAX = 200
#: The job of an event. A title is the name of the job and its process group.
EVENT_JOB_BYTES_MAX = JOB_NAME_BYTES_MAX + GROUP_BYTES_MAX + 16

# ---- a reducer's calls and connections ----

#: Streams on a reducer, over all of its connections.
STREAMS_MAX = 8192
#: gRPC connections, and also calls of all kinds. The limit exceeds that of streams, so that one rank
#: too many is told why. The rest is for health checks and status.
CALLS_MAX = STREAMS_MAX + 1024
#: A worker's state opens one stream, and another if that breaks. Each may have LOOKAHEAD_BYTES of
#: unread data.
STREAMS_PER_CONNECTION_MAX = 8
#: gRPC receives this much of a stream ahead of reads. 128 or 256 KiB made sums of 1 MiB 12 % slower
#: over gRPC.
LOOKAHEAD_BYTES = 512 * KIB
#: Calls whose first message is being read. Each may hold FRAME_BYTES_MAX twice.
FIRST_MESSAGES_MAX = 4
#: Seconds that a call has for its first message once its turn has come.
FIRST_MESSAGE_S = 10.0
#: Seconds for a first message while other calls wait for a turn, so that an idle stranger blocks no one.
FIRST_MESSAGE_CROWDED_S = 1.0
#: Calls that wait for their turn to send a first message. Each may hold LOOKAHEAD_BYTES.
FIRST_MESSAGES_WAITING_MAX = 1024
#: Seconds that a call may wait for its turn.
FIRST_MESSAGE_TURN_S = 30.0
#: A request for health or reflection. It names a service, a symbol or a file.
SERVICE_REQUEST_BYTES_MAX = 4 * KIB
#: Seconds after which a gRPC connection without a call is closed.
CONNECTION_IDLE_S = 60.0
#: Seconds that a new connection has for its HTTP/2 handshake.
CONNECTION_HANDSHAKE_S = 30.0
#: The key of a data connection. Its first half finds the offer, and then the whole key is compared.
DATA_KEY_BYTES = 32
#: Seconds that a new data connection has to show its key.
DATA_KEY_S = 10.0
#: Data connections that have not shown a key yet. Further ones are closed immediately.
DATA_STRANGERS_MAX = 256

# ---- the HTTP port for metrics ----

#: Simultaneous connections. One more ends the oldest, preferably one that is not being answered.
HTTP_CONNECTIONS_MAX = 32
#: Size of a request without its body.
HTTP_HEAD_BYTES_MAX = 8 * KIB
#: Seconds that a connection has to send its request.
HTTP_REQUEST_S = 5.0
#: Seconds until the answer is sent. A metrics answer waits for the loops of several processes.
HTTP_ANSWER_S = 15.0

# ---- shared memory ----

#: Regions that one side of a connection may show.
REGIONS_MAX = 4096
#: Bytes of a region: the largest is a whole collective.
REGION_BYTES_MAX = 1 << 42
#: Regions that one process maps for all of its peers, half of the kernel's default limit. Each also costs a
#: descriptor, and half of the descriptors are for connections.
MAPPED_REGIONS_MAX = 1 << 15
#: Descriptors that were received on a connection and have not been used.
DESCRIPTORS_WAITING_MAX = 16

# ---- a reducer's processes and memory ----

#: Processes of one `reducer serve`.
PROCESSES_MAX = 256
#: A Welcome names all other processes of the same `reducer serve`.
SIBLINGS_MAX = PROCESSES_MAX - 1
#: A job reserves this in addition to the credit, for its tables and for one chunk at each stage of the
#: pipeline.
JOB_FIXED_BYTES = MIB
#: A reducer remembers this many recently failed jobs, for ranks that were disconnected at the time.
FAILURES_MAX = 64
#: Training jobs whose counters a reducer keeps for its metrics. Ended jobs are dropped first.
JOB_TOTALS_MAX = 16
#: Ranks of a job, and hosts of a job, that have their own series in a reducer's metrics.
RANK_TOTALS_MAX = 16
HOST_TOTALS_MAX = 64
#: Control frames that a stream may leave unread, in addition to its results.
UNREAD_CONTROL_BYTES_MAX = MIB
#: While a stream has more than this unread, presence reports wait. Only the newest report of each rank
#: is kept.
UNREAD_NEWS_BYTES = 64 * KIB

# ---- the lobby of elastic jobs ----

#: Workers of one job in the lobby of a reducer, including those that have just left.
LOBBY_ENTRIES_MAX = 1024
#: A worker's entry: two lists of workers with 60 bytes per worker.
LOBBY_ENTRY_BYTES_MAX = 64 * KIB
#: A worker's entry with the job's name and the worker's nonce.
LOBBY_REQUEST_BYTES_MAX = LOBBY_ENTRY_BYTES_MAX + KIB
#: An answer ends with the entry that brings it to this length; the remaining entries follow in the next answer.
LOBBY_ANSWER_BYTES = 64 * KIB
#: Memory charged for a worker that does not read, in addition to its entry: an answer, and 64 KiB that gRPC buffers
#: before its caller has to wait.
LOBBY_WORKER_BYTES = LOBBY_ANSWER_BYTES + 64 * KIB
#: Memory of a reducer process for the workers of all jobs. It is also limited to a quarter of the process's memory.
LOBBY_BYTES_MAX = 256 * MIB
#: Entries that a worker may send in a burst, and per second in the long run. Our workers use half of the burst.
LOBBY_SAYS_MAX = 64
LOBBY_SAYS_PER_S = 1.0
#: Seconds after which a reducer forgets a silent worker.
LOBBY_S = 10.0

# ---- a worker's addresses ----

#: Addresses of one job, counted after ranges have been written out.
ADDRESSES_MAX = 4096
#: Links of a rank: to its own addresses, to siblings, and to addresses that names resolve to later.
LINKS_MAX = 4096

# ---- acknowledgements ----

#: Seconds that `held` waits for a push that could carry it, and `minimum` for a result. With a tick
#: this is 50 ms.
ACK_DELAY_S = 0.01

# ---- files ----

#: A token travels in the metadata of a call, which gRPC limits to 8 KiB by default.
TOKEN_CHARS_MAX = 1024
#: Files of tokens, certificates, keys and addresses are read into memory whole.
FILE_BYTES_MAX = MIB
