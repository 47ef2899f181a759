"""The doctor's report in 80 columns."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Iterator, Sequence

import click
from reduction.text import counted

from reducer.doctor.facts import Facts, Path, Rate, Worker
from reducer.doctor.findings import Finding, Level, best_by, first, mbit, sums_by_reducer, verdict
from reducer.doctor.model import Forecast
from reducer.planner.table import milliseconds, print_advice
from reducer.resources.sizes import size_text

COLUMNS = 80
_NAMES = {Level.NOTE: "note", Level.SLOW: "SLOW", Level.BROKEN: "BROKEN"}
_VERDICTS = {
    Level.NOTE: "good: nothing to fix",
    Level.SLOW: "it works, but slowly",
    Level.BROKEN: "it does not work",
}


def print_report(facts: Facts, findings: Sequence[Finding], forecast: Forecast | None) -> None:
    """Print the measurements, the findings, the planner's table if there is one, and what to fix first."""
    for line in summary(facts):
        click.echo(line)
    for finding in findings:
        click.echo()
        for line in described(finding):
            click.echo(line)
    if forecast is not None:
        click.echo()
        print_advice(forecast.training, forecast.advice)
        for line in _measured_now(forecast):
            click.echo(line)
    click.echo()
    for line in last_words(findings, forecast):
        click.echo(line)


def summary(facts: Facts) -> Iterator[str]:
    """Yield one or two lines for each check."""
    [lowest, *_] = facts.workers
    given = {reducer.given for worker in facts.workers for reducer in worker.reducers}
    processes = {reducer.address for worker in facts.workers for reducer in worker.reducers}
    usable = {
        reducer.address for worker in facts.workers for reducer in worker.reducers if not reducer.trouble
    }
    who = f"{len(facts.workers)} workers" if len(facts.workers) > 1 else lowest.host.name
    yield from _line(
        "addresses",
        f"{who}, {counted(len(given), 'reducer')} ({counted(len(processes), 'process', 'es')}) of {lowest.source}",
    )
    planes = sorted(
        {
            # With TLS all data that leaves a process is encrypted, so no memory is shared.
            "shared memory" if reducer.is_near and reducer.plane == "tcp" else reducer.plane
            for worker in facts.workers
            for reducer in worker.reducers
            if reducer.plane
        }
    )
    plane = f"; jobs use {' and '.join(planes)}" if planes else ""
    yield from _line("reach", f"{len(usable)} of {len(processes)} processes can be used{plane}")
    yield from _path_lines(facts.workers)
    yield from _rate_lines(facts)
    yield from _cpu_lines(facts.workers)
    yield from _limit_lines(facts.workers)


def described(finding: Finding) -> list[str]:
    """Return the lines of a finding: place and observation, then the action, and the findings that it may explain."""
    lines = _wrapped(f"{_NAMES[finding.level]:<7}{finding.check}: {finding.sentence}")
    lines += _wrapped(f"       -> {finding.fix}")
    if finding.explains:
        lines.append("       this may be the reason for the following:")
        for sentence in finding.explains:
            lines += _wrapped(f"       - {sentence}", indent=9)
    return lines


def last_words(findings: Sequence[Finding], forecast: Forecast | None) -> list[str]:
    """Return the verdict, and what to fix first."""
    worst = first(findings)
    lines = [_VERDICTS[verdict(findings)]]
    if worst is not None:
        cost = ""
        if worst.check == "bandwidth" and forecast is not None and forecast.slowest_costs_s > 0:
            cost = f"; the slowest link costs {milliseconds(forecast.slowest_costs_s)} ms of each step"
            cost += _price(", or", forecast.slowest_cost, forecast)
        lines += _wrapped(f"fix first: {worst.where or worst.what}: {worst.fix}{cost}", indent=11)
    return lines


def _measured_now(forecast: Forecast) -> list[str]:
    now = forecast.now
    if now is None:
        return []
    sums, exposed, step = map(milliseconds, (now.communication_s, now.exposed_s, now.total_s))
    text = f"sums {sums} ms, {exposed} ms of them exposed, step {step} ms"
    text += _price("; the price is", forecast.now_cost, forecast)
    return _wrapped(f"with the current reducers, at the rate of all to all: {text}")


