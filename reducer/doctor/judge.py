"""Derive findings from the measurements. Pure functions without any probe.

Every finding names a place, an observation and an action. BROKEN means that it does not work, SLOW that
it works but costs time, and NOTE that it costs nothing now. Causes come before their possible effects:
effects that a lack of cores may explain are listed in that finding, and are not separate findings. `first`
is the finding to fix before all others: broken before slow, and within a level the one that costs the most
speed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from reducer.doctor.bandwidth import SLOW_PART, bandwidth
from reducer.doctor.facts import Facts, Host, Reducer, Worker
from reducer.doctor.findings import (
    Finding,
    Level,
    best_by,
    is_busy,
    is_throttled,
    name_of,
    short_of_cores,
)

#: Answer time in seconds above which a path is called long, and how much longer the slowest answers may take.
ANSWER_S, ANSWER_P99_S = 0.05, 0.1
#: Clocks further apart than this make the logs of several hosts hard to compare. Sums do not use clocks.
CLOCK_S = 0.5
#: Packets smaller than Ethernet's cost CPU.
MSS_LEAST = 1200
#: Memory per rank that a reducer needs for a job with full credit: contribution and result.
MEMORY_PER_RANK = 2 * (4 << 20)
#: Maximum number of places that a merged finding names.
PLACES_MAX = 4
#: Descriptors in addition to two per reducer process.
DESCRIPTORS = 64


def judge(facts: Facts) -> list[Finding]:
    """Return all findings in the order broken, slow, notes; within a level a lack of cores first, then by cost."""
    found = [
        *_addresses(facts),
        *_reach(facts),
        *_path(facts),
        *bandwidth(facts),
        *_cpu(facts),
        *_limits(facts),
    ]
    folded = _folded(list(_merged(found)))
    return sorted(folded, key=lambda finding: (-finding.level, finding.check != "cpu", -finding.cost))


def _folded(found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings, with those that a lack of cores may explain folded into it."""
    causes = {rank: finding for finding in found if finding.check == "cpu" for rank in finding.ranks}
    explained: dict[Finding, list[Finding]] = defaultdict(list)
    for finding in found:
        if finding.check != "cpu" and finding.ranks:
            explained[causes[finding.ranks[0]]].append(finding)
    for finding in found:
        if finding.check == "cpu" or not finding.ranks:
            others = explained[finding]
            cost = max(other.cost for other in (finding, *others))
            yield replace(finding, cost=cost, explains=tuple(other.sentence for other in others))


