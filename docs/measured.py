"""Fills the tables of docs/measured.md from the results in docs/measured/, so that no number is typed.

    python docs/measured.py                          # writes the tables
    python docs/measured.py --check                  # exits with 1 if a table is not what would be written
    python docs/measured.py --keep NAME=FILE.json    # takes a benchmark's result in, and writes the tables

A result is the JSON file that a benchmark writes, without the samples that no table needs. NAME is
its path in docs/measured/, for example `shaped/links`. A table of the page stands between `<!--
table: NAME -->` and `<!-- end -->`; NAME is one of `measured_tables.TABLES`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from measured_results import RESULTS, names
from measured_tables import TABLES
from measured_tables.links import QUEUES

PAGE = Path(__file__).with_name("measured.md")
FIGURES = Path(__file__).with_name("figures")

#: Parts of a result that only plots and the judgement of the benchmark itself need.
_SAMPLES = ("runs", "trained", "strikes", "scaling", "problems")
#: Results whose figures show samples, which are not kept.
_BY_SAMPLES = ("formats/local-sgd",)
#: Parts of the environment that readers need. The others name folders of the machine.
_ENVIRONMENT = ("date", "commit", "command", "cpu", "cores", "memory_bytes", "load_average", "gpus", "kernel")
_ENVIRONMENT += ("python", "versions", "variables")
_BLOCK = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """Return the page with all its tables."""
    return _BLOCK.sub(lambda match: f"{match[1]}\n" + "\n".join(TABLES[match[2]]()) + "\n\n", text)


def kept(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what the repository keeps of a result."""
    document = {key: value for key, value in document.items() if key not in _SAMPLES}
    environment = document["environment"]
    document["environment"] = {key: environment[key] for key in _ENVIRONMENT if key in environment}
    command = environment.get("command", "")
    document["environment"]["command"] = re.sub(r" --(json|out)[ =]\S+", "", command)
    # What follows the version names who built the kernel.
    document["environment"]["kernel"] = environment["kernel"].partition("-")[0]
    if name.startswith(("shaped/", "loopback/")) and all("network" in row for row in document["rows"]):
        is_loopback = name.startswith("loopback/")
        rows = document["rows"]
        document["rows"] = [row for row in rows if (row["network"] == "loopback") is is_loopback]
    return document


def keep(name: str, path: Path) -> None:
    """Take a result in, and draw the figures of the page that show it."""
    result = json.loads(path.read_text(encoding="utf-8"))
    document = kept(result, name)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for stem, png in _pictures(name, result if name in _BY_SAMPLES else document).items():
        (FIGURES / f"{stem}.png").write_bytes(png)


def _pictures(name: str, document: dict[str, Any]) -> dict[str, bytes]:
    """Return the figures that show a result, by their names in docs/figures/."""
    if name not in ("shaped/links", "shaped/ladder", *_BY_SAMPLES):
        return {}
    # Not at the top: a check needs no matplotlib.
    from benchmarks.plots import style, suite
    from benchmarks.shaped import ladder_figure, time_to_loss_figure

    if name == "formats/local-sgd":
        return {"local-sgd": style.png(time_to_loss_figure.of(document))}
    if name == "shaped/ladder":
        return {"ladder": style.png(ladder_figure.epochs(document["rows"]))}
    return {stem: style.png(figure) for stem, figure in suite.figures(document).items() if figure}


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    known = sorted({*names(), *QUEUES})
    if name not in known or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE, NAME one of {', '.join(known)}")
    return name, Path(path)


def main() -> None:
    """Write or check the page, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--keep", type=_named, action="append", default=[], metavar="NAME=FILE")
    given = parser.parse_args()
    for name, path in given.keep:
        keep(name, path)
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before)
    if given.check:
        if before != after:
            sys.exit("docs/measured.md is not what the results say: run `python docs/measured.py`")
        return
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
