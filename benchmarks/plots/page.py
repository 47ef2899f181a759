"""The report as one HTML file: no scripts, nothing that it loads from elsewhere. plots.py fills it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #5b6470; --paper: #ffffff; --rule: #d8dee4;
  --band: #f4f6f8; --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --faint: #9aa4af; --paper: #14181c;
  --rule: #343b43; --band: #1c2228; --accent: #56b4e9; } }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p, li { max-width: 48rem; } .faint, figcaption { color: var(--faint); }
nav a { margin-right: 1rem; } a { color: var(--accent); }
figure { margin: 1rem 0 2rem; } figure img { max-width: 100%; height: auto; background: #fff; border-radius: 6px;
  border: 1px solid var(--rule); }
figcaption { max-width: 48rem; font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .82rem; margin: .5rem 0 1rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { background: var(--band); vertical-align: bottom; white-space: normal; font-weight: 600; }
th:first-child, td:first-child, .plain td { text-align: left; } tbody tr:hover { background: var(--band); }
.plain td { white-space: normal; overflow-wrap: anywhere; } code { font-size: .9em; }
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of the page."""

    png: bytes
    caption: str


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are plain text."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


#: What a section is made of; a string is a paragraph of plain text.
Part = str | Picture | Table | list[str]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and what follows it. One without parts is left out."""

    title: str
    parts: Sequence[Part]


def render(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Return the page."""
    shown = [section for section in sections if section.parts]
    links = "".join(f'<a href="#s{index}">{escape(section.title)}</a>' for index, section in enumerate(shown))
    body = "".join(_section(index, section) for index, section in enumerate(shown))
    # The policy makes "nothing from elsewhere" the browser's business, too.
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f'<body><h1>{escape(title)}</h1><p class="faint">{escape(subtitle)}</p><nav>{links}</nav>\n'
        f"{body}</body></html>\n"
    )


def _section(index: int, section: Section) -> str:
    parts = "\n".join(map(_part, section.parts))
    return f'<section><h2 id="s{index}">{escape(section.title)}</h2>\n{parts}</section>\n'


def _part(part: Part) -> str:
    match part:
        case str():
            return f"<p>{escape(part)}</p>"
        case Picture():
            encoded = base64.b64encode(part.png).decode("ascii")
            caption = escape(part.caption)
            image = f'<img alt="{caption}" src="data:image/png;base64,{encoded}">'
            return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
        case Table():
            return _table(part)
        case list():
            return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in part) + "</ul>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    # A table without a head is a list of names and values.
    kind, head = ("", f"<thead><tr>{head}</tr></thead>") if table.head else (' class="plain"', "")
    return f'<div class="scroll"><table{kind}>{head}<tbody>{rows}</tbody></table></div>'


def described(environment: dict[str, Any]) -> Table:
    """Return the environment of a run as a list of names and values."""
    rows = []
    for name, value in environment.items():
        if isinstance(value, dict):
            text = ", ".join(f"{key} {inner}" for key, inner in value.items()) or "none"
        elif name == "memory_bytes":
            text = f"{value / 2**30:.1f} GiB (1 GiB = 2^30 bytes)"
        elif name == "load_average":
            text = ", ".join(f"{load:.2f}" for load in value)
        else:
            text = str(value)
        rows.append([name.replace("_", " "), text])
    return Table([], rows)
