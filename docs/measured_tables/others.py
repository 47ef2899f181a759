"""Tables of failures, wire dtypes and nodes with several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from measured_results import load, number, spread

from measured_tables.parts import provenance, rows_of, table

#: What readers call the trainings that the convergence benchmarks compare.
_WAYS = {"fp32": "float32", "none": "Gloo DDP", "bf16_hook": "torch's bf16 hook"}
_WAYS |= {"fp16_hook": "torch's fp16 hook", "powersgd": "PowerSGD, rank 2"}


def chaos() -> Iterator[str]:
    """Yield how long a killed reducer is felt."""
    names = [f"chaos/{name}" for name in ("three-reducers", "seldom", "one-reducer", "colocated")]
    head = [
        "reducers",
        "kills",
        "one every",
        "kills of the last one left",
        "next step: median",
        "95 % within",
    ]
    head += ["at most", "speed kept"]
    cells = []
    for result in map(load, names):
        settings, step = result["settings"], result["next_step_s"] or {}
        last = result.get("strikes_of_the_last")
        cells.append(
            [
                str(settings["reducers"]) + (", and one per worker" if settings.get("colocated") else ""),
                str(settings["strikes"]),
                f"{settings['every_s']:g} s",
                number(last, "d", 1),
                *(number(step.get(name), ".2f", 1, " s") for name in ("median", "p95", "maximum")),
                number(result["goodput"], ".0f", 100, " %"),
            ]
        )
    yield from table(head, cells)
    yield from provenance(*names)


def elastic() -> Iterator[str]:
    """Yield how elastic jobs bear the loss of workers."""
    names = [f"elastic/{name}" for name in ("kills", "with-reducers", "rival", "undisturbed")]
    head = ["job", "kills", "of the first worker", "next step: median", "95 % within", "at most"]
    head += ["samples/s", "steps twice", "uses of samples missing", "loss on the way"]
    cells = []
    for settings, row in rows_of(*names):
        gap = row["gap_s"] or {}
        is_ours = row["way"] == "elastic"
        also = " and as many of reducers" if settings["reducers_too"] else ""
        cells.append(
            [
                "elastic" if is_ours else "torchrun, from a checkpoint per minute",
                f"{settings['kills']}{also}",
                str(row["first"]) if is_ours and gap else "",
                *(number(gap.get(name), ".2f", 1, " s") for name in ("median", "p95", "maximum")),
                f"{row['samples'] / row['seconds']:.0f}",
                str(row["repeated"]),
                str(row["unused"]) if is_ours else "",
                number(row["early_loss"] if is_ours else None, ".3f"),
            ]
        )
    yield from table(head, cells)
    yield from provenance(*names)


def joining() -> Iterator[str]:
    """Yield what it costs the others that a worker is taken in."""
    name = "elastic/joining"
    result = load(name)
    head = [
        "newcomer",
        "the others' step alone",
        "their longest step while it came",
        "their time lost in all",
    ]
    head += ["from its request to its first step"]
    cells = [
        [
            str(index),
            *(number(row[key], ".2f", 1, " s") for key in ("step_s", "longest_s", "lost_s", "join_s")),
        ]
        for index, row in enumerate(result["rows"], 1)
    ]
    yield from table(head, cells)
    yield from provenance(name)


def formats() -> Iterator[str]:
    """Yield the wire formats' speed."""
    names = ("formats/speed", "formats/speed-500-mbit")
    head = ["link each way", "format", "ms", "times as fast as float32 (quartiles)", "times fewer bytes"]
    cells = []
    for settings, row in rows_of(*names):
        cells.append(
            [
                f"{settings['rate_mbit']:g} Mbit/s",
                row["wire"],
                number(row["turn_s"], ".0f", 1e3),
                "1" if row["wire"] == "float32" else spread(row["times_as_fast"]),
                number(row["times_fewer_bytes"], ".2g"),
            ]
        )
    yield from table(head, cells)
    yield from provenance(*names)


