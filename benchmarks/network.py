"""A network with links of a known rate: every worker and every reducer on a host of its own.

     w0          w1    ...    r0          r1         a network namespace each: eth0, lo, TCP of its own
    eth0        eth0         eth0        eth0        10.77.0.1, .2, ... workers; 10.77.1.1, .2, ... reducers
     | tbf up    |            |           |
     | tbf down  |            |           |
    port w0   port w1  ...  port r0     port r1      veth pairs
    +-----------------------------------------+
    |         bridge, unlimited itself        |      in a namespace of its own, too
    +-----------------------------------------+

A token bucket shapes what leaves an interface, so every link has two of them: at the host for what it sends, at
the port for what it receives. Nothing outside these namespaces is touched.

- Queue: a bucket holds `latency_ms` of the rate and drops what comes beyond, like a switch or a card without
  pause frames. Both ends have one, as a host's own queue and a switch's have.
- Packets: TCP hands over up to 64 KiB as one, which the card cuts. `tbf` passes such a packet whole if its
  burst is at least as large, or cuts it itself, which costs two cores too much. Whole packets of 64 KiB in turn
  for a burst of 64 KiB would however let small sums pass unshaped, and drops would be as coarse. So packets
  are held to 16 KiB (SUPER_PACKET), 0.26 ms at 500 Mbit/s, and the burst is two of them. A smaller one loses
  rate: its tokens overflow whenever the timer that wakes the bucket is late on a busy core (seen: 471 instead of
  478 Mbit/s with 20 kB at 500 Mbit/s).
- Congestion control: "cubic", Linux's default, where namespaces may choose it, else "reno", to which cubic
  comes down at round trips this short (RFC 9438, section 4.3). The machine's own default may be anything.
- TCP starts every connection afresh (tcp_no_metrics_save), whatever went over that link before.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.hosts import NETNS, Host
from benchmarks.traffic import Link, Traffic

#: Most bytes that TCP hands to an interface as one packet.
SUPER_PACKET = 16 << 10

COMMAND_TIMEOUT_S = 30.0

_PREFIX = "reduction-bench"
_CONGESTION = ("cubic", "reno")
_counter = itertools.count()


class NetworkUnavailable(Exception):
    """This machine cannot shape links; the message says what is missing."""


class Network:
    """Hosts on shaped links. A context manager; ends with the process at the latest, or with the next run."""

    def __init__(self, workers: int, reducers: int, link: Link) -> None:
        _check()
        _remove_stale()
        name = f"{_PREFIX}-{os.getpid()}-{next(_counter)}"
        self._bridge = Host(address="", interface="bridge", namespace=f"{name}-bridge")
        self.workers = [_host(f"{name}-w{index}", 0, index) for index in range(workers)]
        self.reducers = [_host(f"{name}-r{index}", 1, index) for index in range(reducers)]
        atexit.register(self.close)
        try:
            self._build(link)
            #: With the congestion control that the hosts use.
            self.link = replace(link, congestion=_tune(self.hosts, link.congestion))
        except BaseException:
            self.close()
            raise

    @property
    def hosts(self) -> list[Host]:
        """Return all, the workers first."""
        return [*self.workers, *self.reducers]

    def traffic(self) -> Traffic:
        """Return what went over the links until now.

        The buckets count: unlike an interface they know the headers of every packet that they pass as one.
        """
        up, down = self._buckets()
        of_workers, of_reducers = slice(len(self.workers)), slice(len(self.workers), None)
        sent, received = [bucket["bytes"] for bucket in up], [bucket["bytes"] for bucket in down]
        return Traffic(
            worker_tx_bytes=sum(sent[of_workers]),
            worker_rx_bytes=sum(received[of_workers]),
            reducer_tx_bytes=sum(sent[of_reducers]),
            reducer_rx_bytes=sum(received[of_reducers]),
            dropped_packets=sum(bucket["drops"] for bucket in up + down),
            retransmitted_segments=sum(_retransmitted(host) for host in self.hosts),
        )

    def close(self) -> None:
        """Remove all; processes should have left, or the namespaces stay nameless until they do."""
        atexit.unregister(self.close)
        for host in (self._bridge, *self.hosts):
            assert host.namespace is not None
            if (NETNS / host.namespace).exists():
                _run("ip", "netns", "del", host.namespace)

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _build(self, link: Link) -> None:
        limits = ["rate", f"{link.rate_mbit}mbit", "burst", f"{link.burst_bytes}"]
        bucket = ["root", "tbf", *limits, "latency", f"{link.latency_ms}ms"]
        packets = ["gso_max_size", f"{SUPER_PACKET}"]
        switch = _name(self._bridge)
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "dev", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "dev", "bridge", "up")
        for host in self.hosts:
            name, port, card = _name(host), _port(host), host.interface
            _run("ip", "netns", "add", name)
            peer = ["peer", "name", card, "netns", name]
            _run("ip", "-n", switch, "link", "add", "dev", port, "type", "veth", *peer)
            _run("ip", "-n", switch, "link", "set", "dev", port, *packets, "master", "bridge", "up")
            _run("ip", "-n", name, "link", "set", "dev", "lo", "up")
            _run("ip", "-n", name, "address", "add", f"{host.address}/16", "dev", card)
            _run("ip", "-n", name, "link", "set", "dev", card, *packets, "up")
            _run("tc", "-n", name, "qdisc", "add", "dev", card, *bucket)
            _run("tc", "-n", switch, "qdisc", "add", "dev", port, *bucket)

    def _buckets(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the counters of all links in the order of the hosts: what they sent, what they received."""
        # All at once: one after the other takes 0.1 s for 16 hosts on a busy machine.
        places = [self._bridge, *self.hosts]
        answers = _together([["tc", "-n", _name(place), "-s", "-j", "qdisc"] for place in places])
        tables = [{one["dev"]: one for one in json.loads(answer)} for answer in answers]
        up = [table[host.interface] for host, table in zip(self.hosts, tables[1:], strict=True)]
        return up, [tables[0][_port(host)] for host in self.hosts]


