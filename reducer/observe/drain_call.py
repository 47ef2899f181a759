"""Ask reducers to drain, and watch their processes until they have ended."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from reduction import wire
from reduction.errors import MalformedFrame
from reduction.model import Presence

from reducer.config import split_address
from reducer.observe.status import LOOKS_AT_A_TIME, NoAnswer, StatusAccess, call, look, look_at
from reducer.observe.summary import Process

#: Pause between two looks, in seconds.
LOOK_S = 0.5
#: Timeout for a look at one process, in seconds.
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Answers:
    """The reducers' answers to the Drain call."""

    #: Incarnations of all processes of draining reducers, by address.
    processes: dict[str, bytes]
    #: Reasons for missing answers, by address.
    refusals: dict[str, str]
    #: The longest drain timeout of any of them, in seconds.
    timeout_s: float


def ask_to_drain(addresses: Sequence[str], timeout_s: float, access: StatusAccess) -> Answers:
    """Ask the reducers at these addresses to drain.

    Raises:
        ConfigError: a certificate or private key cannot be used.
    """

    def ask(address: str) -> tuple[list[Process], float | str]:
        until_s = time.monotonic() + timeout_s
        processes = look([address], timeout_s, access)
        left_s = max(0.0, until_s - time.monotonic())
        try:
            return processes, wire.drain_from_wire(call("Drain", address, left_s, access))
        except NoAnswer as error:
            return processes, str(error)
        except MalformedFrame as error:
            return processes, f"its answer is not a valid status: {error}"

    with ThreadPoolExecutor(LOOKS_AT_A_TIME) as pool:
        answers = dict(zip(addresses, pool.map(ask, addresses), strict=True))
    return Answers(
        {
            process.address: process.status.incarnation
            for processes, said in answers.values()
            if isinstance(said, float)
            for process in processes
            if process.status is not None
        },
        {address: said for address, (_, said) in answers.items() if isinstance(said, str)},
        max((said for _, said in answers.values() if isinstance(said, float)), default=0.0),
    )


def wait_for_end(
    processes: Mapping[str, bytes], timeout_s: float, access: StatusAccess, show: Callable[[str], None]
) -> list[str]:
    """Wait until these processes have ended, and return the addresses of those that did not end in time.

    Args:
        processes: incarnations of the processes, by address.
        timeout_s: total time to wait, in seconds.
        access: credentials for the calls.
        show: called with a line whenever the reasons for waiting change.
    """
    left, shown = dict(processes), ""
    until_s = time.monotonic() + timeout_s
    while left:
        with ThreadPoolExecutor(LOOKS_AT_A_TIME) as pool:
            looks = list(pool.map(lambda address: look_at(address, ANSWER_S, access), left))
        looks = [process for process in looks if not has_ended(process, left[process.address])]
        left = {process.address: left[process.address] for process in looks}
        text = "; ".join(f"{process.address} {reason}" for process in looks if (reason := waits_for(process)))
        if text and text != shown:
            show(f"draining: {text}")
            shown = text
        if not left or time.monotonic() >= until_s:
            break
        time.sleep(min(LOOK_S, max(0.0, until_s - time.monotonic())))
    return list(left)


def has_ended(process: Process, incarnation: bytes) -> bool:
    """Return whether a process is gone, because nothing or another process listens at its address."""
    if process.status is not None:
        return process.status.incarnation != incarnation
    try:
        with socket.create_connection(split_address(process.address), ANSWER_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:  # the host may be cut off, and the process alive
        return False


def waits_for(process: Process) -> str:
    """Return the reason in words why a process has not ended; empty if there is none."""
    if process.status is None:
        return f"does not answer: {process.reason}"
    present = [
        f"job {job.title} ({sum(peer.presence is Presence.PRESENT for peer in job.peers)} of {job.world_size} ranks)"
        for job in process.status.jobs
    ]
    return f"waits for {', '.join(present)}" if present else ""