def _merged(found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings, with identical ones of several places merged into one."""
    alike: dict[tuple[object, ...], list[Finding]] = {}
    for finding in found:
        key = finding.level, finding.check, finding.what, finding.fix, bool(finding.ranks)
        alike.setdefault(key, []).append(finding)
    for group in alike.values():
        places = [finding.where for finding in group]
        more = f" and {len(places) - PLACES_MAX} more" if len(places) > PLACES_MAX else ""
        worst = max(group, key=lambda finding: finding.cost)
        ranks = tuple(rank for finding in group for rank in finding.ranks)
        yield replace(worst, where=", ".join(places[:PLACES_MAX]) + more, ranks=ranks)


# ---- the checks ----


def _addresses(facts: Facts) -> Iterator[Finding]:
    [lowest, *others] = facts.workers
    for worker in others:
        if set(worker.addresses) != set(lowest.addresses):
            mine, theirs = (", ".join(of.addresses) or "none" for of in (lowest, worker))
            yield Finding(
                Level.BROKEN,
                "addresses",
                name_of(worker, facts),
                f"it finds {theirs} ({worker.source}), and {name_of(lowest, facts)} finds {mine} ({lowest.source})",
                "give all ranks the same list",
            )


def _reach(facts: Facts) -> Iterator[Finding]:
    versions = {reducer.version for worker in facts.workers for reducer in worker.reducers if reducer.version}
    for worker in facts.workers:
        for reducer in worker.reducers:
            yield from _reach_one(reducer, f"{reducer.address} from {name_of(worker, facts)}", facts)
    if len(versions) > 1:
        yield Finding(
            Level.NOTE,
            "reach",
            "the reducers",
            f"they have versions {', '.join(sorted(versions))}",
            "install the same version on all of them",
        )
    if facts.failure:
        fix = "fix what this names, and measure again"
        yield Finding(Level.BROKEN, "bandwidth", "", f"measuring failed: {facts.failure}", fix)
    elif facts.unmeasured:
        what = f"nothing was measured: {facts.unmeasured}"
        yield Finding(Level.NOTE, "bandwidth", "", what, "run the doctor again when it may measure")


def _reach_one(reducer: Reducer, where: str, facts: Facts) -> Iterator[Finding]:
    if reducer.trouble:
        yield Finding(Level.BROKEN, "reach", where, reducer.trouble, _cure(reducer.trouble))
        return
    if reducer.why_not_tcp:
        yield Finding(
            Level.SLOW,
            "reach",
            where,
            f"{reducer.why_not_tcp}; frames go over gRPC, which costs several times the CPU",
            "open this port between the hosts; --data-port fixes its number",
            0.5,
        )
    if reducer.is_draining:
        yield Finding(
            Level.BROKEN, "reach", where, "it is draining: it takes no new job", "wait until it is restarted"
        )
    if reducer.free_bytes < MEMORY_PER_RANK * len(facts.workers):
        yield Finding(
            Level.SLOW,
            "limits",
            where,
            f"only {reducer.free_bytes >> 20} MiB are free for jobs, and one of {len(facts.workers)} ranks takes up to "
            f"{MEMORY_PER_RANK * len(facts.workers) >> 20} MiB",
            "raise its --memory-limit, or end other jobs",
            0.2,
        )


def _cure(trouble: str) -> str:
    """Return the action for a reducer that cannot be used."""
    for part, cure in (
        ("expired", "renew the certificate"),
        ("not valid before", "set the clock, or renew the certificate"),
        ("certificate", "give both sides certificates of a CA that the other one knows; see SECURITY.md"),
        ("oken", "give both sides the same token; see SECURITY.md"),
        ("protocol", "install the same version on both sides"),
        ("stopped, hangs", "look at its process and its log; restart it"),
        ("nothing listens", "start it, or correct the address"),
        ("no address", "correct the name, or wait for DNS"),
        ("firewall", "start the host, or open the port"),
        ("exhausted", "raise its --memory-limit, or end other jobs"),
    ):
        if part in trouble:
            return cure
    return "see its log"


def _path(facts: Facts) -> Iterator[Finding]:
    speeds = {worker.rank: _speeds(worker) for worker in facts.workers}
    fastest = max((speed for of in speeds.values() for speed in of.values()), default=0)
    short = short_of_cores(facts)
    for worker in facts.workers:
        for interface, speed in speeds[worker.rank].items():
            if speed < SLOW_PART * fastest:
                yield Finding(
                    Level.SLOW,
                    "path",
                    name_of(worker, facts),
                    f"{interface} has negotiated {speed} Mbit/s, but another host's card {fastest}",
                    "look at the cable, the switch's port, and which interface is used",
                    1 - speed / fastest,
                )
        if worker.clock_s is not None and abs(worker.clock_s) - worker.clock_error_s > CLOCK_S:
            yield Finding(
                Level.NOTE,
                "path",
                name_of(worker, facts),
                f"its clock is {worker.clock_s:+.2f} s off rank 0's (known to {worker.clock_error_s * 1e3:.1f} ms)",
                "run an NTP client there, or the hosts' logs cannot be compared",
            )
        for reducer in worker.reducers:
            path = reducer.path
            if path is None:
                continue
            where = f"{name_of(worker, facts)} to {reducer.address}"
            if path.answer_s > ANSWER_S or path.answer_p99_s > path.answer_s + ANSWER_P99_S:
                yield Finding(
                    Level.SLOW,
                    "path",
                    where,
                    f"an empty sum takes {path.answer_s * 1e3:.1f} ms, and one of 50 takes "
                    f"{path.answer_p99_s * 1e3:.0f} ms",
                    "look for a long path, a full queue or a busy reducer",
                    0.1,
                    ranks=(worker.rank,) if worker.rank in short else (),
                )
            if 0 < path.mss < MSS_LEAST:
                yield Finding(
                    Level.SLOW,
                    "path",
                    where,
                    f"packets have only {path.mss} bytes",
                    "look at the MTU of tunnels on the way",
                    0.1,
                )


def _speeds(worker: Worker) -> dict[str, int]:
    paths = [reducer.path for reducer in worker.reducers if reducer.path is not None]
    return {path.interface: path.link_mbit for path in paths if path.link_mbit}


def _cpu(facts: Facts) -> Iterator[Finding]:
    for worker in facts.workers:
        host, where = worker.host, name_of(worker, facts)
        if is_throttled(host):
            yield Finding(
                Level.SLOW,
                "cpu",
                where,
                f"its cgroup allows {host.cores:g} of {host.affinity} cores (cpu.max), and stopped processes in "
                f"{host.throttled:.0%} of the periods",
                "raise the CPU limit of the container",
                max(host.throttled, 1 - min(host.cores, 1.0)),
                ranks=(worker.rank,),
            )
        elif is_busy(host):
            yield Finding(
                Level.SLOW,
                "cpu",
                where,
                # Whole cores, so that findings of similar hosts are merged.
                f"other programs keep {min(host.busy_cores, host.affinity):.0f} of {host.affinity} cores busy",
                "find out which programs keep the cores busy, and measure again when they are done",
                0.05,
                ranks=(worker.rank,),
            )
        if not host.is_optimized:
            yield Finding(
                Level.NOTE,
                "cpu",
                where,
                f"Python {host.python} was built without optimisations",
                "use the distribution's Python, or build with --enable-optimizations",
            )


def _limits(facts: Facts) -> Iterator[Finding]:
    rates = best_by(facts.alone, "rank")
    for worker in facts.workers:
        host, where = worker.host, name_of(worker, facts)
        needed = 2 * len(worker.reducers) + DESCRIPTORS
        if host.descriptors < needed:
            yield Finding(
                Level.BROKEN,
                "limits",
                where,
                f"a process may have {host.descriptors} descriptors, but {len(worker.reducers)} reducer processes "
                f"need {needed}",
                "raise the hard limit (ulimit -Hn)",
            )
        yield from _buffers(host, where, rates.get(worker.rank, 0.0), _round_trip(worker))


def _buffers(host: Host, where: str, rate: float, round_trip_s: float) -> Iterator[Finding]:
    for name, size in (("tcp_rmem", host.receive_buffer), ("tcp_wmem", host.send_buffer)):
        if 0 < size < (needed := 2 * rate * round_trip_s):
            yield Finding(
                Level.SLOW,
                "limits",
                where,
                f"net.ipv4.{name} allows {size >> 10} KiB, but this path needs {needed / 1024:.0f}",
                f"raise the last number of net.ipv4.{name}",
                1 - size / needed,
            )


def _round_trip(worker: Worker) -> float:
    paths = [reducer.path for reducer in worker.reducers if reducer.path is not None]
    return max((path.rtt_s for path in paths), default=0.0)
