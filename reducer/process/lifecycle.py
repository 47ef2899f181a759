"""The life of one reducer process: listen, print the ready line, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from functools import partial

from reduction.discovery.address_forms import join_host_and_port
from reduction.model import Place
from reduction.process import descriptors
from reduction.process.place import own_host
from reduction.process.ready import ready_line

from reducer.binding import check_ports, listen, naming, shown
from reducer.config import ReducerConfig
from reducer.credentials import LOOK_S, Certificates, Tokens
from reducer.engine import TICK_S, Engine
from reducer.observe.exposition import Exposition, of_all
from reducer.observe.gathering import answer, ask
from reducer.observe.http import Health, Page, serve_http
from reducer.observe.metrics import EngineCollector, Sources
from reducer.observe.page.routes import routes
from reducer.observe.page.sampler import Sampler, look_at_all
from reducer.observe.status import StatusAccess
from reducer.process import service_manager
from reducer.process.log_resources import log_what_is_used
from reducer.process.stopping import Stopping
from reducer.process.under_supervisor import UnderSupervisor
from reducer.process.unused import NoJob, Unused
from reducer.spans import Spans
from reducer.transports.grpc_server import Drain, GrpcServer, Limits
from reducer.transports.tcp_server import DataPort

log = logging.getLogger(__name__)


async def serve(config: ReducerConfig) -> None:
    """Serve until this process is asked to stop, then drain and return.

    Raises:
        BindError: an address cannot be bound.
        ConfigError: a certificate, private key or token file cannot be used.
        NoJob: no job came within --wait-for-job.
    """
    descriptors.allow(2 * Limits().connections)  # a stream may have a descriptor on each plane
    stopping = Stopping(config.drain_timeout_s)
    supervisor = UnderSupervisor(stopping) if config.under_supervisor else None
    if supervisor is None:
        log_what_is_used(config)
    certificates = None if config.tls is None else Certificates(config.tls)
    tokens = None if config.token_file is None else Tokens(config.token_file)
    place = Place(own_host(), config.link_mbit)
    engine = Engine(memory_limit_bytes=config.memory_limit_bytes_each, place=place)
    health = Health(asyncio.get_running_loop())
    sampler = Sampler() if config.page else None
    if not config.ports_are_held:
        check_ports(config)
    data_port = DataPort(None if certificates is None else certificates.context, engine.lines)
    with naming(f"--data-port {config.ports().data}"):
        data_port.start(
            config.host, config.ports().data, engine.jobs.incarnation, is_held=config.ports_are_held
        )
    server = GrpcServer(
        engine,
        data_port,
        credentials=None if certificates is None else certificates.credentials,
        tokens=None if tokens is None else tokens.table,
        shares_port=config.ports_are_held,
        drain=Drain(stopping.ask if supervisor is None else supervisor.ask_to_drain, config.drain_timeout_s),
    )
    sources = Sources(
        engine=engine,
        paths=server.paths,
        certificate_expiry=lambda: {} if certificates is None else certificates.expiry,
        link_bytes_per_s=config.link_mbit * 1e6 / 8,
    )
    #: Ports of the other processes, known once these serve.
    siblings: list[int] = []
    _show(config, sources, health, siblings, {} if sampler is None else routes(sampler))
    with naming(f"--bind {config.bind}"):
        port = server.bind(config.bind)
    if config.trace is not None:
        spans = engine.spans = Spans(config.trace, config.address(port), lines=engine.lines)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, lambda: spans.write(spans.records()))
    tasks = [asyncio.create_task(_look([one for one in (certificates, tokens) if one is not None]))]
    if supervisor is None:
        stopping.listen(stdin=config.stop_with_stdin)
    else:
        tasks.append(asyncio.create_task(supervisor.obey()))
        siblings += await supervisor.siblings()
    await server.start(siblings)
    unneeded = asyncio.Event()
    tasks.append(asyncio.create_task(_tick(engine, unneeded, config, stopping, supervisor)))
    health.is_serving = True
    if supervisor is None:
        print(ready_line(config.address(port)), flush=True)
        service_manager.notify(service_manager.READY)
    else:
        supervisor.report(ready_line(config.address(port)))
    if sampler is not None:
        others = [join_host_and_port(config.own_host, sibling) for sibling in siblings]
        access = StatusAccess(config.tls, None if tokens is None else tokens.table)
        sampler.start(partial(look_at_all, engine, health.loop, config.address(port), others, access))
    http_port = config.ports().metrics
    log.info(
        "serving address=%s grpc=%s data=%s http=%s tls=%s tokens=%s siblings=%s metrics=%s memory_limit=%d",
        config.address(port),
        shown(config.host, port),
        shown(config.host, data_port.port),
        "off" if http_port is None else shown(config.host, http_port),
        "off" if certificates is None else "on",
        "off" if tokens is None else "on",
        siblings,
        config.metrics_url or "off",
        config.memory_limit_bytes_each,
    )
    try:
        await stopping.wait()
        health.is_serving = False
        if supervisor is None:
            service_manager.notify(service_manager.STOPPING)
        log.info("draining timeout=%gs", stopping.drain_timeout_s)
        await server.not_serving()
        engine.drain()
        await stopping.drain(unneeded)
        log.info("stopping %s", "drained" if unneeded.is_set() else "with jobs left")
    finally:
        for task in tasks:
            task.cancel()
        data_port.stop()
        await server.stop(0.5)
        engine.close()
        if engine.spans is not None:
            engine.spans.write(engine.spans.records())
    if stopping.error is not None:
        raise stopping.error


def _show(
    config: ReducerConfig,
    sources: Sources,
    health: Health,
    siblings: Sequence[int],
    pages: Mapping[str, Page],
) -> None:
    """Serve the HTTP port, or answer the first process's requests for metrics; do nothing without metrics.

    Raises:
        BindError: the port cannot be bound.
    """
    lines = [socket.socket(fileno=descriptor) for descriptor in config.metrics_lines]
    exposition = Exposition(EngineCollector(sources, health.loop), config.number)
    port = config.ports().metrics
    if port is None:
        for line in lines:
            answer(line, exposition.text)
        return

    def of_all_processes() -> str:
        return of_all([exposition.text(), *ask(lines[: len(siblings)])])

    with naming(f"--metrics-port {port}"):
        listeners = listen(config.host, port, reuse_port=config.ports_are_held)
        serve_http(health, of_all_processes, listeners, pages, (config.host, *config.page_hosts))


async def _look(files: Sequence[Certificates | Tokens]) -> None:
    """Reload certificates and tokens when their files change."""
    while True:
        await asyncio.sleep(LOOK_S)
        for one in files:
            one.look()


async def _tick(
    engine: Engine,
    unneeded: asyncio.Event,
    config: ReducerConfig,
    stopping: Stopping,
    supervisor: UnderSupervisor | None,
) -> None:
    """Let time pass for the engine. Set `unneeded` when it drains and no job needs it.

    Request a stop after the last job with --exit-after-job, and without any job with --wait-for-job. Under a
    supervisor, report the use of this process so that the supervisor can decide.
    """
    unused = Unused(config.exit_after_job_s, config.wait_for_job_s)
    while True:
        engine.tick()
        jobs = len(engine.jobs.by_name)
        if supervisor is not None and config.ends_by_itself:
            supervisor.report_use(has_served=engine.has_served, jobs=jobs)
        elif (
            supervisor is None
            and not stopping.is_asked
            and unused.is_over(has_served=engine.has_served, jobs=jobs, now_s=time.monotonic())
        ):
            if engine.has_served:
                log.info("no job for %g s (--exit-after-job)", config.exit_after_job_s)
                stopping.ask()
            else:
                stopping.ask(NoJob(f"no job came within {config.wait_for_job_s:g} s (--wait-for-job)"))
        if engine.spans is not None:
            ended = engine.spans.take_ended(job.id for job in engine.jobs.by_name.values())
            if ended:
                await asyncio.to_thread(engine.spans.write, ended)
        if engine.jobs.is_draining and not engine.is_needed:
            unneeded.set()
        await asyncio.sleep(TICK_S)
