"""Judges a history of reductions. It trusts nothing: it imports none of our code and repeats every fold on its own.

A history is a list of records, dictionaries with `what`, `t` (seconds) and more:

    life     job, life, ranks, local_size            all ranks of a job start, each for this many processes
    issued   job, life, rank, seq, op, dtype, contribution   bytes as on the wire
    result   job, life, rank, seq, result            bytes
    failed   job, life, rank, error, text            the rank's error, which all later collectives get too
    over     job, life, rank                         the rank has finished
    killed   job, life, rank                         its process was ended from outside
    strayed  job, life, rank                         it issued a collective that differs from the other ranks'
    quit     job, life, rank                         it closed before the others, which have more to reduce
    fault    kind, hosts, seconds                    something happened to these hosts for this long
    listens  reducer                                 a process of a reducer starts to listen
    drains   reducer                                 it has asked all jobs to leave
    ended    reducer                                 it has ended
    calm                                             all faults are over, and no more follow
    left     text                                    something remains that should not

It proves that:

- A result is the fold of all ranks' contributions in rank order, of the same job, life and number, rounded once.
- A rank gets one result or one error for each collective that it issues, and nothing after its error.
- An error names a real cause.
- No wait exceeds its limit, and nothing remains at the end. When nothing has happened for a while, sums follow soon
  after the last contribution, and jobs soon leave a reducer that drains if there is another one.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]

#: Seconds between the end of a fault and an error that it has caused, at most; and the same for an error which reports
#: that nothing arrived during the whole of `timeout_s`.
MEMORY_S, TIMEOUT_MEMORY_S = 45.0, 165.0
#: Seconds within which the survivors of a dead rank have its error, if nothing else is wrong.
DEATH_S = 3.5
#: Seconds after the last fault when everything works normally again. From then on, a sum of ranks that have met takes
#: at most SUM_S, and leaving a reducer at most DRAIN_S.
RECOVERY_S, SUM_S, DRAIN_S = 8.0, 2.0, 1.0
#: Faults that may lose a rank, or every reducer; after all others the job continues.
SEVERE = frozenset({"silent reducer", "cut", "half cut", "isolate", "slow", "refuse", "freeze"})
#: Three faults of any kind within this many seconds may have the same effect.
CROWD_S = 3.0
_PLAIN = {"FLOAT32": "<f4", "FLOAT64": "<f8", "FLOAT16": "<f2", "INT32": "<i4", "INT64": "<i8"}


def read(path: Path) -> list[Record]:
    """Return a history from a file with one line of JSON per record, its bytes in hexadecimal."""
    return [
        {
            name: bytes.fromhex(value) if name in ("contribution", "result") else value
            for name, value in line.items()
        }
        for line in map(json.loads, path.read_text().splitlines())
    ]


def violations(history: Iterable[Record]) -> list[str]:
    """Return the violations in a history, one line each."""
    history = list(history)
    found = [*_wrong_results(history), *_wrong_ends(history), *_wrong_errors(history), *_late(history)]
    found += [*_late_sums(history), *_late_drains(history)]
    return found + [f"left behind: {record['text']}" for record in history if record["what"] == "left"]


# ---- results ----


def _wrong_results(history: list[Record]) -> Iterable[str]:
    contributions: dict[tuple[str, int, int], dict[int, Record]] = defaultdict(dict)
    ranks: dict[tuple[str, int], int] = {}
    local_sizes: dict[tuple[str, int], int] = {}
    folds: dict[tuple[str, int, int], bytes] = {}
    for record in history:
        if record["what"] == "life":
            ranks[record["job"], record["life"]] = record["ranks"]
            local_sizes[record["job"], record["life"]] = record["local_size"]
        elif record["what"] == "issued":
            contributions[_key(record)][record["rank"]] = record
        elif record["what"] == "result":
            key = _key(record)
            if key not in folds:
                parts = contributions[key]
                if len(parts) != ranks.get(key[:2]):
                    yield f"{_who(record)} got a result of {len(parts)} contributions"
                    continue
                folds[key] = fold([parts[rank] for rank in sorted(parts)], local_sizes[key[:2]])
            if record["result"] != folds[key]:
                yield f"{_who(record)} got a wrong result of collective {record['seq']}"


def fold(parts: list[Record], local_size: int) -> bytes:
    """Return the fold of the parts in this order; 16-bit floats are added in float32 and rounded once.

    AVG divides by the number of all processes whose sums the parts are: `local_size` in each.
    """
    op, dtype = parts[0]["op"], parts[0]["dtype"]
    arrays = [_decode(dtype, part["contribution"]) for part in parts]
    total = arrays[0].copy()
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            if op in ("SUM", "AVG"):
                total += array
            elif op == "PRODUCT":
                total *= array
            else:
                total = (np.minimum if op == "MIN" else np.maximum)(total, array)
        if op == "AVG":
            total /= total.dtype.type(len(arrays) * local_size)
        return _encode(dtype, total)


def _decode(dtype: str, data: bytes) -> Any:
    if dtype == "BFLOAT16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    array = np.frombuffer(data, _PLAIN[dtype])
    return array.astype("<f4") if dtype == "FLOAT16" else array


def _encode(dtype: str, array: Any) -> bytes:
    if dtype == "BFLOAT16":
        bits = array.view("<u4")
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return rounded.astype("<u2").tobytes()
    return array.astype(_PLAIN[dtype]).tobytes()


# ---- ends ----


def _wrong_ends(history: list[Record]) -> Iterable[str]:
    issued: dict[tuple[Any, ...], int] = defaultdict(int)
    held: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    failed: set[tuple[Any, ...]] = set()
    over: set[tuple[Any, ...]] = set()
    for record in history:
        rank = record.get("job"), record.get("life"), record.get("rank")
        match record["what"]:
            case "issued":
                issued[rank] += 1
            case "result":
                if record["seq"] in held[rank] or record["seq"] >= issued[rank]:
                    yield f"{_who(record)} got collective {record['seq']} twice, or before it was issued"
                if rank in failed or rank in over:
                    yield f"{_who(record)} got a result after its end"
                held[rank].add(record["seq"])
            case "failed":
                if rank in failed:
                    yield f"{_who(record)} failed twice"
                failed.add(rank)
            case "over":
                over.add(rank)
                if len(held[rank]) < issued[rank] and rank not in failed:
                    yield f"{_who(record)} ended with {len(held[rank])} of {issued[rank]} results and no error"


# ---- errors ----


def _wrong_errors(history: list[Record]) -> Iterable[str]:
    for index, record in enumerate(history):
        if record["what"] == "failed" and not _has_cause(record, history[:index]):
            yield f"{_who(record)} at {record['t']:.2f} has no cause for {record['error']}: {record['text']}"


def _has_cause(failure: Record, before: list[Record]) -> bool:
    error, text, now = failure["error"], failure["text"], failure["t"]
    own = [one for one in before if (one.get("job"), one.get("life")) == (failure["job"], failure["life"])]
    is_timeout = error in ("CollectiveTimeout", "WorkersMissing")
    memory_s = TIMEOUT_MEMORY_S if is_timeout else MEMORY_S
    faults = [one for one in before if one["what"] == "fault" and now <= one["t"] + one["seconds"] + memory_s]
    kinds = {fault["kind"] for fault in faults}
    if error == "CollectiveMismatch":
        return any(one["what"] == "strayed" for one in own)
    if error == "ResourceExhausted":
        return "no memory" in kinds
    if error in ("JobBusy", "StaleInstance", "RankTaken"):  # caused by the remains of an earlier life
        return failure["life"] > 1 or "impostor" in kinds
    dead = {one["rank"] for one in own if one["what"] == "killed"}
    if error == "WorkerLost" and (named := re.search(r"rank (\d+) \(\S+\) is gone", text)):
        if int(named[1]) in dead or ("(stranger)" in text and "impostor" in kinds):
            return True
    if error == "PeerLeft":
        is_severe = bool(kinds & SEVERE) and any(one["what"] in ("killed", "failed", "over") for one in own)
        return is_severe or any(one["what"] == "quit" for one in own)
    if error == "ReducerUnavailable" and own[0]["on_reducer_loss"] != "reshard":
        # All named reducers must be running; one that has ended soon returns.
        ended = any(one["what"] == "ended" and now <= one["t"] + memory_s for one in before)
        return ended or bool(kinds & SEVERE)
    if error in ("WorkerLost", "ReducerUnavailable", "WorkersMissing", "CollectiveTimeout"):
        times = [fault["t"] for fault in faults]
        is_crowd = any(third < first + CROWD_S for first, third in zip(times, times[2:], strict=False))
        # While no reducer is there, the others wait for a rank that has quit as long as for one that is late.
        has_quit = is_timeout and any(one["what"] == "quit" for one in own)
        return is_crowd or has_quit or bool(kinds & SEVERE)
    return False


# ---- time ----


def _late(history: list[Record]) -> Iterable[str]:
    for death in (record for record in history if record["what"] == "killed"):
        around = [one for one in history if one["what"] == "fault" and _overlaps(one, death["t"])]
        own = [one for one in history if (one.get("job"), one.get("life")) == (death["job"], death["life"])]
        if around or any(
            one["what"] in ("killed", "strayed", "failed") for one in own if one["t"] < death["t"]
        ):
            continue
        begun = {one["rank"] for one in own if one["what"] == "result"}
        ends = {one["rank"]: one["t"] for one in own if one["what"] in ("failed", "over", "killed")}
        life = next(one for one in own if one["what"] == "life")
        if len(begun) < life["ranks"]:  # not all ranks had met
            continue
        failed = {one["rank"] for one in own if one["what"] == "failed"}
        lacking = Counter(one["rank"] for one in own if one["what"] == "issued")
        lacking.subtract(one["rank"] for one in own if one["what"] == "result")
        for rank in range(life["ranks"]):
            is_leaving = rank in ends and rank not in failed and not lacking[rank]
            if not is_leaving and ends.get(rank, float("inf")) > death["t"] + DEATH_S:
                yield f"{_who(death)} died, and rank {rank} did not learn of it in time"


def _overlaps(fault: Record, now: float) -> bool:
    return bool(fault["t"] <= now + DEATH_S and now <= fault["t"] + fault["seconds"] + MEMORY_S)


def _late_sums(history: list[Record]) -> Iterable[str]:
    """Yield the sums that were late. Only ranks that have had a result are known to have met."""
    ranks = {(one["job"], one["life"]): one["ranks"] for one in history if one["what"] == "life"}
    issued: dict[tuple[str, int, int], int] = defaultdict(int)
    first: dict[tuple[str, int], float] = {}
    waiting: dict[tuple[str, int, int], tuple[float, set[int]]] = {}
    for record in (one for one in history if one["what"] in ("issued", "result")):
        key = _key(record)
        if record["what"] == "issued":
            issued[key] += 1
            if issued[key] == ranks[key[:2]] and key[:2] in first:
                waiting[key] = record["t"], set()
            continue
        first.setdefault(key[:2], record["t"])
        if key in waiting:
            waiting[key][1].add(record["rank"])
            if record["t"] <= waiting[key][0] + SUM_S and len(waiting[key][1]) == ranks[key[:2]]:
                del waiting[key]
    for (job, life, seq), (since, _) in waiting.items():
        if _stays(history, since, since + SUM_S) and _is_quiet(history, since, since + SUM_S):
            yield f"{job} life {life}: collective {seq} was complete at {since:.2f} and took longer than {SUM_S:g} s"


def _late_drains(history: list[Record]) -> Iterable[str]:
    for index, drain in enumerate(history):
        if drain["what"] != "drains":
            continue
        now, due = drain["t"], drain["t"] + DRAIN_S
        ends = [
            one["t"]
            for one in history[index:]
            if one["what"] == "ended" and one["reducer"] == drain["reducer"]
        ]
        if min(ends, default=due + 1) > due and _stays(history, now, due) and _is_quiet(history, now, due):
            yield f"{drain['reducer']} drains since {now:.2f} and was not left in {DRAIN_S:g} s"


def _stays(history: list[Record], since: float, until: float) -> set[str]:
    """Return the reducers that listen well before `since` and stay until `until`."""
    there: set[str] = set()
    for one in history:
        if one["what"] == "listens" and one["t"] < since - RECOVERY_S:
            there.add(one["reducer"])
        elif one["what"] in ("drains", "ended") and one["t"] <= until:
            there.discard(one["reducer"])
    return there


def _is_quiet(history: list[Record], since: float, until: float) -> bool:
    """Return whether there was no fault, and no end of a process, during this time or shortly before it."""
    return not any(
        since <= one["t"] + one.get("seconds", 0.0) + RECOVERY_S and one["t"] <= until
        for one in history
        if one["what"] in ("killed", "failed", "strayed", "over")
        or (one["what"] == "fault" and one["kind"] != "drain")
    )


def _key(record: Record) -> tuple[str, int, int]:
    return record["job"], record["life"], record["seq"]


def _who(record: Record) -> str:
    return f"{record['job']} life {record['life']} rank {record['rank']}"
