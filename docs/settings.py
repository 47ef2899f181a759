"""Writes docs/settings.md from the code, so that the page says exactly what the code does.

    python docs/settings.py            # writes the page
    python docs/settings.py --check    # exits with 1 if the page is not what would be written

A worker's settings come from their table, `PluginConfig`. `ReductionState` has arguments that are
not settings, because they have no environment variable; their descriptions come from its docstring.
A reducer's options are those of the `reducer` command, as described by its `--help`.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from reducer.commands.main import main
from worker_plugin.config import PluginConfig
from worker_plugin.settings.rows import rows
from worker_plugin.state import ReductionState

PAGE = Path(__file__).with_name("settings.md")
INTRODUCTION = """\
# Settings

<!-- Written by docs/settings.py; do not edit. -->

## Worker

Every row is an argument of `ReductionState`. `attach` takes the same arguments, except that it uses
the process group of the module. A setting with a variable can also be set in the environment; an
explicit argument takes precedence. Where the text says that rank 0's value counts, the other ranks
use that value.

See [platforms](platforms.md#texts-that-name-reducers) for all forms of an address,
[failures](failures.md#time-outs) for how the timeouts work together, and
[how it works](how-it-works.md#chunks-and-credit) for what a chunk and a credit are.
"""
REDUCER = """\
## Reducer

These are the options of the commands below, as shown by `--help`. Other commands, and the workers' variables
`REDUCTION_AUTO` and `REDUCTION_LOG`, are described where they are used:
[scripts without a change](integrations.md), [`REDUCTION_LOG`](getting-started.md),
[status and top](operating.md), [the doctor](doctor.md).
"""


def argument_text(name: str) -> str:
    """Return what the docstring of `ReductionState` says of one argument, on one line."""
    section = (inspect.getdoc(ReductionState) or "").partition("Args:\n")[2].partition("\n\n")[0]
    # This gives an empty text, and then name, text, name, text, ...
    entries = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)
    return " ".join(entries[entries.index(name) + 1].split())


def worker_rows() -> Iterator[tuple[str, ...]]:
    """Yield the cells of each argument of `ReductionState`: first the settings, then the others."""
    settings = rows(PluginConfig)
    for row in settings:
        default = row.default_text if row.default is None else f"`{row.default_text}`"
        yield f"`{row.name}`", f"`{row.variable}`", default, row.doc
    names = {row.name for row in settings}
    for name, parameter in inspect.signature(ReductionState).parameters.items():
        if name not in names and parameter.kind is not parameter.VAR_KEYWORD:
            yield f"`{name}`", "–", "none", argument_text(name)


def option_rows(command: click.Command) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each option of a command, as its help has them."""
    context = click.Context(command, parent=click.Context(main), show_default=True)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None and "--help" not in record[0]:
            yield f"`{record[0]}`", " ".join(record[1].split())


def table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *([_cell(text) for text in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, table(("argument", "variable", "default", "meaning"), worker_rows()), REDUCER]
    for name in ("serve", "status", "top", "drain", "plan", "trace"):
        command = main.get_command(click.Context(main), name)
        assert command is not None
        parts += [f"### reducer {name}\n", table(("option", "meaning"), option_rows(command))]
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write docs/settings.md from the code.")
    parser.add_argument("--check", action="store_true", help="only compare; exit with 1 if the page differs")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/settings.md is not what the code says: run `python docs/settings.py`")
