"""Settings of a `ReductionState`: explicit argument, else REDUCTION_<NAME>, else default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from reduction import layout
from reduction.errors import ConfigError
from reduction.rails import SUFFIX_BYTES_MAX, is_rail
from reduction.security.tls import TlsFiles, tls_files
from reduction.wire import frames as wire

from worker_plugin.settings.address_forms import check_addresses
from worker_plugin.settings.environment import variable, warn_of_unknown
from worker_plugin.settings.kinds import SECONDS, SECONDS_MAX, parse
from worker_plugin.tensors.wire_dtype import WireFormat
from worker_plugin.tensors.wire_dtype import parse as parse_wire_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """All settings, checked. Rank, world size and job may stay None until the first collective."""

    #: Addresses (`address_forms`), or None to look around (worker_plugin/discovery).
    reducers: tuple[str, ...] | None = None
    job: str | None = None
    rank: int | None = None
    world_size: int | None = None
    transport: str = "auto"
    wire_dtype: str | None = None
    on_reducer_loss: str = "reshard"
    fallback: str | None = None
    timeout_s: float = 600.0
    stall_warn_s: float = 5.0
    join_timeout_s: float = 60.0
    close_timeout_s: float = 5.0
    #: None: chosen once, after the first collectives (core/pace.py); a quarter of an explicit credit.
    chunk_bytes: int | None = None
    #: None: adapted all the time.
    credit_bytes: int | None = None
    #: Whether pushes and results have checksums; rank 0's counts.
    checksums: bool = False
    #: Ranks of a node that reduce among themselves first: how many, or "auto" for what the launcher says.
    local_group: int | str | None = None
    #: Certificate, private key and CA of mutual TLS, in PEM; all or none. Only the paths are kept.
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    #: File with the job's token (`reduction.security.tokens`).
    token_file: str | None = None

    def __post_init__(self) -> None:
        _check_choice("transport", self.transport, ("auto", "tcp", "grpc"))
        parse_wire_dtype(self.wire_dtype)
        _check_choice("on_reducer_loss", self.on_reducer_loss, ("reshard", "wait", "raise"))
        _check_choice("fallback", self.fallback, (None, "embedded"))
        for name in ("timeout_s", "stall_warn_s", "join_timeout_s", "close_timeout_s"):
            if not 0 < getattr(self, name) <= SECONDS_MAX:
                raise ConfigError(f"{name} is {getattr(self, name)}, allowed are {SECONDS}")
        if self.world_size is not None and not 1 <= self.world_size <= layout.WORLD_SIZE_MAX:
            raise ConfigError(f"world_size is {self.world_size}, allowed are 1 to {layout.WORLD_SIZE_MAX}")
        if self.rank is not None and self.rank < 0:
            raise ConfigError(f"rank is {self.rank}, it must not be negative")
        if self.rank is not None and self.world_size is not None and self.rank >= self.world_size:
            raise ConfigError(f"rank is {self.rank}, it must be below the world size {self.world_size}")
        if self.job is not None:
            self._check_job(self.job)
        self._check_local_group()
        self._check_sizes()
        if self.tls is not None and self.transport == "tcp":
            raise ConfigError(
                "transport is 'tcp', which TLS does not cover: use 'auto' or 'grpc' with tls_cert"
            )
        if self.reducers is not None:
            check_addresses(self.reducers)

    @property
    def wire(self) -> WireFormat | None:
        """What `wire_dtype` means, None: every tensor's own."""
        return parse_wire_dtype(self.wire_dtype)

    @property
    def tls(self) -> TlsFiles | None:
        """The files of mutual TLS, None without it."""
        return tls_files(self.tls_cert, self.tls_key, self.tls_ca, ("tls_cert", "tls_key", "tls_ca"))

    @property
    def fixed_chunk_bytes(self) -> int | None:
        """The grid to use; None: choose it."""
        if self.chunk_bytes is None and self.credit_bytes is not None:
            quarter = self.credit_bytes // 4 // layout.CHUNK_BYTES_MULTIPLE * layout.CHUNK_BYTES_MULTIPLE
            return min(max(quarter, layout.CHUNK_BYTES_MIN), layout.CHUNK_BYTES_MAX)
        return self.chunk_bytes

    def _check_job(self, job: str) -> None:
        # The rails' names are longer, and whether there will be some is not always known yet.
        most = wire.JOB_NAME_BYTES_MAX - (0 if self.local_group is None else SUFFIX_BYTES_MAX)
        if not 1 <= _utf8_bytes("job", job) <= most:
            raise ConfigError(f"job {job!r} must have 1 to {most} bytes")
        if not job.isprintable():
            raise ConfigError(f"job {job!r} has characters that cannot be printed")
        if is_rail(job):
            raise ConfigError(f"job {job!r} ends like the rail of a job (local_group): choose another name")

    def _check_local_group(self) -> None:
        group = self.local_group
        if group is None or group == "auto":
            return
        if not isinstance(group, int) or isinstance(group, bool) or not 1 <= group <= layout.WORLD_SIZE_MAX:
            raise ConfigError(
                f"local_group is {group!r}; it must be None, 'auto' or a number of ranks, 1 to {layout.WORLD_SIZE_MAX}"
            )
        if self.world_size is not None and self.world_size % group:
            raise ConfigError(
                f"local_group is {group}, but the world size {self.world_size} is no multiple of it: every node "
                f"must have as many ranks"
            )
        if group > 1 and self.fallback is not None:
            raise ConfigError(
                f"fallback={self.fallback!r} needs all ranks on one host, local_group={group} is for several: "
                f"leave one of them out"
            )

    def _check_sizes(self) -> None:
        chunk_bytes, least = self.chunk_bytes, layout.CHUNK_BYTES_MIN
        if chunk_bytes is not None:
            if not least <= chunk_bytes <= layout.CHUNK_BYTES_MAX:
                raise ConfigError(
                    f"chunk_bytes is {chunk_bytes}, allowed are {least} to {layout.CHUNK_BYTES_MAX}"
                )
            if chunk_bytes % layout.CHUNK_BYTES_MULTIPLE:
                raise ConfigError(
                    f"chunk_bytes is {chunk_bytes}, it must be a multiple of {layout.CHUNK_BYTES_MULTIPLE}"
                )
            least = chunk_bytes
        if self.credit_bytes is not None and not least <= self.credit_bytes <= layout.CREDIT_BYTES_MAX:
            raise ConfigError(
                f"credit_bytes is {self.credit_bytes}, allowed are {least} (one chunk) to {layout.CREDIT_BYTES_MAX}"
            )


