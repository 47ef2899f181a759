"""The tables of docs/measured.md, by the name that the page calls them; benchmarks/README.md defines the quantities."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from measured_results import figures, load, names, number, spread

from benchmarks.method.table import markdown, size_text, without_empty_columns

#: Links on which small sums are measured let this many bytes pass at once.
_SMALL_BURST_BYTES = 32 << 10
#: The queue of a link, unless a table says otherwise.
_QUEUE_MS = 20.0
#: What readers call the trainings that the convergence benchmarks compare.
_WAYS = {"fp32": "float32", "none": "Gloo DDP", "bf16_hook": "torch's bf16 hook"}
_WAYS |= {"fp16_hook": "torch's fp16 hook", "powersgd": "PowerSGD, rank 2"}
#: By n and MiB: what optcast and SHARP gain over NCCL's ring, as the plots in optcast's repository have
#: it (docs/eval_result_4ranks_fp32.png and docs/eval_result_8ranks_fp32.png of osrg/optcast@355ca0a;
#: 100 Gbit/s InfiniBand, two per host).
_PUBLISHED = {
    (4, 8): ("0.93", "1.25"),
    (4, 16): ("0.92", ""),
    (4, 32): ("1.08", ""),
    (4, 64): ("1.21", ""),
    (4, 128): ("1.33", ""),
    (8, 8): ("1.05", "1.43"),
    (8, 16): ("1.09", ""),
    (8, 32): ("1.18", ""),
    (8, 64): ("1.37", ""),
    (8, 128): ("1.41", ""),
}


# ---- parts of all tables ----


def contender(row: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what a contender did; every quantity that is not there is None."""
    names = ("p50_s", "algbw_gb_s", "ratio", "goodput_fraction", "worker_cpu_s_per_gb")
    return dict.fromkeys(names) | row["contenders"].get(name, {})


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table without empty columns."""
    return markdown(*without_empty_columns(head, rows))


def provenance(*names: str) -> Iterator[str]:
    """Yield a line for each result: its command, commit and date."""
    yield ""
    for name in names:
        environment = load(name)["environment"]
        command, commit, date = (environment[key] for key in ("command", "commit", "date"))
        yield f"*[`{command}`](measured/{name}.json), commit {commit}, {date[:10]}.*  "


def rows_of(*names: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the settings of each result with each of its rows."""
    for result in map(load, names):
        for row in result["rows"]:
            yield result["settings"], row


# ---- tables ----


def machine() -> Iterator[str]:
    """Yield the machines and versions of all results, most results first."""
    seen: dict[str, list[str]] = {}
    for name in names():
        environment = load(name)["environment"]
        versions = environment["versions"]
        kernel = ".".join(environment["kernel"].split(".")[:2])
        line = (
            f"{environment['cpu']}, {environment['cores']} cores, Linux {kernel}, Python {environment['python']}, "
            f"torch {versions['torch']}, grpcio {versions['grpcio']}"
        )
        seen.setdefault(line, []).append(name)
    first, *others = sorted(seen, key=lambda line: -len(seen[line]))
    yield '!!! info "The machine and the versions"\n'
    yield f"    - {first}"
    for line in others:
        yield f"    - {line}, for {', '.join(f'`{name}`' for name in seen[line])} only"


def _link(row: dict[str, Any]) -> tuple[float, float, int]:
    link = row["network"]
    return link["rate_mbit"], link["latency_ms"], link["burst_bytes"]


def links(name: str = "shaped/links") -> Iterator[str]:
    """Yield large all-reduces on shaped links."""
    head = ["n = k, link each way", "queue", "TCP, Mbit/s", "gRPC, Mbit/s", "Gloo, Mbit/s"]
    head += ["TCP / Gloo (quartiles)", "gRPC / Gloo (quartiles)", "theory", "TCP, of iperf3's goodput"]
    cells = []
    for row in load(name)["rows"]:
        rate, latency_ms, burst_bytes = _link(row) if row["network"] != "loopback" else (0, 0, 0)
        if row["what"] != "all-reduce" or not rate or burst_bytes == _SMALL_BURST_BYTES:
            continue
        tcp, grpc, ring = (contender(row, each) for each in ("tcp", "grpc", "ring"))
        cells.append(
            [
                f"{row['workers']}, {rate:g} Mbit/s",
                "" if latency_ms == _QUEUE_MS else f"{latency_ms:g} ms",
                *(number(each["algbw_gb_s"], ".0f", 8e3) for each in (tcp, grpc, ring)),
                spread(tcp["ratio"]),
                spread(grpc["ratio"]),
                number(2 * (row["workers"] - 1) / row["workers"]),
                number(tcp["goodput_fraction"], ".0f", 100, " %"),
            ]
        )
    yield from table(head, cells)
    yield from provenance(name)


