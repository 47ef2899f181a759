"""Shows documents that lie outside of docs/ as pages of the site.

In the repository such a page is one line with a link. On the site it has the text of the document
itself, whose links are turned into links between pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: The document of each page, and what its links become on the site.
DOCUMENTS: dict[str, tuple[str, dict[str, str]]] = {
    "security.md": ("SECURITY.md", {"(proto/README.md": "(protocol.md"}),
    "protocol.md": (
        "proto/README.md",
        {
            "(../SECURITY.md": "(security.md",
            "[`reduction/v1/reduction.proto`](reduction/v1/reduction.proto)": "`reduction/v1/reduction.proto`",
        },
    ),
}


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Return what mkdocs is to render for a page."""
    if page.file.src_uri not in DOCUMENTS:
        return markdown
    path, links = DOCUMENTS[page.file.src_uri]
    text = (ROOT / path).read_text(encoding="utf-8")
    for ours, theirs in links.items():
        text = text.replace(ours, theirs)
    return text
