"""The settings of a `ReductionState`: the table of all settings, and how a state gets their values.

`PluginConfig` is the table; each of its fields is one setting. `Settings` repeats the names for
type checkers, which cannot read the table; a test compares the two. `help(ReductionState)` and
docs/settings.md are generated from the table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from reduction import limits
from reduction.errors import ConfigError
from reduction.process.place import link_mbit
from reduction.process.variables import nearest
from reduction.rails import SUFFIX_BYTES_MAX, is_rail
from reduction.security.tls import TlsFiles, tls_files
from reduction.transports.shared import is_possible

from worker_plugin.settings.environment import warn_of_unknown
from worker_plugin.settings.kinds import (
    Addresses,
    Choice,
    FilePath,
    LocalGroup,
    Seconds,
    Switch,
    Text,
    WholeNumber,
)
from worker_plugin.settings.rows import rows, setting
from worker_plugin.tensors.wire_dtype import WireFormat
from worker_plugin.tensors.wire_dtype import parse as parse_wire_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """All settings, checked. Rank, world size and job may stay None until the first collective."""

    reducers: tuple[str, ...] | None = setting(
        None,
        Addresses(),
        "A list or a comma-separated string of HOST:PORT, dns:NAME:PORT, file:PATH and the other forms of "
        "docs/platforms.md. If not set, they come from Vertex AI or SageMaker; if those name none either, private "
        "reducers start on the ranks' hosts.",
    )
    job: str | None = setting(
        None,
        Text(f"a string of 1 to {limits.JOB_NAME_BYTES_MAX} bytes"),
        "Name of the job, the same on all ranks; no other live job may have it. Rank 0 generates one if "
        "none is given.",
    )
    run: str | None = setting(
        None,
        Text(f"a string of 1 to {limits.RUN_BYTES_MAX} bytes"),
        "Distinguishes this run from other runs with the same job name. It is the same on all ranks and new for "
        "every run, such as the ID that a scheduler assigns. Used only if the ranks have neither a process group nor a "
        "store to meet through; rank 0 then warns if it is not set.",
    )
    rank: int | None = setting(
        None,
        WholeNumber(0, limits.WORLD_SIZE_MAX - 1),
        "Number of this rank. If not set, it comes from the process group.",
    )
    world_size: int | None = setting(
        None,
        WholeNumber(1, limits.WORLD_SIZE_MAX),
        "Number of ranks. If not set, it comes from the process group.",
    )
    transport: str = setting(
        "auto",
        Choice("auto", "tcp", "grpc"),
        'How gradients travel: "auto", "tcp" or "grpc".',
    )
    wire_dtype: str | None = setting(
        None,
        Text("a string such as 'bf16'", lambda name, text: parse_wire_dtype(text, name)),
        "Wire format for sums and averages of floating-point numbers. If not set, every tensor "
        'is sent in its own dtype. "bf16" and "fp16" are for float32; the sum is computed in float32 and '
        'rounded once. "int8", "fp8" and "topk:RATIO" ("topk" means 1 %) are for float32, bfloat16 and '
        "float16. They are lossy; DDP gradients get error feedback, and HSDP gradients get it with "
        "`add_error_feedback`.",
    )
    on_reducer_loss: str = setting(
        "reshard",
        Choice("reshard", "wait", "raise"),
        'What to do when a reducer is lost. "reshard": the others take over immediately, and the lost one '
        'rejoins when it is back. "wait": wait up to `join_timeout_s` for all reducers, or for those that '
        'their names then resolve to. "raise": the job fails. Rank 0\'s value counts.',
    )
    fallback: str | None = setting(
        None,
        Choice(None, "embedded"),
        'What to do when no reducer has been available for `join_timeout_s`. "embedded": rank 0 starts a '
        "private reducer on its host, and all ranks must run on that host. If not set, the job fails.",
    )
    timeout_s: float = setting(
        600.0,
        Seconds(),
        "Seconds from a collective's first push to CollectiveTimeout. It is also the time limit for ranks "
        "to join.",
    )
    stall_warn_s: float = setting(
        5.0,
        Seconds(),
        "Seconds without a result after which the oldest collective is logged as a warning. After this "
        "time a rank also reports which reducers or ranks it is waiting for, and names the same ones at most once "
        "per such interval.",
    )
    join_timeout_s: float = setting(
        60.0,
        Seconds(),
        "Seconds to wait for reducers that cannot be reached, at the start and after all were lost. It is also the "
        "time limit for answers of the torch.distributed store and of name servers.",
    )
    close_timeout_s: float = setting(
        5.0, Seconds(), "Seconds that `close` waits for ranks that may still need this one."
    )
    chunk_bytes: int | None = setting(
        None,
        WholeNumber(limits.CHUNK_BYTES_MIN, limits.CHUNK_BYTES_MAX, "bytes", limits.CHUNK_BYTES_MULTIPLE),
        f"Bytes per message, a multiple of {limits.CHUNK_BYTES_MULTIPLE}. If not set, the size is 4 MiB "
        "within one host, and otherwise chosen from measured rates after the first collectives; it may grow later. "
        "If only `credit_bytes` is set, it is a quarter of that. Rank 0's value counts.",
    )
    credit_bytes: int | None = setting(
        None,
        WholeNumber(limits.CHUNK_BYTES_MIN, limits.CREDIT_BYTES_MAX, "bytes"),
        "Bytes that may be pushed to one reducer ahead of its results. If not set, the number is adapted "
        "continuously.",
    )
    checksums: bool = setting(
        False,
        Switch(),
        "Whether every push and result carries a CRC-32C; 1 or 0 in the environment. Messages with a wrong "
        "checksum are sent again. Rank 0's value counts.",
    )
    io_process: bool = setting(
        False,
        Switch(),
        "Whether connections and protocol run in a separate process, for training loops whose Python code keeps "
        "the interpreter busy; 1 or 0 in the environment. For tensors on the CPU, without `local_group` and `elastic`. "
        "May differ between ranks.",
    )
    local_group: int | str | None = setting(
        None,
        LocalGroup(),
        "How many ranks of each node reduce among themselves first, so that one copy of the gradients "
        'per node crosses the network: a number, or "auto" for the number that the launcher reports. If not set, '
        "every rank works on its own. With `elastic` these ranks form one worker, and are the default process group.",
    )
    elastic: bool = setting(
        False,
        Switch(),
        "Whether the job continues when a worker is lost, and accepts new ones, see docs/elastic.md; 1 or 0 in "
        "the environment. It needs `job`, `reducers`, `rank` and `world_size`, the initial number of workers.",
    )
    min_workers: int = setting(
        1,
        WholeNumber(1, limits.WORLD_SIZE_MAX),
        "With fewer workers than this, an elastic job begins no step, and waits `join_timeout_s` for more.",
    )
    notices: str | None = setting(
        None,
        Choice(None, "auto", "gce", "aws", "azure"),
        "The cloud whose metadata service is polled every 2 s for a notice that this machine will be reclaimed, from "
        'the first call of `should_stop` or `should_leave` on; they treat a notice like a SIGTERM. "auto": the cloud '
        "that the machine reports to be in. If not set, no service is polled.",
    )
    colocated: str | None = setting(
        None,
        Choice(None, "auto", "always"),
        'Whether the lowest rank of each host also starts a reducer there. "auto": if '
        'there are fewer reducers than hosts. "always": in any case. If not set, only if no reducers are '
        "given and the ranks are on several hosts. The same on all ranks.",
    )
    colocated_host: str | None = setting(
        None,
        Text("an address of this host that the other hosts reach"),
        "The address at which a reducer on this host listens. If not set, it is that of the interface in "
        "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, or of the route to MASTER_ADDR.",
    )
    link: str | None = setting(
        None,
        Text("a rate such as '25G' or '100M'", link_mbit),
        "Rate of this host's link in its slower direction, such as '25G' or '100M'. Reducers get shares "
        "that suit the links of all hosts. If not set, all links count as equal, or as the median of the "
        "known links.",
    )
    trace: str | None = setting(
        None,
        Text("a directory"),
        "Directory for each rank's record of when its latest collectives were issued, pushed and summed. A rank writes "
        "it when it leaves or fails, and whenever the file `now` in the directory is touched; `reducer trace` reads "
        "it.",
    )
    report_s: float = setting(
        60.0,
        Seconds(may_be_never=True),
        "Seconds between two log lines in which rank 0 reports how long collectives take and what to look at first; "
        "see docs/operating.md. 0 disables them.",
    )
    tls_cert: str | None = setting(
        None,
        FilePath(),
        "PEM file with this worker's certificate or chain. TLS needs all three files.",
    )
    tls_key: str | None = setting(None, FilePath(), "PEM file with the private key of `tls_cert`.")
    tls_ca: str | None = setting(
        None,
        FilePath(),
        "PEM file with the CA certificates that a reducer's certificate must chain to.",
    )
    token_file: str | None = setting(
        None,
        FilePath(),
        "File with a line JOB:TOKEN for the job, or *:TOKEN for any job. See SECURITY.md.",
    )

    def __post_init__(self) -> None:
        for row in rows(PluginConfig):
            if (value := getattr(self, row.name)) is not None:
                row.kind.check(row.name, value)
        # The following checks involve several settings.
        is_beyond = self.rank is not None and self.world_size is not None and self.rank >= self.world_size
        if is_beyond and not self.elastic:
            raise ConfigError(f"rank is {self.rank}; it must be below the world size {self.world_size}")
        if self.job is not None:
            self._check_job(self.job)
        if self.run is not None:
            _check_text("run", self.run, limits.RUN_BYTES_MAX)
        if isinstance(self.local_group, int) and not self.elastic:
            self._check_local_group(self.local_group)
        if self.credit_bytes is not None and self.credit_bytes < (self.chunk_bytes or 0):
            raise ConfigError(
                f"credit_bytes is {self.credit_bytes}; it must be at least chunk_bytes, {self.chunk_bytes}"
            )
        if self.elastic:
            self._check_elastic()
        _ = self.tls  # raises ConfigError if only some of the three files are named
        if self.io_process:
            self._check_io_process()

    @property
    def wire(self) -> WireFormat | None:
        """The parsed `wire_dtype`. None: every tensor is sent in its own dtype."""
        return parse_wire_dtype(self.wire_dtype)

    @property
    def link_mbit(self) -> int:
        """The parsed `link`, in Mbit/s; 0: not known."""
        return 0 if self.link is None else link_mbit("link", self.link)

    @property
    def tls(self) -> TlsFiles | None:
        """The files of mutual TLS, None without it."""
        return tls_files(self.tls_cert, self.tls_key, self.tls_ca, ("tls_cert", "tls_key", "tls_ca"))

    @property
    def fixed_chunk_bytes(self) -> int | None:
        """The size of chunks; None: it is chosen after the first collectives (core/flow/credit.py)."""
        if self.chunk_bytes is None and self.credit_bytes is not None:
            quarter = self.credit_bytes // 4 // limits.CHUNK_BYTES_MULTIPLE * limits.CHUNK_BYTES_MULTIPLE
            return min(max(quarter, limits.CHUNK_BYTES_MIN), limits.CHUNK_BYTES_MAX)
        return self.chunk_bytes

    def _check_io_process(self) -> None:
        if self.local_group not in (None, 1):
            raise ConfigError(
                f"io_process is set, which cannot be combined with local_group={self.local_group!r}: leave one out"
            )
        if self.elastic:
            raise ConfigError("io_process is set, which cannot be combined with elastic: leave one out")
        if not is_possible():
            raise ConfigError(
                "io_process is set, which needs memory that processes share (memfd_create, Linux): leave it out"
            )

    def _check_job(self, job: str) -> None:
        # Each rail adds a suffix to the name. Whether "auto" will make rails is not known yet.
        bytes_max = limits.JOB_NAME_BYTES_MAX - (0 if self.local_group is None else SUFFIX_BYTES_MAX)
        _check_text("job", job, bytes_max)
        if is_rail(job):
            raise ConfigError(f"job {job!r} ends like the rail of a job (local_group): choose another name")

    def _check_local_group(self, ranks: int) -> None:
        if self.world_size is not None and self.world_size % ranks:
            raise ConfigError(
                f"local_group is {ranks}, but the world size {self.world_size} is not a multiple of it: every node "
                f"must have that many ranks"
            )
        if ranks > 1 and self.fallback is not None:
            raise ConfigError(
                f"fallback={self.fallback!r} needs all ranks on one host, but local_group={ranks} is for several: "
                f"leave one of them out"
            )

    def _check_elastic(self) -> None:
        if self.rank is None or self.world_size is None:
            raise ConfigError(
                f"elastic needs rank and world_size, which are {self.rank} and {self.world_size}: set REDUCTION_RANK, "
                f"different for each worker, and REDUCTION_WORLD_SIZE, the initial number of workers"
            )
        for name in ("colocated", "fallback"):
            if (value := getattr(self, name)) is not None:
                raise ConfigError(f"{name}={value!r} cannot be used with elastic: leave it out")
        if self.wire is not None and self.wire.block > 1:
            raise ConfigError(
                f"wire_dtype={self.wire_dtype!r} leaves something out, and elastic may send a contribution twice: use "
                f"'bf16' or 'fp16', or none"
            )


def _check_text(name: str, text: str, bytes_max: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:  # bytes of the environment that are not UTF-8
        raise ConfigError(f"{name} {text!r} is not text") from None
    if not 1 <= size <= bytes_max:
        raise ConfigError(f"{name} {text!r} must have 1 to {bytes_max} bytes")
    if not text.isprintable():
        raise ConfigError(f"{name} {text!r} has characters that cannot be printed")


class Settings(TypedDict, total=False):
    """Types of the arguments for all settings except `reducers`; None means not given."""

    job: str | None
    run: str | None
    rank: int | str | None
    world_size: int | str | None
    transport: str | None
    wire_dtype: str | None
    on_reducer_loss: str | None
    fallback: str | None
    timeout_s: float | str | None
    stall_warn_s: float | str | None
    join_timeout_s: float | str | None
    close_timeout_s: float | str | None
    chunk_bytes: int | str | None
    credit_bytes: int | str | None
    checksums: bool | None
    io_process: bool | None
    local_group: int | str | None
    elastic: bool | None
    min_workers: int | str | None
    notices: str | None
    colocated: str | None
    colocated_host: str | None
    link: str | None
    trace: str | None
    report_s: float | str | None
    tls_cert: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    tls_ca: str | os.PathLike[str] | None
    token_file: str | os.PathLike[str] | None


class AllSettings(Settings, total=False):
    """Types of the arguments for all settings."""

    reducers: Sequence[str] | str | None


def build(arguments: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> PluginConfig:
    """Return the settings from explicit arguments, where None means not given, and the environment.

    Raises:
        ConfigError: a value is wrong; the message names it and where it came from.
        TypeError: an argument's name is not that of a setting.
    """
    table = rows(PluginConfig)
    names = [row.name for row in table]
    for name in arguments:
        if name not in names:
            meant = nearest(name, names)
            hint = "" if meant is None else f"; did you mean {meant!r}?"
            raise TypeError(f"ReductionState got an unexpected keyword argument {name!r}{hint}")
    warn_of_unknown(names, environ)
    values: dict[str, Any] = {}
    for row in table:
        argument, text = arguments.get(row.name), environ.get(row.variable)
        if argument is not None:
            values[row.name] = row.kind.parse(row.name, argument)
        # An empty variable counts as not set, except for that of the reducers. An unset variable in
        # a shell script would make it empty, and the job would unintentionally run on a private
        # reducer.
        elif text or (text is not None and row.name == "reducers"):
            values[row.name] = row.kind.parse(row.variable, text)
            # The check at the end would name the argument instead of the variable.
            row.kind.check(row.variable, values[row.name])
    return PluginConfig(**values)


def check_files(config: PluginConfig) -> None:
    """Return if the files that settings name exist. The communicator reads them later.

    Raises:
        ConfigError: a file does not exist, or may not be read.
    """
    for row in rows(PluginConfig):
        path = getattr(config, row.name)
        if isinstance(row.kind, FilePath) and path is not None:
            row.kind.require_readable(
                row.variable if os.environ.get(row.variable) == path else row.name, path
            )
