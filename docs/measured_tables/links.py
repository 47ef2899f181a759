"""Tables of shaped links: all-reduces and training steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from measured_results import load, number, spread
from measured_results import names as results

from benchmarks.method.table import size_text
from measured_tables.parts import contender, provenance, queue, table

#: Links on which small sums are measured let this many bytes pass at once.
_SMALL_BURST_BYTES = 32 << 10
_LOSSES = ("dropped_packets", "retransmitted_segments")
#: One process per reducer and packets of up to 64 KiB; as many processes as `reducer serve` starts; small packets.
QUEUES = ("shaped/queues", "shaped/queues-processes", "shaped/queues-segments")
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


def links() -> Iterator[str]:
    """Yield large all-reduces on shaped links."""
    head = ["n = k, link each way", "queue", "TCP, Mbit/s", "gRPC, Mbit/s", "Gloo, Mbit/s"]
    head += ["TCP / Gloo (quartiles)", "gRPC / Gloo (quartiles)", "theory", "TCP, of iperf3's goodput"]
    cells = []
    for row in load("shaped/links")["rows"]:
        network = row["network"]
        is_large = network != "loopback" and network["burst_bytes"] != _SMALL_BURST_BYTES
        if row["what"] != "all-reduce" or not is_large:
            continue
        tcp, grpc, ring = (contender(row, each) for each in ("tcp", "grpc", "ring"))
        cells.append(
            [
                f"{row['workers']}, {network['rate_mbit']:g} Mbit/s",
                queue(network),
                *(number(each["algbw_gb_s"], ".0f", 8e3) for each in (tcp, grpc, ring)),
                spread(tcp["ratio"]),
                spread(grpc["ratio"]),
                number(2 * (row["workers"] - 1) / row["workers"]),
                number(tcp["goodput_fraction"], ".0f", 100, " %"),
            ]
        )
    yield from table(head, cells)
    yield from provenance("shaped/links")


def queues() -> Iterator[str]:
    """Yield large all-reduces by the rate of the links and the length of their queues."""
    head = ["n = k, link each way", "queue", "processes per reducer", "packets", "TCP / Gloo (quartiles)"]
    head += ["gRPC / Gloo (quartiles)", "theory", "dropped packets per turn: TCP, gRPC, Gloo"]
    head += ["segments sent again per turn", "worker CPU s/GB", "reducers CPU s/GB: TCP, gRPC"]
    measured = [name for name in QUEUES if name in results()]
    cells = []
    for row in (row for name in measured for row in load(name)["rows"]):
        network, segments = row["network"], row["network"].get("packet_segments")
        all_three = tcp, grpc, _ = [contender(row, each) for each in ("tcp", "grpc", "ring")]
        cells.append(
            [
                f"{row['workers']}, {network['rate_mbit']:g} Mbit/s",
                queue(network),
                str(row.get("processes", "")),
                f"{segments} segments" if segments else "",
                spread(tcp["ratio"]),
                spread(grpc["ratio"]),
                number(2 * (row["workers"] - 1) / row["workers"]),
                *(_each(_lost(one, what) for one in all_three) for what in _LOSSES),
                _each(number(one["worker_cpu_s_per_gb"], ".1f") for one in all_three),
                _each(number(one["reducer_cpu_s_per_gb"], ".1f") for one in (tcp, grpc)),
            ]
        )
    yield from table(head, cells)
    yield from provenance(*measured)


def _lost(one: dict[str, Any], what: str) -> str:
    return number(one["wire"][what] / len(one["turns"]), ".0f") if one["wire"] else ""


def _each(values: Iterable[str]) -> str:
    return ", ".join(value for value in values if value)


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


def few_reducers() -> Iterator[str]:
    """Yield all-reduces with fewer reducers than workers."""
    names = ("shaped/few-reducers-2", "shaped/few-reducers", "shaped/few-reducers-8")
    head = [
        "n, link each way",
        "k",
        "with colocated reducers, ms",
        "Gloo, ms",
        "times as fast (quartiles)",
        "theory",
    ]
    cells = []
    for row in (row for name in names for row in load(name)["rows"]):
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
    yield from provenance(*names)


def unequal() -> Iterator[str]:
    """Yield all-reduces over links that are not all equal."""
    names = {
        "shaped/slow-reducer": "one of 4 reducers has half of the rate",
        "shaped/slow-worker": "no reducers, one of 4 workers has half of the rate",
        "shaped/small-reducers": "12 reducers with a third of the rate",
    }
    head = ["links", "ours, ms", "Gloo, ms", "times as fast (quartiles)"]
    cells = []
    for name, label in names.items():
        for row in load(name)["rows"]:
            ours = next(one for key, one in row["contenders"].items() if key != "ring")
            times = [number(each["p50_s"], ".0f", 1e3) for each in (ours, contender(row, "ring"))]
            cells.append([label, *times, spread(ours["ratio"])])
    yield from table(head, cells)
    yield from provenance(*names)


def sizes() -> Iterator[str]:
    """Yield all-reduces of several sizes, beside what others have published."""
    names = ("shaped/sizes-4", "shaped/sizes-8")
    head = ["n = k, link each way", "size", "TCP / Gloo (quartiles)", "optcast / NCCL", "SHARP / NCCL"]
    cells = []
    for row in (row for name in names for row in load(name)["rows"]):
        published = _PUBLISHED.get((row["workers"], row["size_bytes"] >> 20))
        if published is None:
            # Smaller sums are measured on links with smaller bursts.
            continue
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