def _host(namespace: str, subnet: int, index: int) -> Host:
    return Host(address=f"10.77.{subnet}.{index + 1}", interface="eth0", namespace=namespace)


def _name(host: Host) -> str:
    assert host.namespace is not None
    return host.namespace


def _port(host: Host) -> str:
    return _name(host).rpartition("-")[2]


def _check() -> None:
    missing = [f"the command {name} (iproute2)" for name in ("ip", "tc") if shutil.which(name) is None]
    if os.geteuid() != 0:
        missing.insert(0, "root")
    if missing:
        raise NetworkUnavailable(f"shaped links need {', '.join(missing)}")


def _remove_stale() -> None:
    """Remove what killed runs have left."""
    for path in NETNS.glob(f"{_PREFIX}-*-*"):
        pid = path.name.removeprefix(f"{_PREFIX}-").partition("-")[0]
        if not Path("/proc", pid).exists():
            _run("ip", "netns", "del", path.name)


def _tune(hosts: Sequence[Host], congestion: str) -> str:
    for host in hosts:
        with host.entered():
            _sysctl("tcp_no_metrics_save", "1")
            for name in [congestion] if congestion else _CONGESTION:
                try:
                    _sysctl("tcp_congestion_control", name)
                    break
                except OSError:
                    continue
            else:
                raise NetworkUnavailable(f"the kernel does not let a namespace choose {congestion!r}")
    return name


def _sysctl(name: str, value: str) -> None:
    Path("/proc/sys/net/ipv4", name).write_text(value)


def _retransmitted(host: Host) -> int:
    with host.entered():
        lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def _run(*command: str) -> None:
    _together([command])


def _together(commands: Sequence[Sequence[str]]) -> list[str]:
    """Run commands side by side; return what they say."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = [subprocess.Popen(command, text=True, **pipes) for command in commands]  # type: ignore[call-overload]
    answers = []
    for command, process in zip(commands, running, strict=True):
        try:
            out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
        finally:
            process.kill()
        if process.returncode != 0:
            raise NetworkUnavailable(f"shaped links: {' '.join(command)}: {err.strip()}")
        answers.append(out)
    return answers
