"""`reducer trace` shows where the time of collectives went, and writes a file for Perfetto."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import click
from reduction.errors import ConfigError
from reduction.process.place import link_mbit
from reduction.timeline import chrome, picture
from reduction.timeline.clocks import offsets, reducer_offsets
from reduction.timeline.record import Record, from_json
from reduction.timeline.reducer_record import ReducerRecord
from reduction.timeline.reducer_record import from_json as reducer_from_json
from reduction.timeline.verdict import verdict


@click.command(short_help="Show where the time of collectives went.")
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a trace for ui.perfetto.dev or chrome://tracing, with all ranks on one timeline.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also draw part of it as an SVG picture for browsers.",
)
@click.option(
    "--from",
    "since",
    type=click.FloatRange(0, 10**9),
    metavar="SECONDS",
    help="Where --plot begins; 0 is the first collective.  [default: a few collectives in the middle]",
)
@click.option("--to", "until", type=click.FloatRange(0, 10**9), metavar="SECONDS", help="Where --plot ends.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Export of a rank's torch.profiler, to put on the same timeline; may be repeated.",
)
@click.option(
    "--link",
    metavar="RATE",
    help="Rate of each rank's link, such as 10G, for the ideal time.  [default: the best rate that its rounds show]",
)
def trace(
    paths: tuple[Path, ...],
    output: Path | None,
    plot: Path | None,
    since: float | None,
    until: float | None,
    profiles: tuple[Path, ...],
    link: str | None,
) -> None:
    """Read the records that ranks wrote to each PATH, a directory or a file, and show where their time went.

    Ranks write them with REDUCTION_TRACE=DIRECTORY or `state.trace(DIRECTORY)`, reducers with
    `reducer serve --trace DIRECTORY`. If a rank has several records, the newest one counts. The
    clocks of several hosts are compared through their common collectives; the trace shows their
    possible error.
    """
    if profiles and output is None and plot is None:
        raise click.UsageError("--profile goes into what --output and --plot write: name one of them")
    if plot is None and (since, until) != (None, None):
        raise click.UsageError("--from and --to are for --plot: say where to write that")
    if plot is not None and plot.suffix.lower() not in ("", ".svg", ".html"):
        raise click.UsageError(f"--plot {plot}: the picture is an SVG; call it {plot.with_suffix('.svg')}")
    if since is not None and until is not None and since >= until:
        raise click.UsageError(f"--from {since:g} is not before --to {until:g}")
    try:
        rate = None if link is None else link_mbit("--link", link) * 1e6 / 8
        jobs = _newest(paths)
        reducers = _reducers(paths)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    records = [record for job in jobs.values() for record in job]
    clocks = dict(zip((record.clock for record in records), offsets(records), strict=True))
    for job, ranks in jobs.items():
        missing = sorted({*range(ranks[0].world_size)} - {record.rank for record in ranks})
        click.echo(f"{job}: {len(ranks)} of {ranks[0].world_size} ranks" + _listed(missing))
        theirs = [reducer for reducer in reducers if reducer.job == job]
        for line in verdict(ranks, [clocks[record.clock] for record in ranks], theirs, rate):
            click.echo(f"  {line}")
    if output is not None or plot is not None:
        known = [clocks[record.clock] for record in records]
        document = chrome.document(records, known, reducers, reducer_offsets(reducers, records, known))
        for path in profiles:
            try:
                chrome.add_profile(document, json.loads(path.read_text(encoding="utf-8")), records, known)
            except (ConfigError, OSError, ValueError) as error:
                raise click.UsageError(f"--profile {path}: {error}") from None
        if output is not None:
            _write("--output", output, json.dumps(document))
        if plot is not None:
            try:
                drawn = picture.picture(document["traceEvents"], since, until)
            except ConfigError as error:
                raise click.UsageError(f"--plot {plot}: {error}") from None
            _write("--plot", plot, drawn)


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{option} {path}: {error.strerror}") from None


def _newest(paths: tuple[Path, ...]) -> dict[str, list[Record]]:
    """Return the newest record of each rank, in rank order, for each job.

    Raises:
        ConfigError: a file is not a record, or there is no file.
    """
    files = [file for path in paths for file in (path.glob("*-rank*.json") if path.is_dir() else (path,))]
    if not files:
        raise ConfigError(f"no record in {', '.join(map(str, paths))}: ranks write *-rank*.json there")
    newest: dict[str, dict[int, Record]] = defaultdict(dict)
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        try:
            record = from_json(file.read_text(encoding="utf-8"), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from None
        newest[record.job][record.rank] = record
    return {job: [ranks[rank] for rank in sorted(ranks)] for job, ranks in sorted(newest.items())}


def _reducers(paths: tuple[Path, ...]) -> list[ReducerRecord]:
    """Return the records of reducers.

    Raises:
        ConfigError: a file is not a record.
    """
    found = []
    for file in sorted(file for path in paths if path.is_dir() for file in path.glob("*-reducer-*.json")):
        try:
            found.append(reducer_from_json(file.read_text(encoding="utf-8"), str(file)))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from None
    return found


def _listed(missing: list[int]) -> str:
    return f", without {', '.join(map(str, missing))}" if missing else ""
