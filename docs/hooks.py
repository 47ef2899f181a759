"""Shows documents that lie outside of docs/ as pages of the site.

In the repository such a page is one line with a link. On the site it has the text of the document
itself. A link to such a document leads to its page, and a link to any other file outside of docs/ is plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: The page of each document.
PAGES = {"README.md": "index.md", "SECURITY.md": "security.md", "proto/README.md": "protocol.md"}
#: The text of a link to a file, the file, and the place in it.
_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Return what mkdocs is to render for a page."""
    name = page.file.src_uri
    source = next((document for document, shown in PAGES.items() if shown == name), f"docs/{name}")

    def on_site(link: re.Match[str]) -> str:
        text, target, place = link.groups(default="")
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if path not in PAGES and not path.startswith("docs/"):
            return text
        shown = PAGES.get(path) or path.removeprefix("docs/")
        return f"[{text}]({os.path.relpath(shown, os.path.dirname(name) or '.')}{place})"

    return _LINK.sub(on_site, (ROOT / source).read_text(encoding="utf-8") if source in PAGES else markdown)
