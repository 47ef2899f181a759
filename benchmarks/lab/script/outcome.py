"""Evaluation of a script's turns without and with reducers: lines, a table, rows, a figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.lab.traffic import Traffic
from benchmarks.method.table import Quartiles, markdown, quartiles, spread, value_text, without_empty_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WITHOUT, WITH = "Gloo", "reducers"
#: From this fraction on, the cores of this machine may be the bottleneck of the steps.
BUSY = 0.9
#: If a script's gradients go through the reducers, they receive at least this fraction of the bytes that workers send.
_LEAST_PART = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run of the command on all hosts."""

    #: Seconds of the whole command, from its start until the last host had finished.
    seconds: float
    #: Seconds between the optimizer steps of each rank after the warm-up.
    steps: list[list[float]]
    #: Traffic of the whole command.
    traffic: Traffic
    #: Fraction of the time in which the cores of this machine were busy, with the job or other work.
    busy: float

    @property
    def step_s(self) -> float | None:
        """The median over all steps of all ranks; None if there were none."""
        seconds = [second for rank in self.steps for second in rank]
        return statistics.median(seconds) if seconds else None

    def line(self) -> str:
        """Return the turn as text."""
        if self.step_s is None:
            return f"{self.seconds:.1f} s"
        count = min(map(len, self.steps))
        return f"{self.seconds:.1f} s, {1e3 * self.step_s:.0f} ms per step (median of {count} steps)"


def rows_of(turns: Mapping[str, Sequence[Turn]], workers: int) -> list[dict[str, Any]]:
    """Return a row for each side that has a turn. Ratios compare the turns of the same round."""
    return [_row(name, mine, turns[WITHOUT], workers) for name, mine in turns.items() if mine]


def _row(name: str, mine: Sequence[Turn], theirs: Sequence[Turn], workers: int) -> dict[str, Any]:
    traffic = sum((turn.traffic for turn in mine), Traffic())
    steps = [turn.step_s for turn in mine if turn.step_s is not None]
    rounds = list(zip(theirs, mine, strict=False)) if name != WITHOUT else []  # the last may be half done
    return {
        "side": name,
        "step_s": quartiles(steps) if steps else None,
        "command_s": quartiles([turn.seconds for turn in mine]),
        "times_as_fast": _ratio([(one.step_s, other.step_s) for one, other in rounds]),
        "times_as_fast_command": _ratio([(one.seconds, other.seconds) for one, other in rounds]),
        "worker_tx_bytes": traffic.worker_tx_bytes / workers / len(mine),
        "worker_rx_bytes": traffic.worker_rx_bytes / workers / len(mine),
        "to_reducers": traffic.reducer_rx_bytes / max(traffic.worker_tx_bytes, 1),
        "retransmitted_segments": traffic.retransmitted_segments,
        "busy": statistics.fmean(turn.busy for turn in mine),
    }


def _ratio(pairs: Sequence[tuple[float | None, float | None]]) -> Quartiles | None:
    ratios = [theirs / own for theirs, own in pairs if theirs is not None and own is not None]
    return quartiles(ratios) if ratios else None


def lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table with explanatory notes."""
    cells = [[cell(row) for cell in _COLUMNS.values()] for row in rows]
    return [*markdown(*without_empty_columns(list(_COLUMNS), cells)), "", *_notes(rows)]


_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "": lambda row: row["side"],
    "ms per step": lambda row: "" if row["step_s"] is None else f"{1e3 * row['step_s'].median:.0f}",
    "x Gloo": lambda row: spread(row["times_as_fast"]),
    "whole command, s": lambda row: f"{row['command_s'].median:.1f}",
    "x Gloo, whole": lambda row: spread(row["times_as_fast_command"]),
    "MB sent": lambda row: f"{row['worker_tx_bytes'] / 1e6:.0f}",
    "MB received": lambda row: f"{row['worker_rx_bytes'] / 1e6:.0f}",
    "retr.": lambda row: f"{row['retransmitted_segments']}",
    "cores busy": lambda row: f"{row['busy']:.0%}",
}


def _notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = [
        "x Gloo: median over the rounds, and quartiles; above 1 the reducers are faster. MB: of one worker's link, in "
        "the whole command.",
        "The whole command has its start too, which takes some seconds more with the reducers.",
    ]
    if all(row["step_s"] is None for row in rows):
        notes.append(
            "No step was recorded after the warm-up: no optimizer of torch.optim stepped often enough."
        )
    if (busy := max(row["busy"] for row in rows)) >= BUSY:
        notes.append(
            f"The cores of this machine were {busy:.0%} busy: they, and not the links, may be what the steps wait for. "
            f"Take a lower --rate, fewer --workers or an idle machine."
        )
    for row in rows:
        if row["side"] == WITH and row["to_reducers"] < _LEAST_PART:
            notes.append(
                f"Only {row['to_reducers']:.0%} of what the workers sent went to reducers. Without "
                f"DistributedDataParallel take --auto group."
            )
    return notes


def figure(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Return bars of both sides: the median step, if steps were recorded, and the whole command."""
    from benchmarks.plots.style import errors, look, panels, styled

    kinds = {"step_s": ("ms per step", 1e3), "command_s": ("seconds of the whole command", 1.0)}
    kinds = {key: kind for key, kind in kinds.items() if all(row[key] is not None for row in rows)}
    colours = {WITHOUT: look("ring").colour, WITH: look("tcp").colour}
    with styled():
        drawn, grid = panels(len(kinds), width=3.7, height=3.1)
        for axes, (key, (label, factor)) in zip(grid, kinds.items(), strict=True):
            spreads = [[factor * value for value in row[key]] for row in rows]
            median = [middle for _, middle, _ in spreads]
            names = [row["side"] for row in rows]
            bars = axes.bar(
                names,
                median,
                yerr=errors(spreads),
                capsize=3,
                zorder=2,
                color=[colours[name] for name in names],
            )
            axes.bar_label(bars, [value_text(value) for value in median], padding=4)
            axes.grid(axis="x", visible=False)
            axes.margins(y=0.15)
            axes.set_ylabel(label)
        drawn.suptitle(title, fontsize=10)
    return drawn
