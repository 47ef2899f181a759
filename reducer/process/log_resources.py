"""Log how many processes and how much memory a reducer uses, and warn if that is too much."""

from __future__ import annotations

import logging

from reducer.config import ReducerConfig
from reducer.resources import host_limits

log = logging.getLogger(__name__)


def log_what_is_used(config: ReducerConfig) -> None:
    """Log the processes and the memory limit. Warn if the limit exceeds the memory."""
    there = host_limits.memory()
    log.info(
        "using processes=%d of cores=%.4g memory_limit=%d of memory=%s",
        config.processes,
        host_limits.cores(),
        config.memory_limit_bytes,
        "unknown" if there is None else there,
    )
    if there is not None and config.memory_limit_bytes > there:
        log.warning(
            "--memory-limit %d is more than the %d bytes of memory that this machine or container has",
            config.memory_limit_bytes,
            there,
        )
