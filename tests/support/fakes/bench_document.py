"""Documents in the benchmarks' format, with made-up numbers."""

from __future__ import annotations

from typing import Any

KIB, MIB = 1 << 10, 1 << 20

ENVIRONMENT: dict[str, Any] = {
    "date": "2026-01-01T00:00:00+00:00",
    "commit": "0000000",
    "cpu": "A & B <processor>",
    "cores": 2,
    "memory_bytes": 8 << 30,
    "load_average": [0.5, 0.25, 0.125],
    "kernel": "6.1",
    "python": "3.11.7",
    "versions": {"torch": "2.13.0", "grpcio": "1.85.1", "numpy": "2.4.6"},
    "command": "pytest benchmarks/",
    "variables": {},
}


def link(rate_mbit: float, burst_bytes: int = 128 * KIB, goodput: bool = True) -> dict[str, Any]:
    return {
        "rate_mbit": rate_mbit,
        "latency_ms": 1.0,
        "queue_bytes": int(125 * rate_mbit),
        "burst_bytes": burst_bytes,
        "congestion": "cubic",
        "goodput_mbit": 0.955 * rate_mbit if goodput else None,
    }


def row(
    *,
    workers: int,
    reducers: int,
    size_bytes: int,
    network: dict[str, Any] | None = None,
    what: str = "all-reduce",
    names: tuple[str, ...] = ("tcp", "grpc", "ring"),
) -> dict[str, Any]:
    rate = 1e9 if network is None else network["rate_mbit"] * 1e6 / 8
    factors = {"tcp": 1.05, "grpc": 1.2, "ring": 2 * (workers - 1) / workers, "noop": 0.2}
    base = 1e-4 + size_bytes / rate
    ring = base * factors["ring"]
    contenders: dict[str, Any] = {}
    for name in names:
        turns = [base * factors[name] * wobble for wobble in (0.95, 1.0, 1.02, 1.1)]
        ratio = ring / base / factors[name]
        has_ratio = name != "ring" and "ring" in names
        contenders[name] = {
            "turns": turns,
            "p50_s": turns[1],
            "algbw_gb_s": size_bytes / turns[1] / 1e9,
            "per_s": 1 / turns[1],
            "goodput_fraction": None if network is None else 0.9,
            "worker_cpu_s_per_gb": 1.5,
            "reducer_cpu_s_per_gb": 2.5 if name in ("tcp", "grpc") else None,
            "ratio": {"low_quartile": ratio * 0.9, "median": ratio, "high_quartile": ratio * 1.1}
            if has_ratio
            else None,
            "wire": None
            if network is None
            else {
                **{f"{side}_{way}": 1.02 for side in ("worker", "reducer") for way in ("tx", "rx")},
                "dropped_packets": 3,
                "retransmitted_segments": 5,
            },
        }
    return {
        "what": what,
        "size_bytes": size_bytes,
        "workers": workers,
        "reducers": reducers,
        "iterations": 1,
        "ring": "Gloo",
        "device": "cpu",
        "network": "loopback" if network is None else network,
        "contenders": contenders,
    }


def loopback_rows() -> list[dict[str, Any]]:
    rows = [
        row(workers=workers, reducers=reducers, size_bytes=size)
        for workers, reducers in ((2, 1), (4, 2))
        for size in (4 * KIB, 64 * KIB, MIB, 64 * MIB)
    ]
    step = ("tcp", "grpc", "ring", "noop")
    return [*rows, row(workers=2, reducers=1, size_bytes=17 * MIB, what="DDP step", names=step)]


def shaped_rows() -> list[dict[str, Any]]:
    rows = [row(workers=n, reducers=n, size_bytes=64 * MIB, network=link(200)) for n in (2, 4, 8)]
    rows += [
        row(workers=4, reducers=4, size_bytes=size, network=link(500, burst_bytes=32 * KIB))
        for size in (64 * KIB, 256 * KIB, MIB, 16 * MIB)
    ]
    step = ("tcp", "grpc", "ring", "noop")
    training = row(
        workers=8, reducers=8, size_bytes=23 * MIB, network=link(200), what="training step", names=step
    )
    return [*rows, training]


def latest(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": 2,
        "environment": ENVIRONMENT,
        "rows": list(rows),
    }
