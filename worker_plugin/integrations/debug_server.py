"""torch's debug server (torch.distributed.debug, since torch 2.13): a page showing what all ranks wait for.

    from torch.distributed.debug import start_debug_server
    from worker_plugin.integrations.debug_server import handlers

    start_debug_server(handlers=handlers(state), start_method="spawn")

Every rank calls this, and rank 0 then serves http://HOST:25999/reduction alongside torch's own pages. The server needs
jinja2, tabulate, and aiohttp or requests. torch calls it experimental, and it requires no password.
"""

from __future__ import annotations

import json
import weakref
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from reduction.errors import ConfigError
from reduction.timeline.clocks import offsets
from reduction.timeline.record import Record, from_json
from reduction.timeline.verdict import verdict
from torch._C._distributed_c10d import _register_handler, _Request, _Response
from torch.distributed.debug._frontend import DebugHandler, HTTPRequestHandler, NavLink, Route, fetch_all
from torch.distributed.debug._store import get_rank

from worker_plugin.state import ReductionState

#: Name of rank 0's request to all ranks.
_NAME = "reduction"
#: Number of each rank's latest collectives that the page covers.
LATEST = 64
_TEMPLATE = """
{% extends "base.html" %}
{% block header %}<h1>{% block title %}Reduction Server{% endblock %}</h1>{% endblock %}
{% block content %}<pre>{{ text | e }}</pre>{% endblock %}
"""
_states: weakref.WeakSet[ReductionState] = weakref.WeakSet()


def handlers(*states: ReductionState) -> list[DebugHandler]:
    """Make this process answer for these states, and return the server's handlers: torch's and ours.

    On ranks other than 0 the list is empty, because no server starts there.
    """
    if not _states:
        _register_handler(_NAME, _answer)
    _states.update(states)
    if get_rank() != 0:
        return []
    from torch.distributed.debug._debug_handlers import default_handlers

    return [*default_handlers(), ReductionHandler()]


def _answer(request: _Request, response: _Response) -> None:
    """Answer rank 0's request for the page, on one of torch's threads."""
    answers = [(repr(state), _record(state)) for state in list(_states)]
    response.set_content(json.dumps(answers), "application/json")
    response.set_status(200)


def _record(state: ReductionState) -> str | None:
    """Return the state's latest collectives, or None if it has had none."""
    record = state.record()
    return None if record is None else replace(record, spans=record.spans[-LATEST:]).to_json()


class ReductionHandler(DebugHandler):
    """The page, and the file that the server writes when it dumps."""

    def routes(self) -> list[Route]:
        """Return the path of the page."""
        return [Route("/reduction", self._page)]

    def nav_links(self) -> list[NavLink]:
        """Return the entry in the server's menu."""
        return [NavLink("/reduction", "Reduction Server")]

    def templates(self) -> dict[str, str]:
        """Return the page's template."""
        return {"reduction.html": _TEMPLATE}

    def dump(self) -> str:
        """Return the text of the page."""
        return "\n".join(self._lines())

    def dump_filename(self) -> str:
        """Return the name for `enabled_dumps`."""
        return _NAME

    def _page(self, request: HTTPRequestHandler) -> bytes:
        return request.frontend.render_template("reduction.html", text=self.dump())

    def _lines(self) -> Iterator[str]:
        """Yield each rank's description of itself, and then for each job what its ranks wait for."""
        jobs: dict[str, list[Record]] = defaultdict(list)
        addresses, answers = fetch_all(_NAME, timeout=self.fetch_timeout)
        for rank, (address, answer) in enumerate(zip(addresses, answers, strict=True)):
            if answer.status_code != 200:
                yield f"rank {rank}: no answer from {address}: {answer.status_code} {answer.text}"
                continue
            for state, record in json.loads(answer.text):
                yield f"rank {rank}: {state}"
                if record is not None:
                    try:
                        jobs[(found := from_json(record, address)).job].append(found)
                    except ConfigError as error:
                        yield f"rank {rank}: {error}"
        for job, records in jobs.items():
            yield f"\n{job}: the latest {LATEST} collectives"
            yield from (f"  {line}" for line in verdict(records, offsets(records)))