def _check_choice(name: str, value: str | None, known: tuple[str | None, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is {value!r}; this version knows {', '.join(map(repr, known))}")


def _utf8_bytes(name: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:  # bytes of the environment that are no UTF-8
        raise ConfigError(f"{name} {text!r} is not text") from None


def build(arguments: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> PluginConfig:
    """Return the settings from explicit arguments (None means not given) and the environment.

    Raises:
        ConfigError: a value is wrong; the message names it and where it came from.
    """
    names = [field.name for field in fields(PluginConfig)]
    warn_of_unknown(names, environ)
    values: dict[str, Any] = {}
    for name in names:
        found = environ.get(variable(name))
        if arguments.get(name) is not None:
            values[name] = parse(name, arguments[name])
        elif found or (found is not None and name == "reducers"):
            values[name] = parse(name, found, variable(name))
    return PluginConfig(**values)


def check_files(config: PluginConfig) -> None:
    """See that the files that settings name are there; they are read later, when the communicator is made.

    Raises:
        ConfigError: one is not, or may not be read.
    """
    for name in ("tls_cert", "tls_key", "tls_ca", "token_file"):
        path = getattr(config, name)
        if path is None:
            continue
        why = None
        if not os.path.exists(path):
            why = "is not there"
        elif os.path.isdir(path):
            why = "is a directory"
        elif not os.access(path, os.R_OK):
            why = "may not be read by this user"
        if why is not None:
            raise ConfigError(f"{name} is {path!r}, which {why}: give the path of a file")
