"""Wait until the reducers of a cluster can be reached, and report the missing ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence

from reduction.errors import ReducerUnavailable

#: Missing reducers are dialled again after this many seconds.
PAUSE_S = 0.5
#: Timeout of one dial, in seconds.
DIAL_S = 3.0
#: Maximum simultaneous dials. Each takes a descriptor, and a process may have only 1024.
DIALS_MAX = 200
#: Interval of progress lines while nothing changes, in seconds.
SAY_S = 15.0
#: Maximum number of missing reducers named in a line.
NAMED_MAX = 4


def wait_for_reducers(addresses: Sequence[str], timeout_s: float, say: Callable[[str], None]) -> None:
    """Return when a reducer listens at each address. A name is looked up again at each dial.

    Args:
        addresses: HOST:PORT of each reducer.
        timeout_s: timeout for all, in seconds.
        say: called with a line at the beginning, at each change, and from time to time.

    Raises:
        ReducerUnavailable: the timeout has passed; the message names the missing reducers and the reasons.
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
            say(f"all {len(addresses)} reducers can be reached")
            return
        of_all = f"{len(missing)} of {len(addresses)} reducers"
        if now >= started_at + timeout_s:
            each = [f"{address} ({reason})" for address, reason in why.items()]
            raise ReducerUnavailable(f"{of_all} could not be reached within {timeout_s:g} s: {_listed(each)}")
        if missing != said or now >= say_at:
            said, say_at = missing, now + SAY_S
            left = started_at + timeout_s - now
            say(f"waiting for {of_all}: {_listed(missing)}; giving up in {left:.0f} s")
        await asyncio.sleep(min(PAUSE_S, started_at + timeout_s - now))


async def _dial(address: str, turns: asyncio.Semaphore) -> str:
    """Return why the address could not be reached; empty if a process listens there."""
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