def queues() -> Iterator[str]:
    """Yield large all-reduces on links with other queues."""
    return links("shaped/queues")


def training() -> Iterator[str]:
    """Yield training steps on shaped links."""
    head = ["n = k, link each way", "TCP, ms", "gRPC, ms", "Gloo, ms", "TCP / Gloo (quartiles)"]
    head += ["gRPC / Gloo (quartiles)", "without communication, ms"]
    cells = []
    for row in load("shaped/links")["rows"]:
        if row["what"] == "training step":
            names = ("tcp", "grpc", "ring", "noop")
            tcp, grpc, ring, noop = (contender(row, name) for name in names)
            cells.append(
                [
                    f"{row['workers']}, {row['network']['rate_mbit']:g} Mbit/s",
                    *(number(each["p50_s"], ".0f", 1e3) for each in (tcp, grpc, ring)),
                    spread(tcp["ratio"]),
                    spread(grpc["ratio"]),
                    number(noop["p50_s"], ".0f", 1e3),
                ]
            )
    yield from table(head, cells)
    yield from provenance("shaped/links")


def small_sums() -> Iterator[str]:
    """Yield small all-reduces on shaped links."""
    names = ("shaped/links", "shaped/small-sums")
    cells = []
    for row in (row for name in names for row in load(name)["rows"]):
        if row["network"] != "loopback" and row["network"]["burst_bytes"] == _SMALL_BURST_BYTES:
            ratios = [spread(contender(row, name)["ratio"]) for name in ("tcp", "grpc")]
            link = f"{row['workers']}, {row['network']['rate_mbit']:g} Mbit/s"
            cells.append([link, size_text(row["size_bytes"]), *ratios])
    yield from table(["n = k, link each way", "size", "TCP / Gloo", "gRPC / Gloo"], cells)
    yield from provenance(*names)


def loopback() -> Iterator[str]:
    """Yield all-reduces on loopback."""
    names = ("loopback/all-reduce", "loopback/eight-workers")
    head = ["n, k", "size", "TCP / Gloo", "gRPC / Gloo", "TCP, ms", "gRPC, ms", "Gloo, ms"]
    head += ["TCP, CPU s/GB", "gRPC, CPU s/GB", "Gloo, CPU s/GB"]
    cells = []
    for row in (row for name in names for row in load(name)["rows"]):
        if row["what"] != "all-reduce" or row["network"] != "loopback" or row["device"] != "cpu":
            continue
        three = [contender(row, name) for name in ("tcp", "grpc", "ring")]
        # Of a smaller tensor this is a cost per collective, which CPU per GB does not show.
        is_large = row["size_bytes"] >= 1 << 20
        cells.append(
            [
                f"{row['workers']}, {row['reducers']}",
                size_text(row["size_bytes"]),
                *(spread(each["ratio"]) for each in three[:2]),
                *(figures(each["p50_s"], 1e3) for each in three),
                *(number(each["worker_cpu_s_per_gb"]) if is_large else "" for each in three),
            ]
        )
    yield from table(head, cells)
    yield from provenance(*names)


def floor() -> Iterator[str]:
    """Yield the CPU time of the kernel."""
    cells = []
    for row in load("loopback/floor")["rows"]:
        send, receive = row.get("send_cpu_s_per_gb"), row.get("receive_cpu_s_per_gb")
        both = row.get("both_cpu_s_per_gb") if send is None or receive is None else send + receive
        cells.append([size_text(row["chunk_bytes"]), number(send), number(receive), number(both, ".2g")])
    yield from table(["bytes per call", "send, CPU s/GB", "receive, CPU s/GB", "both, CPU s/GB"], cells)
    yield from provenance("loopback/floor")


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
    return _WAYS.get(name, name)


