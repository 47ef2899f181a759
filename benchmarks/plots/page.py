"""The report as one HTML file, without scripts and without anything that it would load from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks.method.table import Rows, without_empty_columns

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #5b6470; --paper: #ffffff; --rule: #d8dee4;
  --band: #f4f6f8; --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --faint: #9aa4af; --paper: #14181c;
  --rule: #343b43; --band: #1c2228; --accent: #56b4e9; } figure img { filter: brightness(.88); } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; scroll-margin-top: 1rem; }
p, li { max-width: 48rem; } ul { padding-left: 1.25rem; } .faint, figcaption { color: var(--faint); }
.faint { font-size: .9rem; } .lead { font-size: 1.15rem; line-height: 1.45; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; } nav a { padding: .2rem 0; } a { color: var(--accent); }
figure { margin: 1rem 0 2rem; } figure img { max-width: 100%; height: auto; background: #fff; border-radius: 6px;
  border: 1px solid var(--rule); display: block; }
figcaption { max-width: 48rem; font-size: .9rem; margin-top: .4rem; }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: 6px; margin: .5rem 0 1rem; }
.scroll:focus-visible { outline: 2px solid var(--accent); }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }
th { background: var(--band); vertical-align: bottom; font-weight: 600; }
th:first-child, td:first-child, .plain td { text-align: left; } tbody tr:hover { background: var(--band); }
.plain td { white-space: normal; overflow-wrap: anywhere; } .plain td:first-child { white-space: nowrap; }
.wide { border: 0; margin: 0; } .wide img { min-width: 46rem; }
@media (max-width: 40rem) { body { padding: 1.25rem .9rem 3rem; } h1 { font-size: 1.35rem; }
  .lead { font-size: 1.05rem; } figure { margin: 1rem 0 1.5rem; } }
@media print { .scroll { overflow: visible; border: 0; } tbody tr { break-inside: avoid; } }
"""


#: Figures of more pixels than this have several panels beside each other. On a phone they scroll in
#: a box.
_WIDE = 1000


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of the page."""

    png: bytes
    caption: str

    @property
    def width(self) -> int:
        """In pixels; a PNG file has its width in bytes 16 to 19."""
        return int.from_bytes(self.png[16:20], "big")


@dataclass(frozen=True, slots=True)
class Table:
    """Titles and cells as plain text; columns that are empty in every row are not shown."""

    head: Sequence[str]
    rows: Rows


@dataclass(frozen=True, slots=True)
class Lead:
    """A paragraph in larger letters, as plain text."""

    text: str


#: A section is made of these; a string is a paragraph of plain text.
Part = str | Lead | Picture | Table | list[str]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its parts. A section without parts is not shown."""

    title: str
    parts: Sequence[Part]


def render(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Return the page."""
    shown = [section for section in sections if section.parts]
    links = "".join(f'<a href="#s{index}">{escape(section.title)}</a>' for index, section in enumerate(shown))
    body = "".join(_section(index, section) for index, section in enumerate(shown))
    # With this policy the browser refuses whatever would be loaded from elsewhere.
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
        case Lead():
            return f'<p class="lead">{escape(part.text)}</p>'
        case Picture():
            encoded = base64.b64encode(part.png).decode("ascii")
            caption = escape(part.caption)
            image = f'<img alt="{caption}" src="data:image/png;base64,{encoded}">'
            if part.width > _WIDE:
                image = f'<div class="scroll wide" tabindex="0">{image}</div>'
            return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
        case Table():
            return _table(part)
        case list():
            return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in part) + "</ul>"


def _table(table: Table) -> str:
    # A table without a head is a list of names and values.
    if not table.head:
        return f'<div class="scroll"><table class="plain"><tbody>{_rows(table.rows)}</tbody></table></div>'
    titles, rows = without_empty_columns(table.head, table.rows)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in titles)
    # Who uses a keyboard must be able to scroll the box, so it can have the focus.
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{_rows(rows)}</tbody></table></div>"
    )


def _rows(rows: Rows) -> str:
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return "".join(f"<tr>{row}</tr>" for row in cells)


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
