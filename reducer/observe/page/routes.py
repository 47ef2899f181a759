"""The paths of the page: / and its style and script, which are files of this package, and /api/status.

A browser may load nothing else for it from anywhere, and run nothing outside the script file. So names of
jobs and hosts, which peers choose, stay text even if the script has a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reducer.observe.http import Page
from reducer.observe.page.sampler import Sampler
from reducer.transports.http_server import Answer

#: https://developer.mozilla.org/docs/Web/HTTP/Guides/CSP
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def routes(sampler: Sampler) -> Mapping[str, Page]:
    """Return the function that answers each path.

    Raises:
        OSError: a file of this package is missing.
    """
    files = {path: _file(*file) for path, file in _FILES.items()}
    return files | {"/api/status": lambda: _with_headers(sampler.answer())}


def _file(name: str, content_type: str) -> Page:
    found = _with_headers(Answer(Path(__file__).with_name(name).read_text(encoding="utf-8"), content_type))
    return lambda: found


def _with_headers(answer: Answer) -> Answer:
    return Answer(answer.text, answer.content_type, answer.status, HEADERS)