def time_to_loss() -> Iterator[str]:
    """Yield how soon each training reaches a loss."""
    names = ("formats/time-to-loss", "formats/time-to-loss-20-mbit")
    head = ["link each way", "training", "ms per step", "steps", "times as fast as float32", "final loss"]
    cells = []
    for settings, row in rows_of(*names):
        cells.append(
            [
                f"{settings['rate_mbit']:g} Mbit/s",
                _way(row),
                number(row["step_s"], ".0f", 1e3),
                number(row["steps"], "d", 1),
                number(row["times_as_fast"]),
                number(row["above_fp32"], "+.2f", 100, " %"),
            ]
        )
    yield from table(head, cells)
    yield from provenance(*names)


def convergence() -> Iterator[str]:
    """Yield the final losses."""
    names = ("formats/convergence", "formats/convergence-wide")
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


def few_reducers(name: str = "shaped/few-reducers") -> Iterator[str]:
    """Yield all-reduces with fewer reducers than workers."""
    head = [
        "n, link each way",
        "k",
        "with colocated reducers, ms",
        "Gloo, ms",
        "times as fast (quartiles)",
        "theory",
    ]
    cells = []
    for row in load(name)["rows"]:
        ours, ring = contender(row, "colocated"), contender(row, "ring")
        n, k = row["workers"], row["reducers"]
        cells.append(
            [
                f"{n}, {row['network']['rate_mbit']:g} Mbit/s",
                str(k),
                *(number(each["p50_s"], ".0f", 1e3) for each in (ours, ring)),
                spread(ours["ratio"]),
                number((n * n + k * n - 2 * k) / (n * n)),
            ]
        )
    yield from table(head, cells)
    yield from provenance(name)


def sizes() -> Iterator[str]:
    """Yield all-reduces of many sizes, beside what others have published."""
    names = ("shaped/sizes-4", "shaped/sizes-8")
    head = ["n = k, link each way", "size", "TCP / Gloo (quartiles)", "optcast / NCCL", "SHARP / NCCL"]
    cells = []
    for row in (row for name in names for row in load(name)["rows"]):
        published = _PUBLISHED.get((row["workers"], row["size_bytes"] >> 20), ("", ""))
        link = f"{row['workers']}, {row['network']['rate_mbit']:g} Mbit/s"
        cells.append([link, size_text(row["size_bytes"]), spread(contender(row, "tcp")["ratio"]), *published])
    yield from table(head, cells)
    yield from provenance(*names)


def models() -> Iterator[str]:
    """Yield training steps of models with the shapes of VGG-16 and ResNet-50."""
    names = [f"shaped/{model}-{n}" for model in ("vgg16", "resnet50") for n in (4, 8)]
    head = ["model", "n = k, link each way", "TCP, ms", "Gloo, ms", "TCP / Gloo (quartiles)"]
    head += ["without communication, ms"]
    cells = []
    for row in (row for name in names for row in load(name)["rows"]):
        tcp, ring, noop = (contender(row, each) for each in ("tcp", "ring", "noop"))
        cells.append(
            [
                f"{row['what'].rpartition(' ')[2]}, {row['size_bytes'] / 1e6:.1f} MB",
                f"{row['workers']}, {row['network']['rate_mbit']:g} Mbit/s",
                *(number(each["p50_s"], ".0f", 1e3) for each in (tcp, ring)),
                spread(tcp["ratio"]),
                number(noop["p50_s"], ".0f", 1e3),
            ]
        )
    yield from table(head, cells)
    yield from provenance(*names)


def long_paths(name: str = "shaped/long-paths") -> Iterator[str]:
    """Yield all-reduces over long paths."""
    head = ["round trip", "TCP, Mbit/s", "Gloo, Mbit/s", "TCP / Gloo (quartiles)"]
    cells = []
    for row in load(name)["rows"]:
        tcp, ring = contender(row, "tcp"), contender(row, "ring")
        rates = [number(each["algbw_gb_s"], ".0f", 8e3) for each in (tcp, ring)]
        cells.append([f"{2 * row['network']['delay_ms']:g} ms", *rates, spread(tcp["ratio"])])
    yield from table(head, cells)
    yield from provenance(name)


