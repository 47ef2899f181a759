"""From start to exit of one reducer process: listen, say so, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys

from reduction.process import descriptors
from reduction.security.tokens import read_tokens

from reducer.config import ReducerConfig
from reducer.engine import TICK_S, Engine
from reducer.observe.metrics import serve_metrics
from reducer.resources import allowance
from reducer.security import server_credentials
from reducer.siblings import Siblings
from reducer.transports.grpc_server import GrpcServer, Limits
from reducer.transports.tcp_server import DataPort

log = logging.getLogger(__name__)

#: An embedded reducer whose parent is gone has nobody to wait for but ranks that are closing.
ORPHAN_DRAIN_S = 2.0


class BindError(Exception):
    """An address that was asked for cannot be had."""


async def serve(config: ReducerConfig) -> None:
    """Serve until SIGTERM or SIGINT, drain, and return.

    Raises:
        BindError: an address cannot be bound.
        ConfigError: a certificate, private key or token file cannot be used.
    """
    descriptors.allow(2 * Limits().connections)  # a stream may have one on each plane
    _say_what_we_use(config)
    credentials = None if config.tls is None else server_credentials(config.tls)
    tokens = None if config.token_file is None else read_tokens(config.token_file)
    engine = Engine(memory_limit_bytes=config.memory_limit_bytes_each)
    siblings = Siblings(config)
    try:
        if config.metrics_port is not None:
            serve_metrics(engine, asyncio.get_running_loop(), config.host, config.metrics_port)
        data_port = None
        if credentials is None:  # it would go on in clear
            data_port = DataPort()
            data_port.start(config.host, config.data_port)
        server = GrpcServer(engine, data_port, credentials=credentials, tokens=tokens)
        port = server.bind(config.bind)
        await siblings.start()
        await server.start(siblings.ports)
    except OSError as error:
        await siblings.stop()
        raise BindError(f"cannot bind an address: {error}") from error
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    drain_timeout_s = config.drain_timeout_s

    def orphaned() -> None:
        nonlocal drain_timeout_s
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            drain_timeout_s = ORPHAN_DRAIN_S
            stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop)
    if config.stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), orphaned)
    unneeded = asyncio.Event()
    ticker = asyncio.create_task(_tick(engine, unneeded))
    print(f"listening on {config.address(port)}", flush=True)
    log.info(
        "serving address=%s data_port=%s tls=%s tokens=%s siblings=%s memory_limit=%d",
        config.address(port),
        "off" if data_port is None else data_port.port,
        "off" if credentials is None else "on",
        "off" if tokens is None else "on",
        siblings.ports,
        config.memory_limit_bytes_each,
    )
    try:
        await stop.wait()
        log.info("draining timeout=%gs", drain_timeout_s)
        await server.not_serving()
        engine.drain()
        siblings.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(unneeded.wait(), drain_timeout_s)
        log.info("stopping %s", "drained" if unneeded.is_set() else "with jobs left")
    finally:
        ticker.cancel()
        if data_port is not None:
            data_port.stop()
        await asyncio.gather(server.stop(0.5), siblings.stop())


def _say_what_we_use(config: ReducerConfig) -> None:
    """Log how many processes there are and what they may reserve; warn if that is more than there is."""
    there = allowance.memory()
    log.info(
        "using workers=%d of cores=%.4g memory_limit=%d of memory=%s",
        config.workers,
        allowance.cores(),
        config.memory_limit_bytes,
        "unknown" if there is None else there,
    )
    if there is not None and config.memory_limit_bytes > there:
        log.warning(
            "--memory-limit %d is more than the %d bytes of memory that this machine or container has",
            config.memory_limit_bytes,
            there,
        )


def _on_signal(stop: asyncio.Event) -> None:
    """First signal drains; the second ends the process, as an impatient operator expects."""
    if stop.is_set():
        log.warning("second signal, exiting at once")
        os._exit(130)
    stop.set()


async def _tick(engine: Engine, unneeded: asyncio.Event) -> None:
    """Let time pass for the engine; tell when it drains and no job needs it any more."""
    while True:
        engine.tick()
        if engine.table.is_draining and not engine.is_needed:
            unneeded.set()
        await asyncio.sleep(TICK_S)
