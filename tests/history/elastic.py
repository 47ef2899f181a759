"""Judges a history of elastic jobs as `checker` does for other jobs. It imports none of our code and trusts nothing.

Workers are identified by their rank and a word of their own, as in "2/3fa0". Records, in addition to `fault`, `calm`
and `left`:

    began    job, worker                             a process starts
    joined   job, worker, number, id, members, newcomers   it joins a generation of these workers
    state    job, worker, step, digest, ranks, told  a step starts: a digest of all its state, and the ranks that take
                                                     part; `told`, if present, has the changes of ranks that it was
                                                     notified of since the last step, as pairs
    issued   job, worker, step, part, op, dtype, contribution
    result   job, worker, step, part, result
    failed   job, worker, error, text                it ends with this error
    over     job, worker, step                       it ends in order
    killed   job, worker                             its process was ended from outside

Generations that have a worker in common belong to one **life** of the job. A generation starts a new life if all
earlier workers were lost. The checker proves that:

- All members of a generation agree on its number and on its members in the order of their ranks.
- A result is the fold over exactly the members of one generation, in this order. All workers that continue have the
  same bits. A worker that was lost with results that only it had has not continued to another step.
- In each step all workers, including newcomers, have the same state and see the same ranks. No worker repeats or skips
  a step, and a worker that sees other ranks than before was notified of it.
- An error names a real cause. Once faults stop, no worker waits for long, and nothing remains at the end.
- When nothing has happened for a while, no worker waits for long either, newcomers soon take part, and at least one
  worker trains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from history.checker import SEVERE, fold

Record = dict[str, Any]

#: Seconds between the end of a cause and its error, at most; and how long a worker may see no progress once faults
#: stop. While no reducer is there, the end of a worker is not detected, so after a fault of reducers this may take
#: timeout_s, unless another process replaces the worker.
MEMORY_S, PROGRESS_S, UNSEEN_S = 75.0, 75.0, 200.0
#: Seconds after the last fault when a job counts as undisturbed, and how long a worker may then wait while others
#: train.
RECOVERY_S, QUIET_S = 10.0, 12.0
#: Longest time without training after the last event of any kind, in seconds. New workers wait join_timeout_s, 30 s in
#: the simulation, for workers that they have heard of, unless they learn that these have disconnected.
STANDSTILL_S = 32.0
OF_REDUCERS = frozenset({"kill reducer", "silent reducer", "drain", "isolate", "freeze"})


def violations(history: Iterable[Record]) -> list[str]:
    """Return the violations in a history, one line each."""
    history = list(history)
    found = [f"left behind: {record['text']}" for record in history if record["what"] == "left"]
    for job in sorted({record["job"] for record in history if "job" in record}):
        own = [record for record in history if record.get("job") == job]
        generations = [record for record in own if record["what"] == "joined"]
        found += _wrong_generations(generations)
        lives = _lives(generations)
        found += [*_wrong_results(own, generations, lives), *_wrong_states(own, generations, lives)]
        found += _wrong_errors(own, [record for record in history if record["what"] == "fault"])
        found += [*_late(own, history), *_idle(own, history), *_standstills(job, history)]
    return found


# ---- generations ----


def _wrong_generations(joined: list[Record]) -> Iterable[str]:
    known: dict[str, tuple[Any, ...]] = {}
    numbers: dict[str, int] = {}
    for record in joined:
        what = record["number"], record["members"], record["newcomers"]
        if known.setdefault(record["id"], what) != what:
            yield f"{record['worker']} sees another generation {record['id']} than others"
        ranks = [int(member.partition("/")[0]) for member in record["members"]]
        if ranks != sorted(set(ranks)) or record["worker"] not in record["members"]:
            yield f"{record['worker']} joined {record['members']}"
        if record["number"] <= numbers.get(record["worker"], 0):
            yield f"{record['worker']} went back to generation {record['number']}"
        numbers[record["worker"]] = record["number"]


def _lives(joined: list[Record]) -> dict[str, str]:
    """Return a name for the life of each worker: the id of one of its generations."""
    above: dict[str, str] = {}

    def top(one: str) -> str:
        while above.setdefault(one, one) != one:
            one = above[one]
        return one

    first: dict[str, str] = {}
    for record in joined:
        above[top(record["id"])] = top(first.setdefault(record["worker"], record["id"]))
    return {worker: top(one) for worker, one in first.items()}


# ---- results ----


def _wrong_results(own: list[Record], joined: list[Record], lives: dict[str, str]) -> Iterable[str]:
    issued: dict[tuple[Any, ...], dict[str, Record]] = defaultdict(dict)
    results: dict[tuple[Any, ...], dict[str, bytes]] = defaultdict(dict)
    for record in own:
        if record["what"] in ("issued", "result"):
            key = lives.get(record["worker"]), record["step"], record["part"]
            table: Any = issued if record["what"] == "issued" else results
            if record["worker"] in table[key]:
                yield f"{record['worker']} has {record['what']} {key[1:]} twice"
            table[key][record["worker"]] = record.get("result", record)
    has_joined: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for record in joined:
        has_joined[tuple(record["members"])].add(record["worker"])
    last_steps = {record["worker"]: record["step"] for record in own if record["what"] in ("state", "over")}
    for key, got in results.items():
        if len({result for worker, result in got.items() if last_steps.get(worker, -1) > key[1]}) > 1:
            yield f"{sorted(got)} have different results of {key}"
        parts = issued[key]
        for result in sorted(set(got.values())):
            those = {worker for worker, its in got.items() if its == result}
            for members, there in has_joined.items():
                is_possible = those <= there == set(members) <= parts.keys()
                if is_possible and fold([parts[one] for one in members], local_size=1) == result:
                    break
            else:
                yield f"{sorted(those)} have a result of {key} that is the sum of no generation"


# ---- states ----


def _wrong_states(own: list[Record], joined: list[Record], lives: dict[str, str]) -> Iterable[str]:
    seen: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    last: dict[str, int] = {}
    ranks: dict[str, list[int]] = {}
    known = {(record["worker"], tuple(_ranks(record["members"]))) for record in joined}
    for record in (record for record in own if record["what"] == "state"):
        worker, step, what = record["worker"], record["step"], (record["digest"], record["ranks"])
        if seen.setdefault((lives.get(worker), step), what) != what:
            yield f"{worker} has another state or other ranks at step {step} than others"
        if last.setdefault(worker, step - 1) != step - 1:
            yield f"{worker} comes from step {last[worker]} to {step}"
        if (worker, tuple(record["ranks"])) not in known:
            yield f"{worker} sees ranks {record['ranks']} at step {step}, and was in no such generation"
        last[worker] = step
        told = [ranks.get(worker, record["ranks"])]
        for before, after in record.get("told", []):
            if before != told[-1] and worker in ranks:
                yield f"{worker} was told of ranks {before} at step {step}, and had {told[-1]}"
            told.append(after)
        if "told" in record and told[-1] != record["ranks"]:
            yield f"{worker} has ranks {record['ranks']} at step {step}, and was told of {told[-1]}"
        ranks[worker] = record["ranks"]


def _ranks(members: list[str]) -> list[int]:
    return [int(member.partition("/")[0]) for member in members]


# ---- errors ----


def _wrong_errors(own: list[Record], faults: list[Record]) -> Iterable[str]:
    joined: dict[str, Record] = {}
    ended: dict[str, Record] = {}
    for record in own:
        if record["what"] == "joined":
            joined[record["worker"]] = record
        elif record["what"] == "failed":
            now = record["t"]
            recent = {
                one["kind"] for one in faults if one["t"] <= now <= one["t"] + one["seconds"] + MEMORY_S
            }
            unseen_s = UNSEEN_S if record["error"] == "WorkersMissing" else MEMORY_S
            gone = [one for one in ended.values() if now <= one["t"] + unseen_s]
            if not _has_cause(record, joined.get(record["worker"], {}), recent, gone):
                yield f"{record['worker']} at {now:.2f} has no cause for {record['error']}: {record['text']}"
        if record["what"] in ("failed", "over", "killed"):
            ended[record["worker"]] = record


def _has_cause(failure: Record, last: Record, recent: set[str], gone: list[Record]) -> bool:
    error, members = failure["error"], last.get("members", [])
    if error == "ConfigError":
        return "other model" in recent
    if error == "ResourceExhausted":
        return "no memory" in recent
    if recent & SEVERE and error in ("WorkersMissing", "WorkerLost", "ReducerUnavailable", "RankTaken"):
        return True
    if error == "RankTaken":
        return "twin" in recent
    if error == "WorkerLost":  # for a newcomer whose generation was disturbed while it started
        return failure["worker"] in last.get("newcomers", ()) and bool(gone or recent)
    if error == "WorkersMissing":
        lost = {one["worker"] for one in gone}.intersection(members)
        return 2 * len(lost) >= len(members) if members else bool(gone)
    return False


# ---- time ----


def _late(own: list[Record], history: list[Record]) -> Iterable[str]:
    calm = next((record["t"] for record in history if record["what"] == "calm"), float("inf"))
    kinds = _kinds(history)
    last: dict[str, float] = {}
    for record in own:
        worker, now = record["worker"], record["t"]
        waited_s = now - max(calm, last.get(worker, now))
        # If two processes start a job as one rank, one of them may wait in a generation of its own.
        if waited_s > UNSEEN_S or (
            waited_s > PROGRESS_S and "twin" not in kinds and not _may_be_unseen(own, kinds, now)
        ):
            yield f"{worker} had nothing from {last[worker]:.2f} to {now:.2f}, and then {record['what']}"
        last[worker] = now


def _kinds(history: list[Record]) -> set[str]:
    return {record["kind"] for record in history if record["what"] == "fault"}


def _may_be_unseen(own: list[Record], kinds: set[str], now: float) -> bool:
    """Return whether a worker ended earlier without a replacement, and possibly without a reducer that noticed it."""
    if not kinds & OF_REDUCERS:
        return False
    ended = {"over", "killed", "failed"}
    there = {
        record["worker"].partition("/")[0]: record["what"] not in ended for record in own if record["t"] < now
    }
    return not all(there.values())


def _idle(own: list[Record], history: list[Record]) -> Iterable[str]:
    """Yield the workers that had to wait although nothing had happened and others trained."""
    troubles = [
        (one["t"], one["t"] + one.get("seconds", 0.0) + RECOVERY_S)
        for one in history
        if one["what"] in ("killed", "failed") or (one["what"] == "fault" and one["kind"] != "newcomers")
    ]
    steps = [(one["t"], one["worker"]) for one in own if one["what"] == "state"]
    admitted = [(one["t"], one["number"]) for one in own if one["what"] == "joined" and one["newcomers"]]
    last: dict[str, float] = {}
    for record in own:
        worker, now = record["worker"], record["t"]
        since, last[worker] = last.get(worker, now), now
        if now <= since + QUIET_S:
            continue
        # There is one transfer at a time: later newcomers wait for those before them.
        number = record.get("number", float("inf"))
        until = max([since, *(at for at, other in admitted if at < now and other < number)]) + QUIET_S
        if now > until and not any(begun <= until and since <= over for begun, over in troubles):
            trained = [step for step, other in steps if since < step < now and other != worker]
            if trained and trained[0] < until < trained[-1]:
                yield f"{worker} waited from {since:.2f} to {now:.2f} for {record['what']}, while others trained"


def _standstills(job: str, history: list[Record]) -> Iterable[str]:
    """Yield the times when no worker trained although nothing had happened for long."""
    kinds, own = _kinds(history), [record for record in history if record.get("job") == job]
    quiet_from = history[0]["t"]  # the zero of the clock is arbitrary
    for record in history:
        now = record["t"]
        if record.get("job", job) != job or record["what"] not in (
            "began",
            "failed",
            "fault",
            "killed",
            "over",
            "state",
        ):
            continue
        waited_s = now - quiet_from
        if record["what"] == "state" and (
            waited_s > UNSEEN_S or (waited_s > STANDSTILL_S and not _may_be_unseen(own, kinds, now))
        ):
            yield f"nobody trained from {quiet_from:.2f} to {now:.2f}"
        quiet_from = max(quiet_from, now + record.get("seconds", 0.0))
