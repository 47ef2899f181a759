"""Check whether reducer processes can be reached and used from here, and over which path."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

from reduction.client.access import with_certificates
from reduction.errors import MalformedFrame, ReductionError
from reduction.process.place import address_of_interface

from reducer.config import split_address
from reducer.doctor.facts import Path, Reducer
from reducer.doctor.session import Session
from reducer.observe.status import LOOKS_AT_A_TIME, NoAnswer, StatusAccess, fetch

#: Timeout for a port to accept a connection, in seconds.
CONNECT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Parameters for visiting reducers."""

    access: StatusAccess
    job: str
    timeout_s: float

    def session(self, address: str) -> Session:
        """Return a session with a reducer process.

        Raises:
            ConfigError: a certificate cannot be used, or there is no token for the job.
        """
        access = with_certificates(self.access.tls, self.access.metadata_of(self.job))
        return Session(address, access, self.job, self.timeout_s)


async def look_at(addresses: Sequence[str], visit: Visit) -> list[Reducer]:
    """Look at the processes at these addresses, and then at their siblings. The loop must be otherwise idle.

    Raises:
        ConfigError: a certificate cannot be used.
    """
    with ThreadPoolExecutor(LOOKS_AT_A_TIME) as pool:
        given = list(pool.map(lambda address: _look(address, visit), dict.fromkeys(addresses)))
        beside = {
            f"{reducer.address.rpartition(':')[0]}:{port}": reducer.address
            for reducer, ports in given
            for port in ports
        }
        others = [address for address in beside if address not in addresses]
        siblings = list(pool.map(lambda address: _look(address, visit), others))
    found = [reducer for reducer, _ in (*given, *siblings)]
    found = [replace(reducer, given=beside.get(reducer.address, reducer.address)) for reducer in found]
    slots = asyncio.Semaphore(LOOKS_AT_A_TIME)

    async def tried(reducer: Reducer) -> Reducer:
        """Return the reducer with the facts of a session, unless it already has trouble."""
        if reducer.trouble:
            return reducer
        try:
            async with slots, visit.session(reducer.address) as one:
                plane, why_not = one.plane, one.why_not_tcp
                seen = replace(reducer, plane=plane, why_not_tcp=why_not, is_near=one.is_near)
                return replace(seen, path=await _path(one))
        except ReductionError as error:
            return replace(reducer, trouble=f"{type(error).__name__}: {error}")

    return await asyncio.gather(*map(tried, found))


def _look(address: str, visit: Visit) -> tuple[Reducer, tuple[int, ...]]:
    """Return the reducer at an address, and the ports of its siblings."""
    seen = Reducer(address=address, given=address)
    if trouble := _connect(address):
        return replace(seen, trouble=trouble), ()
    try:
        status = fetch(address, visit.timeout_s, visit.access)
    except NoAnswer as error:
        return replace(seen, trouble=_why_no_answer(str(error), visit)), ()
    except MalformedFrame as error:
        return replace(seen, trouble=f"its answer is not a valid status: {error}"), ()
    seen = replace(
        seen,
        version=status.version,
        is_draining=status.draining,
        jobs=sorted({job.title for job in status.jobs if not _is_ours(job.job, job.group, visit)}),
        free_bytes=max(0, status.memory_limit_bytes - status.memory_reserved_bytes),
    )
    return seen, status.siblings


def _is_ours(job: str, group: str, visit: Visit) -> bool:
    """Return whether a job belongs to a doctor of this run, on this or another host."""
    return job == visit.job and group.startswith("doctor ")


def _connect(address: str) -> str:
    """Return why the control port does not accept connections; empty if it does."""
    host, port = split_address(address)
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except socket.gaierror as error:
        return f"the name {host!r} has no address: {error.strerror}"
    except TimeoutError:
        return f"port {port} does not answer within {CONNECT_S:g} s: the host is down, or a firewall drops packets"
    except ConnectionRefusedError:
        return f"nothing listens on port {port}: no reducer runs there, or it uses another port"
    except (OSError, UnicodeError) as error:
        return f"port {port} cannot be reached: {error}"
    return ""


def _why_no_answer(reason: str, visit: Visit) -> str:
    if "Deadline" in reason:
        return (
            f"its port accepts connections, but the process has not answered for {visit.timeout_s:g} s: it is "
            f"stopped, hangs, or is not a reducer"
        )
    return reason


async def _path(one: Session) -> Path:
    answers = sorted(await one.ping())
    source, mss, state = one.connection
    interface = interface_of(source) if source else ""
    return Path(
        interface=interface,
        source=source,
        link_mbit=link_speed(interface),
        mss=mss,
        rtt_s=state.least_rtt_s,
        answer_s=answers[0],
        answer_p99_s=answers[int(0.99 * len(answers))],
    )


def interface_of(address: str) -> str:
    """Return the name of the interface with an IPv4 address; empty if not found."""
    return next((name for _, name in socket.if_nameindex() if address_of_interface(name) == address), "")


def link_speed(interface: str, root: FilePath = FilePath("/")) -> int:
    """Return the Mbit/s that a network card has negotiated; 0 if it reports none or is virtual."""
    folder = root / "sys/class/net" / interface
    with contextlib.suppress(OSError, ValueError):
        if interface and (folder / "device").exists():
            return max(0, int((folder / "speed").read_text()))
    return 0