def _way(row: dict[str, Any]) -> str:
    name = row["way"].removeprefix("ours, ")
    if name.startswith("hsdp, "):
        wire, *rest = name.removeprefix("hsdp, ").split(", ")
        return ", ".join(["HSDP", _WAYS.get(wire, wire), *rest])
    return _WAYS.get(name, name)


def time_to_loss() -> Iterator[str]:
    """Yield how soon each training reaches a loss."""
    yield from _times_to_loss("formats/time-to-loss", "formats/time-to-loss-20-mbit")


def local_sgd() -> Iterator[str]:
    """Yield how soon trainings reach a loss whose ranks average seldom."""
    yield from _times_to_loss("formats/local-sgd")


def _times_to_loss(*names: str) -> Iterator[str]:
    head = ["link each way", "training", "ms per step", "steps", "s", "times as fast as float32"]
    head += ["final loss"]
    cells = []
    for settings, row in rows_of(*names):
        cells.append(
            [
                f"{settings['rate_mbit']:g} Mbit/s",
                _way(row),
                number(row["step_s"], ".0f", 1e3),
                number(row["steps"], "d", 1),
                number(row.get("seconds"), ".0f"),
                number(row["times_as_fast"]),
                number(row["above_fp32"], "+.2f", 100, " %"),
            ]
        )
    yield from table(head, cells)
    yield from provenance(*names)


def convergence() -> Iterator[str]:
    """Yield the final losses."""
    names = ["formats/convergence", "formats/convergence-wide"]
    names += ["formats/convergence-hsdp", "formats/convergence-hsdp-digits"]
    head = ["model", "training", "final loss", "above float32", "times fewer bytes"]
    cells = []
    for settings, row in rows_of(*names):
        above = number(row["above_fp32"], "+.2f", 100, " %")
        fewer = number(row["times_fewer_bytes"], ".2g")
        cells.append([settings["model"], _way(row), number(row["final"], ".4f"), above, fewer])
    yield from table(head, cells)
    yield from provenance(*names)


def accuracy() -> Iterator[str]:
    """Yield bf16's errors at n=8 against torch's hook."""
    head = ["gradients", "worst error, by torch's", "mean error, by torch's"]
    cells = []
    for row in load("formats/accuracy")["rows"]:
        if row["wire"] == "bf16" and row["workers"] == 8:
            ours, theirs = row["sent"], row["torch_sent"]
            cells.append(
                [row["data"], *(number(mine / other) for mine, other in zip(ours, theirs, strict=True))]
            )
    yield from table(head, cells)
    yield from provenance("formats/accuracy")


def hierarchy(name: str = "shaped/hierarchy") -> Iterator[str]:
    """Yield all-reduces of nodes with several ranks."""
    head = [
        "contender",
        "s",
        "times as fast as Gloo (quartiles)",
        "bytes over a node's link, by the tensor's",
    ]
    cells = []
    for row in load(name)["rows"]:
        keys = ("turn_s", "times_as_fast_as_ring", "node_bytes_by_tensor")
        seconds, ratio, carried = (row[key] for key in keys)
        is_ring = row["contender"].startswith("Gloo")
        cells.append([row["contender"], spread(seconds), "1" if is_ring else spread(ratio), number(carried)])
    yield from table(head, cells)
    yield from provenance(name)


def hierarchy_training() -> Iterator[str]:
    """Yield training steps of nodes with several ranks."""
    return hierarchy("shaped/hierarchy-training")


def ladder(name: str = "shaped/ladder") -> Iterator[str]:
    """Yield epochs of one training on all rungs of examples/ladder."""
    head = ["rung", "ranks", "s per epoch (quartiles)", "images per s", "times as fast as Gloo (quartiles)"]
    cells = []
    for row in load(name)["rows"]:
        ratio, speed = spread(row["times_as_fast_as_without"]), number(row["images_per_s"], ".0f")
        cells.append([row["rung"], str(row["ranks"]), spread(row["epoch_s"]), speed, ratio])
    yield from table(head, cells)
    yield from provenance(name)
