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

- Queue: a bucket holds what the rate carries in `latency_ms` and drops what comes beyond, like a switch or a card
  without pause frames. Both ends have one, as a host's own queue and a switch's have.
- Packets: TCP hands over up to 64 KiB as one packet, which on a real host the card cuts, and the other card joins
  again. Here nothing needs to cut it: `tbf` passes it whole, for its full length on the wire, if its burst is
  as large. That is why the burst is 128 KiB, two of them: with one, tokens overflow whenever the timer that
  wakes the bucket is late on a busy core, and rate is lost. Smaller packets cost a machine that is all hosts at once
  more than it has (a ring at n=4 and 500 Mbit/s: 1.3 CPU s/GB per worker at 64 KiB, 2.5 at 32, 4.6 at 16).
  But then 128 KiB pass at once after a pause, so small sums would not see the rate at all: measure them with a
  small burst. Packets are held to half of it (`Link.packet_bytes`).
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

from benchmarks.lab.hosts import NETNS, Host
from benchmarks.lab.traffic import Link, Traffic

COMMAND_TIMEOUT_S = 30.0

_PREFIX = "reduction-bench"
_CONGESTION = ("cubic", "reno")
_counter = itertools.count()


class NetworkUnavailable(Exception):
    """This machine cannot shape links; the message says what is missing."""


class Network:
    """Hosts on shaped links. A context manager; ends with the process at the latest, or with the next run."""

    def __init__(self, workers: int, reducers: int, link: Link) -> None:
        check_network()
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
        # Not tbf's own `latency`: it lets the queue hold a burst more than that.
        limits = ["burst", f"{link.burst_bytes}", "limit", f"{link.queue_bytes}"]
        bucket = ["root", "tbf", "rate", f"{link.rate_mbit}mbit", *limits]
        packets = ["gso_max_size", f"{link.packet_bytes}"]
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


def check_network() -> None:
    """Find out whether links can be shaped here.

    Raises:
        NetworkUnavailable: they cannot.
    """
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