def tails() -> Iterator[str]:
    """Yield the times of all-reduces beside other traffic."""
    names = ("shaped/tails-some", "shaped/tails-much")
    head = ["other traffic", "contender", "median, ms", "99th percentile, ms", "by the median"]
    cells = []
    for name in names:
        traffic = load(name)["environment"]["command"].partition("--background ")[2].partition(" ")[0]
        flows, on_s, off_s = traffic.split(":")
        for row in load(name)["rows"]:
            for label, key in (("TCP", "tcp"), ("Gloo", "ring")):
                turns = row["contenders"][key]["turns"]
                median = statistics.median(turns)
                tail = statistics.quantiles(turns, n=100, method="inclusive")[-1]
                cells.append(
                    [
                        f"{flows} flows, {on_s} s on, {off_s} s off",
                        label,
                        *(number(value, ".0f", 1e3) for value in (median, tail)),
                        number(tail / median),
                    ]
                )
    yield from table(head, cells)
    yield from provenance(*names)


def simulation(name: str = "shaped/simulation") -> Iterator[str]:
    """Yield simulated all-reduces beside those of the lab."""
    head = ["n, k", "link", "size", "lab, ms", "simulated, ms", "simulated / lab", "not simulated"]
    cells = []
    for row in load(name)["rows"]:
        cells.append(
            [
                f"{row['workers']}, {row['reducers']}",
                row["link"],
                size_text(row["size_bytes"]),
                *(number(row[key], ".0f", 1e3) for key in ("lab_s", "simulated_s")),
                number(row["simulated_s"] / row["lab_s"]),
                ", ".join(row["not_simulated"]),
            ]
        )
    yield from table(head, cells)
    yield from provenance(name)


def one_machine_training(name: str = "loopback/one-machine-training") -> Iterator[str]:
    """Yield training steps on one machine with nothing configured."""
    cells = []
    for row in load(name)["rows"]:
        ours, ring = contender(row, "default"), contender(row, "ring")
        times = (figures(statistics.median(each["turns"]), 1e3) for each in (ours, ring))
        what = row["what"].removeprefix("training step, ")
        cells.append([str(row["workers"]), what, *times, spread(ours["ratio"])])
    yield from table(["n", "model", "ours, ms", "Gloo, ms", "Gloo / ours (quartiles)"], cells)
    yield from provenance(name)


def one_machine() -> Iterator[str]:
    """Yield all-reduces on one machine with nothing configured."""
    names = ("loopback/one-machine", "loopback/one-machine-eight", "loopback/one-machine-cold")
    head = ["n", "pattern", "size", "ours, ms", "Gloo, ms", "Gloo / ours (quartiles)", "CPU, ours / Gloo"]
    cells = []
    for name in names:
        pattern = "barrier and pause" if name.endswith("cold") else "back to back"
        for row in load(name)["rows"]:
            ours, ring = contender(row, "default"), contender(row, "ring")
            # A reducer's CPU is counted by one rank's bytes, a worker's by those of all.
            cpu = ours["worker_cpu_s_per_gb"] + ours["reducer_cpu_s_per_gb"] / row["workers"]
            cells.append(
                [
                    str(row["workers"]),
                    pattern,
                    size_text(row["size_bytes"]),
                    *(figures(statistics.median(each["turns"]), 1e3) for each in (ours, ring)),
                    spread(ours["ratio"]),
                    # A pause costs the reducer more CPU than a small sum does.
                    "" if name.endswith("cold") else number(cpu / ring["worker_cpu_s_per_gb"]),
                ]
            )
    yield from table(head, cells)
    yield from provenance(*names)


_FUNCTIONS: tuple[Callable[[], Iterator[str]], ...] = (machine, links, training, small_sums, queues, loopback)
_FUNCTIONS += (few_reducers, sizes, models, long_paths, tails, one_machine, one_machine_training, simulation)
_FUNCTIONS += (floor, chaos, formats, time_to_loss, convergence, accuracy, hierarchy, hierarchy_training)
TABLES = {function.__name__.replace("_", "-"): function for function in _FUNCTIONS}
