"""Long paths: hold every packet that a host sends for a while before it reaches the switch.

The kernel's own method, `tc qdisc add ... netem delay`, is missing in many small kernels, so a process of
ours holds the packets. Each host sends through a TUN device (`OUT`), shaped like the card that it
replaces. The process reads from all of them, and writes due packets to a TUN device of the switch (`IN`):

    host 0: out0 (tbf) --\\
    host 1: out0 (tbf) ---+--> [process: queue of (due, packet)] --> in0 of the switch --> bridge --> hosts
    ...                  /

As in benchmarks.lab.network, packets pass whole, with the virtio header that describes how a network card
would cut them (see Linux's Documentation/networking/tuntap.rst).

    python -m benchmarks.lab.delay MILLISECONDS IN OUT...     the process itself, with the devices' descriptors
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence

from benchmarks.lab.hosts import Host

#: The devices through which a host sends, and through which the switch receives due packets.
OUT, IN = "out0", "in0"

# From linux/if_tun.h.
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
#: Size of the largest packet with its header.
_READ_BYTES = (64 << 10) + 64
#: Packets read from one device before the others get their turn.
_TURN = 16
#: The process must be on time whatever else the machine does.
_NICENESS = -10


class Delay:
    """The process that holds packets, from construction to `close`.

    Args:
        delay_ms: time for which packets are held.
        hosts: sending hosts; each gets the device OUT, which is down.
        switch: destination of the packets; it gets the device IN, which is down.
    """

    def __init__(self, delay_ms: float, hosts: Sequence[Host], switch: Host) -> None:
        devices = [_device(switch, IN), *(_device(host, OUT) for host in hosts)]
        command = [sys.executable, "-m", "benchmarks.lab.delay", f"{delay_ms}", *map(str, devices)]
        try:
            self._process = subprocess.Popen(command, pass_fds=devices, stdin=subprocess.DEVNULL)
        finally:
            for device in devices:  # the process has its own copies
                os.close(device)

    def close(self) -> None:
        """End the process. Its devices vanish with it."""
        self._process.kill()
        self._process.wait()


def _device(host: Host, name: str) -> int:
    with host.entered():
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return device


def _hold(delay_s: float, to: int, devices: Sequence[int]) -> None:
    """Forward packets forever, each `delay_s` after it was read."""
    held: deque[tuple[float, bytes]] = deque()
    poll = select.epoll()
    for device in devices:
        poll.register(device, select.EPOLLIN)
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        for device, _ in poll.poll(wait_s):
            for _ in range(_TURN):
                try:
                    packet = os.read(device, _READ_BYTES)
                except BlockingIOError:
                    break
                held.append((time.monotonic() + delay_s, packet))
        now = time.monotonic()
        while held and held[0][0] <= now:
            os.write(to, held.popleft()[1])


def main() -> None:
    os.nice(_NICENESS)
    to, *devices = map(int, sys.argv[2:])
    _hold(float(sys.argv[1]) / 1e3, to, devices)


if __name__ == "__main__":
    main()
