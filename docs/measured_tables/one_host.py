"""Tables of one machine: loopback and shared memory; and of all machines, what they were."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from measured_results import figures, load, names, number, spread

from benchmarks.method.table import size_text
from measured_tables.parts import contender, provenance, table


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


def one_machine() -> Iterator[str]:
    """Yield all-reduces on one machine with nothing configured."""
    names = ("loopback/one-machine", "loopback/one-machine-eight", "loopback/one-machine-mixed")
    head = ["n", "pattern", "size", "ours, ms", "Gloo, ms", "Gloo / ours (quartiles)", "CPU, ours / Gloo"]
    cells = []
    for name in names:
        pattern = "mixed" if name.endswith("mixed") else "back to back"
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
                    "" if name.endswith("mixed") else number(cpu / ring["worker_cpu_s_per_gb"]),
                ]
            )
    yield from table(head, cells)
    yield from provenance(*names)


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


def process_group() -> Iterator[str]:
    """Yield the backend of torch.distributed beside a state."""
    names = ("loopback/process-group", "shaped/process-group")
    cells = []
    for name in names:
        for row in load(name)["rows"]:
            state, group = (contender(row, each)["turns"] for each in ("default", "group"))
            quartiles = statistics.quantiles(
                [one / other for one, other in zip(state, group, strict=True)], n=4
            )
            where = "one machine" if name.startswith("loopback") else "500 Mbit/s"
            times = (figures(statistics.median(each), 1e3) for each in (state, group))
            cells.append(
                [str(row["workers"]), where, size_text(row["size_bytes"]), *times, spread(quartiles)]
            )
    yield from table(
        ["n", "network", "size", "state, ms", "backend, ms", "state / backend (quartiles)"], cells
    )
    yield from provenance(*names)


def watching() -> Iterator[str]:
    """Yield what it costs to record collectives, and to ask for the records all the time."""
    names = ("shaped/overhead", "loopback/overhead", "loopback/overhead-small", "loopback/overhead-large")
    head = [
        "n",
        "network",
        "size",
        "nothing recorded, ms",
        "what is recorded and asked",
        "ms",
        "of nothing's time",
    ]
    cells = []
    for name in names:
        for row in load(name)["rows"]:
            where = "one machine" if name.startswith("loopback") else "500 Mbit/s"
            off = contender(row, "unwatched")["turns"]
            for key, label in (("default", "defaults"), ("watched", "all, all the time")):
                if key in row["contenders"]:
                    on = contender(row, key)["turns"]
                    quartiles = statistics.quantiles([a / b for a, b in zip(on, off, strict=True)], n=4)
                    one, other = (figures(statistics.median(each), 1e3) for each in (off, on))
                    size = size_text(row["size_bytes"])
                    cells.append([str(row["workers"]), where, size, one, label, other, spread(quartiles)])
    yield from table(head, cells)
    yield from provenance(*names)
