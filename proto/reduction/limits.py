"""Every bound of the protocol, once. The table "Limits" of proto/README.md says the same; a test compares the two.

Both sides import from here, so a reducer refuses exactly what a worker would not send. What a worker chooses within
these bounds is in `worker_plugin/core/flow/credit.py`, and the formula that cuts a collective is in `layout.py`.
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
#: A larger chunk would gain nothing: it only takes memory, and leaves the caches of the processor.
CHUNK_BYTES_MAX = 4 * MIB
#: Elements of one collective. This keeps the index of a chunk within 32 bits even with the smallest
#: chunks.
NUMEL_MAX = 1 << 39
#: Credit of one rank at one reducer. A rank's credit is never less than one chunk either.
CREDIT_BYTES_MAX = 1024 * MIB
#: A worker asks for this credit if its user asks for none. Only long paths need so much: it is 100 ms
#: of 2.7 Gbit/s.
CREDIT_BYTES_ASKED = 32 * MIB
#: A reducer grants this much of it before it thinks of other jobs. It is enough for short paths.
CREDIT_BYTES_USUAL = 4 * MIB
#: A reducer that cannot grant this much of what was asked for refuses the job.
CREDIT_BYTES_LEAST = MIB
#: Each push takes at least this from the credit, so that the number of empty pushes is bounded as
#: well.
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
#: The rate of a host's link in Mbit/s. No card is a hundred times as fast as the fastest of today.
LINK_MBIT_MAX = 100_000_000
#: An epoch is a positive number of 63 bits, so it also fits a signed integer.
EPOCH_MAX = (1 << 63) - 1

# ---- names ----

#: Instances, incarnations and nonces are random, and long enough that two never meet by chance.
ID_BYTES = 16
#: A job's name stands in lines of the log and in tables, so it has to stay readable.
JOB_NAME_BYTES_MAX = 200
#: What tells one run of a job from another: a random number, or what a scheduler calls it.
RUN_BYTES_MAX = 200
#: A worker describes a longer list of ranks by its beginning and a hash
#: (`worker_plugin/discovery/rank_group.py`).
GROUP_BYTES_MAX = 100
#: Host names and addresses. A DNS name has at most 253 characters.
HOST_BYTES_MAX = 255
#: A worker describes the reducers that it was told of by the beginning of a longer list
#: (`worker_plugin/discovery/named.py`). An Abort has room for two of them.
NAMED_BYTES_MAX = 600
#: The message of an Abort is cut to this length; it also has to fit the status of a gRPC call.
MESSAGE_CHARS_MAX = 2000
#: A Waiting names only the first of the ranks that are missing, because people read it.
WAITING_RANKS_MAX = 8
#: A port of TCP has 16 bits.
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
#: frame with more. A frame of 4 MiB that is nothing but fields of two bytes took seconds and 290 MB
#: in Python, and takes that parser 0.1 s.
FRAME_FIELDS_MAX = 64
#: Jobs in the answer of a Status call. gRPC lets that answer have no more than 4 MiB.
STATUS_JOBS_MAX = 1 << 16
#: Seconds that a reducer may be told to drain, a week.
DRAIN_S_MAX = 604_800
#: Events that a reducer remembers, and names in the answer of a Status call. They are for people who
#: look every second or two.
EVENTS_MAX = 64
#: Jobs that are over which a reducer remembers, for the same people.
ENDED_JOBS_MAX = 16
#: The text of an event is cut to this length, because it is a line of a screen.
EVENT_CHARS_MAX = 200
#: The job of an event. A title is the name of the job and its process group.
EVENT_JOB_BYTES_MAX = JOB_NAME_BYTES_MAX + GROUP_BYTES_MAX + 16

# ---- a reducer's calls and connections ----

#: Streams on a reducer, over all of its connections.
STREAMS_MAX = 8192
#: gRPC connections, and also calls of all kinds. They are more than the streams, so that a rank
#: that is one too many hears why. The rest is for health checks and status.
CALLS_MAX = STREAMS_MAX + 1024
#: A worker's state opens one stream, and another one when that broke. Each may have LOOKAHEAD_BYTES
#: that nobody reads.
STREAMS_PER_CONNECTION_MAX = 8
#: gRPC receives this much of a stream before it is asked for. 128 or 256 KiB made sums of 1 MiB 12
#: % slower over gRPC.
LOOKAHEAD_BYTES = 512 * KIB
#: Calls whose first message is being read. Each of them may hold FRAME_BYTES_MAX twice.
FIRST_MESSAGES_MAX = 4
#: Seconds that a call has for its first message when its turn has come.
FIRST_MESSAGE_S = 10.0
#: The same while other calls wait for a turn, so that an idle stranger keeps nobody out.
FIRST_MESSAGE_CROWDED_S = 1.0
#: Calls that wait for their turn to send a first message. Each of them may hold LOOKAHEAD_BYTES.
FIRST_MESSAGES_WAITING_MAX = 1024
#: Seconds that a call may wait for its turn.
FIRST_MESSAGE_TURN_S = 30.0
#: A request for health or reflection. It names a service, a symbol or a file.
SERVICE_REQUEST_BYTES_MAX = 4 * KIB
#: Seconds after which a gRPC connection without a call is closed.
CONNECTION_IDLE_S = 60.0
#: Seconds that a new connection has to become one of HTTP/2.
CONNECTION_HANDSHAKE_S = 30.0
#: The key of a data connection. Its first half finds the offer, and the whole of it is compared.
DATA_KEY_BYTES = 32
#: Seconds that a new data connection has to show its key.
DATA_KEY_S = 10.0
#: Data connections that have shown no key yet. One more is closed at once.
DATA_STRANGERS_MAX = 256

# ---- the HTTP port of metrics ----

#: Connections at a time. One more ends the oldest, of those that are not being answered if there are any.
HTTP_CONNECTIONS_MAX = 32
#: A request without its body.
HTTP_HEAD_BYTES_MAX = 8 * KIB
#: Seconds that a connection has to send its request.
HTTP_REQUEST_S = 5.0
#: Seconds until the answer is sent. That of metrics waits for the loops of several processes.
HTTP_ANSWER_S = 15.0

# ---- shared memory ----

#: Regions that one side of a connection may show.
REGIONS_MAX = 4096
#: Bytes of a region: the largest is a whole collective.
REGION_BYTES_MAX = 1 << 42
#: Regions that one process maps for all of its peers, half of what the kernel lets a process map by default. Each costs
#: a descriptor as well, of which half are for connections.
MAPPED_REGIONS_MAX = 1 << 15
#: Descriptors that have come on a connection and were not used.
DESCRIPTORS_WAITING_MAX = 16

# ---- a reducer's processes and memory ----

#: Processes of one `reducer serve`.
PROCESSES_MAX = 256
#: A Welcome names all processes of the same `reducer serve` but its own.
SIBLINGS_MAX = PROCESSES_MAX - 1
#: A job reserves this beside the credit: for its tables, and for one chunk at each stage of the
#: pipeline.
JOB_FIXED_BYTES = MIB
#: A reducer remembers the latest failed jobs, for ranks that were away when it happened.
FAILURES_MAX = 64
#: Training jobs whose counters a reducer keeps for its metrics; those that are over go first.
JOB_TOTALS_MAX = 16
#: Ranks of a job, and hosts of a job, that have series of their own in a reducer's metrics.
RANK_TOTALS_MAX = 16
HOST_TOTALS_MAX = 64
#: Control frames that a stream may leave unread, beside its results.
UNREAD_CONTROL_BYTES_MAX = MIB
#: While a stream has left more than this unread, reports of who is there wait. Only the newest of
#: each rank is kept.
UNREAD_NEWS_BYTES = 64 * KIB

# ---- the lobby of elastic jobs ----

#: Workers of one job that may be in the lobby of a reducer, with those that have just gone.
LOBBY_ENTRIES_MAX = 1024
#: What a worker says of itself: two lists of workers, 60 bytes for each of them.
LOBBY_ENTRY_BYTES_MAX = 64 * KIB
#: The same with the job's name and the worker's nonce.
LOBBY_REQUEST_BYTES_MAX = LOBBY_ENTRY_BYTES_MAX + KIB
#: An answer ends with the entry that makes it so long; what is left follows in the next one.
LOBBY_ANSWER_BYTES = 64 * KIB
#: What a worker that does not read is counted as, beside its entry: an answer, and 64 KiB that gRPC takes before it
#: lets its caller wait.
LOBBY_WORKER_BYTES = LOBBY_ANSWER_BYTES + 64 * KIB
#: What the workers of all jobs may cost a reducer process, which has no more than a quarter of its memory for it.
LOBBY_BYTES_MAX = 256 * MIB
#: What a worker may say at once, and per second in the long run. Our workers keep to half of the former.
LOBBY_SAYS_MAX = 64
LOBBY_SAYS_PER_S = 1.0
#: Seconds after which a reducer forgets a worker that says nothing.
LOBBY_S = 10.0

# ---- a worker's addresses ----

#: Addresses of one job, counted after ranges have been written out.
ADDRESSES_MAX = 4096
#: Links of a rank: to its own addresses, to siblings, and to what names come to stand for.
LINKS_MAX = 4096

# ---- acknowledgements ----

#: Seconds that `held` waits for a push, and `minimum` for a result, that could carry it. With a
#: tick this is 50 ms.
ACK_DELAY_S = 0.01

# ---- files ----

#: A token travels in the metadata of a call, of which gRPC takes 8 KiB by default.
TOKEN_CHARS_MAX = 1024
#: Files of tokens, certificates, keys and addresses are read into memory at once.
FILE_BYTES_MAX = MIB
