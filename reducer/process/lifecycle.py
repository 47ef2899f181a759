"""The life of one reducer process: listen, print the ready line, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from reduction.model import Place
from reduction.process import descriptors
from reduction.process.place import own_host
from reduction.process.ready import ready_line

from reducer.binding import BindError, check_address, check_ports_of_siblings, naming
from reducer.config import ReducerConfig
from reducer.credentials import LOOK_S, Certificates, Tokens
from reducer.engine import TICK_S, Engine
from reducer.observe.http import Health, serve_http
from reducer.process import service_manager
from reducer.process.siblings import Siblings
from reducer.process.stopping import Stopping
from reducer.process.unused import Unused
from reducer.resources import allowance
from reducer.transports.grpc_server import GrpcServer, Limits
from reducer.transports.tcp_server import DataPort

log = logging.getLogger(__name__)


class NoJob(Exception):
    """No job came within --wait-for-job."""


async def serve(config: ReducerConfig) -> None:
    """Serve until SIGTERM or SIGINT, drain, and return.

    Raises:
        BindError: an address cannot be bound.
        ConfigError: a certificate, private key or token file cannot be used.
        NoJob: it has waited for a job for as long as it should.
    """
    descriptors.allow(2 * Limits().connections)  # a stream may have a descriptor on each plane
    _say_what_we_use(config)
    certificates = None if config.tls is None else Certificates(config.tls)
    tokens = None if config.token_file is None else Tokens(config.token_file)
    place = Place(own_host(), config.link_mbit)
    engine = Engine(memory_limit_bytes=config.memory_limit_bytes_each, place=place)
    siblings = Siblings(config)
    health = Health(asyncio.get_running_loop())
    try:
        data_port = _listen_beside(config, engine, health, with_data_port=certificates is None)
        server = GrpcServer(
            engine,
            data_port,
            credentials=None if certificates is None else certificates.credentials,
            tokens=None if tokens is None else tokens.table,
        )
        with naming(f"--bind {config.bind}"):
            port = server.bind(config.bind)
        check_ports_of_siblings(config)
        with naming("--processes"):
            await siblings.start()
        await server.start(siblings.ports)
    except BindError:
        await siblings.stop()
        raise
    stopping = Stopping(config.drain_timeout_s, siblings.kill)
    stopping.listen(stdin=config.stop_with_stdin)
    unneeded = asyncio.Event()
    ticker = asyncio.create_task(_tick(engine, unneeded, config, stopping))
    looker = asyncio.create_task(_look([one for one in (certificates, tokens) if one is not None]))
    health.is_serving = True
    print(ready_line(config.address(port)), flush=True)
    service_manager.notify(service_manager.READY)
    log.info(
        "serving address=%s data_port=%s tls=%s tokens=%s siblings=%s metrics=%s memory_limit=%d",
        config.address(port),
        "off" if data_port is None else data_port.port,
        "off" if certificates is None else "on",
        "off" if tokens is None else "on",
        siblings.ports,
        ",".join(config.metrics_urls) or "off",
        config.memory_limit_bytes_each,
    )
    try:
        await stopping.wait()
        health.is_serving = False
        service_manager.notify(service_manager.STOPPING)
        log.info("draining timeout=%gs", stopping.drain_timeout_s)
        await server.not_serving()
        engine.drain()
        siblings.drain()
        await stopping.drain(unneeded)
        log.info("stopping %s", "drained" if unneeded.is_set() else "with jobs left")
    finally:
        ticker.cancel()
        looker.cancel()
        if data_port is not None:
            data_port.stop()
        await asyncio.gather(server.stop(0.5), siblings.stop())
        engine.close()
    if stopping.error is not None:
        raise stopping.error


def _listen_beside(
    config: ReducerConfig, engine: Engine, health: Health, *, with_data_port: bool
) -> DataPort | None:
    """Bind the ports for metrics and data. With TLS there is no data port: it is not encrypted.

    Raises:
        BindError: one of them cannot be bound.
    """
    if config.metrics_port is not None:
        with naming(f"--metrics-port {config.metrics_port}"):
            check_address(config.host, config.metrics_port)
            serve_http(engine, health, config.host, config.metrics_port)
    if not with_data_port:
        return None
    data_port = DataPort()
    with naming(f"--data-port {config.data_port}"):
        check_address(config.host, config.data_port)
        data_port.start(config.host, config.data_port, engine.jobs.incarnation)
    return data_port


def _say_what_we_use(config: ReducerConfig) -> None:
    """Log the processes and the memory limit. Warn if the limit exceeds the memory."""
    there = allowance.memory()
    log.info(
        "using processes=%d of cores=%.4g memory_limit=%d of memory=%s",
        config.processes,
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


async def _look(files: Sequence[Certificates | Tokens]) -> None:
    """Have certificates and tokens follow their files."""
    while True:
        await asyncio.sleep(LOOK_S)
        for one in files:
            one.look()


async def _tick(engine: Engine, unneeded: asyncio.Event, config: ReducerConfig, stopping: Stopping) -> None:
    """Let time pass for the engine. Set `unneeded` when it drains and no job needs it any more.

    With --exit-after-job, ask to stop that long after the last job, and with --wait-for-job if no job has
    come. The first process decides it for its siblings, because every job has streams to it.
    """
    unused = Unused(config.exit_after_job_s, config.wait_for_job_s)
    while True:
        engine.tick()
        if not stopping.is_asked and unused.is_over(
            has_served=engine.has_served, jobs=len(engine.jobs.by_name), now_s=time.monotonic()
        ):
            if engine.has_served:
                log.info("no job for %g s, as --exit-after-job says", config.exit_after_job_s)
                stopping.ask()
            else:
                stopping.ask(NoJob(f"no job came within {config.wait_for_job_s:g} s (--wait-for-job)"))
        if engine.jobs.is_draining and not engine.is_needed:
            unneeded.set()
        await asyncio.sleep(TICK_S)
