"""Waits until the reducers of a cluster can be reached, and says for which of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence

from reduction.errors import ReducerUnavailable

#: Reducers that are missing are dialled again after this many seconds.
PAUSE_S = 0.5
#: One dial may take this many seconds.
DIAL_S = 3.0
#: As many are dialled at once; each dial takes a descriptor, of which a process may have 1024.
DIALS_MAX = 200
#: As long as nothing changes, a line is said this often, in seconds.
SAY_S = 15.0
#: As many missing reducers are named in a line.
NAMED_MAX = 4


def wait_for_reducers(addresses: Sequence[str], timeout_s: float, say: Callable[[str], None]) -> None:
    """Return when a reducer listens at each address. A name is looked up again at each dial.

    Args:
        addresses: HOST:PORT of each.
        timeout_s: how long it may take, in seconds.
        say: gets a line at the beginning, at each change, and from time to time.

    Raises:
        ReducerUnavailable: it has taken too long; the message names the missing and why.
    """
    asyncio.run(_wait(addresses, timeout_s, say))


async def _wait(addresses: Sequence[str], timeout_s: float, say: Callable[[str], None]) -> None:
    started_at, turns = time.monotonic(), asyncio.Semaphore(DIALS_MAX)
    missing, said, say_at = list(addresses), list[str](), 0.0
    while True:
        reasons = await asyncio.gather(*(_dial(address, turns) for address in missing))
        why = {address: reason for address, reason in zip(missing, reasons, strict=True) if reason}
        missing = list(why)
        now = time.monotonic()
        if not missing:
            say(f"all {len(addresses)} reducers are there")
            return
        of_all = f"{len(missing)} of {len(addresses)} reducers"
        if now >= started_at + timeout_s:
            each = [f"{address} ({reason})" for address, reason in why.items()]
            raise ReducerUnavailable(f"{of_all} did not come within {timeout_s:g} s: {_listed(each)}")
        if missing != said or now >= say_at:
            said, say_at = missing, now + SAY_S
            left = started_at + timeout_s - now
            say(f"waiting for {of_all}: {_listed(missing)}; giving up in {left:.0f} s")
        await asyncio.sleep(min(PAUSE_S, started_at + timeout_s - now))


async def _dial(address: str, turns: asyncio.Semaphore) -> str:
    """Return why nobody could be reached there; empty if somebody listens."""
    host, _, port = address.rpartition(":")
    try:
        async with turns, asyncio.timeout(DIAL_S):
            _, writer = await asyncio.open_connection(host.removeprefix("[").removesuffix("]"), int(port))
    except TimeoutError:
        return "no answer"
    except (OSError, UnicodeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        # A name that does not resolve has a negative number, and asyncio's own text is long.
        return os.strerror(number).lower() if number and number > 0 else str(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


def _listed(items: Sequence[str]) -> str:
    rest = len(items) - NAMED_MAX
    return ", ".join(items[:NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")