def _price(beginning: str, cost: float | None, forecast: Forecast) -> str:
    """Return the end of a sentence with a price; empty without prices."""
    prices = forecast.advice.prices
    return "" if prices is None or cost is None else f"{beginning} {cost:.2f} for {prices.steps} steps"


def _path_lines(workers: Sequence[Worker]) -> Iterator[str]:
    paths = [reducer.path for worker in workers for reducer in worker.reducers if reducer.path is not None]
    if not paths:
        return
    answers = f"answer {min(path.answer_s for path in paths) * 1e3:.2g} ms (p99 {_worst(paths) * 1e3:.2g})"
    on_tcp = [path for path in paths if path.source]
    if on_tcp:
        names = ", ".join(sorted({_interface(path) for path in on_tcp}))
        mss = "/".join(str(size) for size in sorted({path.mss for path in on_tcp}))
        rtt = statistics.median(path.rtt_s for path in on_tcp)
        answers = f"{names}, mss {mss}, rtt {rtt * 1e3:.2g} ms, {answers}"
    clocks = [abs(worker.clock_s) + worker.clock_error_s for worker in workers if worker.clock_s is not None]
    if len(clocks) > 1:
        answers += f", clocks within {max(clocks) * 1e3:.2g} ms"
    yield from _line("path", answers)


def _interface(path: Path) -> str:
    return f"{path.interface} ({path.link_mbit} Mbit/s)" if path.link_mbit else path.interface or path.source


def _worst(paths: Iterable[Path]) -> float:
    return max(path.answer_p99_s for path in paths)


def _rate_lines(facts: Facts) -> Iterator[str]:
    if facts.alone:
        of_worker, of_reducer = best_by(facts.alone, "rank"), best_by(facts.alone, "reducer")
        yield from _line(
            "alone",
            f"each way {_span(of_worker.values())} per worker, {_span(of_reducer.values())} "
            f"per reducer; {max(rate.resent for rate in facts.alone):.2%} sent again",
        )
    if facts.incast:
        sums = sums_by_reducer(facts.incast).values()
        yield from _line("incast", f"all workers to one reducer: {_span(sums)}{_resent(facts.incast)}")
    if facts.together:
        rates = _span([rate.bytes_per_s for rate in facts.together])
        ring = ""
        if facts.ring:
            slowest = min(rate.bytes_per_s for rate in facts.ring)
            ring = f"; Gloo's ring {mbit(slowest)}"
        yield from _line(
            "all", f"all to all, as in a step: {rates} of gradients{_resent(facts.together)}{ring}"
        )


def _resent(rates: Sequence[Rate]) -> str:
    return f", {max(rate.resent for rate in rates):.2%} sent again"


def _span(rates: Iterable[float]) -> str:
    """Return the minimum and maximum of some rates, or one rate if they are similar."""
    values = list(rates)
    low, high = min(values), max(values)
    return mbit(high) if low > 0.95 * high else f"{mbit(low)} to {mbit(high)}"


def _cpu_lines(workers: Sequence[Worker]) -> Iterator[str]:
    hosts = [worker.host for worker in workers]
    least = min(hosts, key=lambda host: host.cores)
    sums = ", ".join(f"{wire} {rate / 1e9:.2g}" for wire, rate in least.sums.items())
    busy = max(host.busy_cores for host in hosts)
    text = f"{least.cores:g} of {least.affinity} cores, {busy:.1f} busy before"
    yield from _line("cpu", f"{text}; a core adds, GB/s: {sums}")


def _limit_lines(workers: Sequence[Worker]) -> Iterator[str]:
    host = min((worker.host for worker in workers), key=lambda host: host.descriptors)
    memory = "unknown memory" if host.memory_bytes is None else size_text(host.memory_bytes)
    yield from _line(
        "limits",
        f"{host.descriptors} descriptors, {memory}, tcp_rmem {size_text(host.receive_buffer)}, tcp_wmem "
        f"{size_text(host.send_buffer)}, {host.congestion or 'unknown congestion control'}, somaxconn {host.backlog}",
    )


def _line(name: str, text: str) -> list[str]:
    return _wrapped(f"{name:<10} {text}", indent=11)


def _wrapped(text: str, indent: int = 7) -> list[str]:
    return textwrap.wrap(text, COLUMNS, subsequent_indent=" " * indent, break_on_hyphens=False)
