"""A network with links of a known rate, with every worker and every reducer on a separate host.

     w0          w1    ...    r0          r1         a network namespace each, with eth0, lo and its own TCP
    eth0        eth0         eth0        eth0        10.77.0.1, .2, ... workers; 10.77.1.1, .2, ... reducers
     | tbf up    |            |           |
     | tbf down  |            |           |
    port w0   port w1  ...  port r0     port r1      veth pairs
    +-----------------------------------------+
    |         bridge, itself unlimited        |      also in its own namespace
    +-----------------------------------------+

A token bucket shapes the packets that leave an interface, so every link has two of them: one at the
host for sent packets, and one at the bridge's port for received packets. Nothing outside these
namespaces is touched.

- Queue: a bucket holds as many bytes as the rate carries in `latency_ms`, and drops further
  packets, like a switch or a network card without pause frames. Both ends of a link have such a
  queue, like a host and a switch. The bytes that pass immediately after a pause (the burst) never wait,
  so they are in effect a second queue. That is why they are limited to the size of the first one.
- Packets: TCP passes up to 64 KiB as one packet. On a real host the network card cuts it into frames,
  and the other card joins them again. Here nothing has to cut it: `tbf` passes it whole if its burst is
  large enough, and counts the bytes that all its frames would have. The burst is 128 KiB, which is two
  such packets. With one, tokens overflow whenever the timer that wakes the bucket is late on a busy
  core, and bandwidth is lost. If a burst or a queue is shorter than that, packets are smaller, so that
  two fit (`Link.packet_bytes`). That costs CPU, which is scarce on a machine that plays all hosts (a
  ring at n=4 and 500 Mbit/s: 1.3 CPU s/GB per worker at 64 KiB, 2.5 at 32 KiB, 4.6 at 16 KiB). A full
  queue drops whole packets, which is harsher than a switch that drops frames. `Link.packet_segments`
  makes packets even smaller.
- Small sums would pass in one burst of 128 KiB without being limited by the rate. Measure them with a
  small burst.
- Congestion control: "cubic", Linux's default, if namespaces may choose it, else "reno". At such short
  round trips cubic behaves like reno (RFC 9438, section 4.3). The machine's own default could be
  anything.
- Long paths: with `Link.delay_ms`, a host sends through another device, out0, and a process holds its
  packets (benchmarks/lab/delay.py).
- TCP begins every connection without memory of earlier ones over that link (tcp_no_metrics_save).
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from benchmarks.lab.delay import IN, OUT, Delay
from benchmarks.lab.hosts import NETNS, Host
from benchmarks.lab.traffic import Link, Traffic

COMMAND_TIMEOUT_S = 30.0

_PREFIX = "reduction-bench"
#: Parameters for testing whether the kernel accepts a token bucket.
_TRIED = ("rate", "100mbit", "burst", "64kb", "limit", "64kb")
#: Subnet of all hosts, and the switch's address where it routes.
_SUBNET, _SWITCH = "10.77.0.0/16", "10.77.255.254/16"
_CONGESTION = ("cubic", "reno")
_counter = itertools.count()


class NetworkUnavailable(Exception):
    """This machine cannot shape links. The message names the missing part."""


class Network:
    """Hosts on shaped links, as a context manager.

    If this process is killed, the next run removes its leftover namespaces.
    """

    def __init__(
        self, workers: int, reducers: int, link: Link, slower: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        check_network()
        _remove_stale()
        name = f"{_PREFIX}-{os.getpid()}-{next(_counter)}"
        self._bridge = Host(address="", interface="bridge", namespace=f"{name}-bridge")
        self.workers = [_host(f"{name}-w{index}", 0, index) for index in range(workers)]
        self.reducers = [_host(f"{name}-r{index}", 1, index) for index in range(reducers)]
        if slower:
            self.workers, self.reducers = (
                [replace(host, link_mbit=link.rate_mbit * slower.get(_port(host), 1.0)) for host in hosts]
                for hosts in (self.workers, self.reducers)
            )
        self._delay: Delay | None = None
        atexit.register(self.close)
        try:
            self._build(link)
            if link.delay_ms:
                self._lengthen(link)
            self._shape(link, slower)
            #: The given link, with the name of the hosts' congestion control.
            self.link = replace(link, congestion=_tune(self.hosts, link.congestion))
        except BaseException:
            self.close()
            raise

    @property
    def hosts(self) -> list[Host]:
        """Return all hosts, the workers first."""
        return [*self.workers, *self.reducers]

    def change(self, slower: Mapping[str, float]) -> None:
        """Give these links a fraction of the rate, and all others the full rate, without telling the hosts."""
        self._shape(self.link, slower)

    def traffic(self) -> Traffic:
        """Return the traffic of all links so far, from the counters of the token buckets.

        A bucket counts the headers of every frame, even if several frames pass as one packet. An
        interface does not.
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
        """Remove all namespaces. One with a running process loses its name now, and ends with the process."""
        atexit.unregister(self.close)
        if self._delay is not None:
            self._delay.close()
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
        packets = ["gso_max_size", f"{link.packet_bytes}"]
        packets += ["gso_max_segs", f"{link.packet_segments}"] if link.packet_segments else []
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

    def _lengthen(self, link: Link) -> None:
        """Let the hosts send through devices whose packets a process delays, and let the switch route them."""
        switch = _name(self._bridge)
        try:
            self._delay = Delay(link.delay_ms, self.hosts, self._bridge)
        except OSError as error:
            raise NetworkUnavailable(f"long paths need TUN devices: {error}") from error
        with self._bridge.entered():
            _sysctl("ip_forward", "1")
        _run("ip", "-n", switch, "address", "add", _SWITCH, "dev", "bridge")
        _run("ip", "-n", switch, "link", "set", "dev", IN, "up")
        for host in self.hosts:
            name = _name(host)
            with host.entered():  # packets arrive through another device than answers leave
                _sysctl("conf/all/rp_filter", "0")
                _sysctl(f"conf/{host.interface}/rp_filter", "0")
            _run("ip", "-n", name, "link", "set", "dev", OUT, "gso_max_size", f"{link.packet_bytes}", "up")
            _run("ip", "-n", name, "route", "replace", _SUBNET, "dev", OUT, "src", host.address)

    def _shape(self, link: Link, slower: Mapping[str, float]) -> None:
        """Put a token bucket on each end of every link, or change existing ones."""
        # Switch ports have the same memory at any rate. tbf's own option `latency` would make the queue
        # longer by a burst.
        limits = ["burst", f"{link.bucket_bytes}", "limit", f"{link.queue_bytes}"]
        for host in self.hosts:
            rate_mbit = link.rate_mbit * slower.get(_port(host), 1.0)
            bucket = ["root", "tbf", "rate", f"{rate_mbit}mbit", *limits]
            _run("tc", "-n", _name(host), "qdisc", "replace", "dev", self._sends_by(host), *bucket)
            _run("tc", "-n", _name(self._bridge), "qdisc", "replace", "dev", _port(host), *bucket)

    def _sends_by(self, host: Host) -> str:
        """Return the device through which a host sends."""
        return host.interface if self._delay is None else OUT

    def _buckets(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the counters of all links in the order of the hosts, for sending and for receiving."""
        # The commands run in parallel. Sequentially they would take 0.1 s for 16 hosts on a busy machine.
        places = [self._bridge, *self.hosts]
        answers = _together([["tc", "-n", _name(place), "-s", "-j", "qdisc"] for place in places])
        tables = [{bucket["dev"]: bucket for bucket in json.loads(answer)} for answer in answers]
        up = [table[self._sends_by(host)] for host, table in zip(self.hosts, tables[1:], strict=True)]
        return up, [tables[0][_port(host)] for host in self.hosts]


def _host(namespace: str, subnet: int, index: int) -> Host:
    return Host(address=f"10.77.{subnet}.{index + 1}", interface="eth0", namespace=namespace)


def _name(host: Host) -> str:
    assert host.namespace is not None
    return host.namespace


def _port(host: Host) -> str:
    return _name(host).rpartition("-")[2]


def check_network() -> None:
    """Check that links can be shaped on this machine.

    Raises:
        NetworkUnavailable: something is missing.
    """
    missing = [f"the command {name} (iproute2)" for name in ("ip", "tc") if shutil.which(name) is None]
    if os.geteuid() != 0:
        missing.insert(0, "root")
    if missing:
        raise NetworkUnavailable(f"shaped links need {', '.join(missing)}")
    # Root in a container may lack the rights, and a kernel other than Linux (gVisor) the calls.
    namespace = f"{_PREFIX}-{os.getpid()}-{next(_counter)}"
    _run("ip", "netns", "add", namespace)
    try:
        _run("tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "tbf", *_TRIED)
    finally:
        _run("ip", "netns", "del", namespace)


def _remove_stale() -> None:
    """Remove the namespaces of runs that were killed."""
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
    """Run commands in parallel, and return their outputs."""
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
