"""Faults of reducers, their names, and the connections that ranks open to them; see faults.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.faults import Fault
    from simulation.world import World

#: Most frames, in both directions together, that may arrive before the first Push.
HANDSHAKE_FRAMES = 8


def _kill_reducer(world: World, fault: Fault) -> None:
    """Kill one process; its siblings stay."""
    server = world.server(fault.first)
    world.note("kill reducer", [server.host], 0.0)
    server.kill(fault.second % len(server.reducers), restart_s=5 * fault.much)


def _kill_server(world: World, fault: Fault) -> None:
    server = world.server(fault.first)
    world.note("kill reducer", [server.host], 0.0)
    world.stop_server(server, restart_s=5 * fault.much)


def _silent_reducer(world: World, fault: Fault) -> None:
    """Stop the server's host without notifying anyone."""
    server = world.server(fault.first)
    seconds = 11 + 5 * fault.much
    world.isolate(server.host, seconds)
    world.note("silent reducer", [server.host], seconds)
    world.stop_server(server, restart_s=seconds)


def _drain(world: World, fault: Fault) -> None:
    server = world.server(fault.first)
    if server.may_drain:
        world.note("drain", [server.host], 0.0)
        server.drain(limit_s=20.0, restart_s=5 * fault.much)


def _move(world: World, fault: Fault) -> None:
    """Stop a server; another one replaces it at a new address, either in the name's answer or behind its alias."""
    server, aliases = world.server(fault.first), world.network.aliases
    world.note("kill reducer", [server.host], 0.0)
    following = [alias for alias, host in aliases.items() if host == server.host and fault.second % 2]
    world.stop_server(server, restart_s=fault.much, moves=True)
    aliases.update(dict.fromkeys(following, server.host))
    if not following:
        world.unnamed_until.pop(server, None)


def _refuse(world: World, fault: Fault) -> None:
    server = world.server(fault.first)
    seconds = 6 * fault.much
    world.note("refuse", [server.host], seconds)
    for reducer in server.reducers:
        world.network.refusing[reducer.address] = world.network.clock.now + seconds


def _unnamed(world: World, fault: Fault) -> None:
    """Leave a server out of the name service's answers."""
    server, seconds = world.server(fault.first), 40 * fault.much
    world.note("unnamed", [server.host], seconds)
    world.unnamed_until[server] = world.network.clock.now + seconds


def _alias(world: World, fault: Fault) -> None:
    """Let the name service report another address for a server from now on, or one of a server that was there before.

    Every other such fault removes the server's previous address.
    """
    server = world.server(fault.first)
    world.note("alias", [server.host], 0.0)
    world.network.aliases[f"alias-{server.host}"] = server.host
    if fault.second % 2 and all(job.shape.on_reducer_loss == "reshard" for job in world.jobs):
        world.unnamed_until[server] = math.inf


def _snap(world: World, fault: Fault) -> None:
    """Break the next connection to a reducer during its handshake, and an open one now."""
    reducers = world.reducers
    reducer = reducers[fault.first % len(reducers)]
    world.note("snap", [reducer.host], 0.0)
    world.network.fuses[reducer.address] = fault.second % HANDSHAKE_FRAMES
    if reducer.ends:
        ends = sorted(reducer.ends, key=lambda end: end.number)
        ends[int(fault.much * len(ends))].break_both()


def _no_memory(world: World, fault: Fault) -> None:
    """Make the allocation of the next accumulator fail."""
    reducer = world.reducers[fault.first % len(world.reducers)]
    pool = reducer.engine.pool
    take = pool.take

    def fail(nbytes: int) -> memoryview:
        pool.take = take  # type: ignore[method-assign]
        if world.is_calm:
            return take(nbytes)
        world.note("no memory", [reducer.host], 0.0)
        raise MemoryError(f"{nbytes} bytes")

    pool.take = fail  # type: ignore[method-assign]


KINDS: dict[str, Callable[[World, Fault], None]] = {
    "kill reducer": _kill_reducer,
    "kill server": _kill_server,
    "silent reducer": _silent_reducer,
    "drain": _drain,
    "move": _move,
    "refuse": _refuse,
    "unnamed": _unnamed,
    "alias": _alias,
    "snap": _snap,
    "no memory": _no_memory,
}
