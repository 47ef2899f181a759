"""The checker detects each kind of wrong history of an elastic job."""

import numpy as np
import pytest
from history.elastic import violations

ALL = ["0/a", "1/b", "2/c"]


def part(worker):
    return np.array([1.0 + int(worker[0]), 0.5], "<f4").tobytes()


def total(workers):
    return sum(np.frombuffer(part(worker), "<f4") for worker in workers).astype("<f4").tobytes()


def history():
    """Return a correct history: two workers do a step, and a third one is admitted for the next step."""
    records = []

    def add(what, worker, t, **fields):
        records.append({"what": what, "job": "a", "worker": worker, "t": t} | fields)

    def step(number, workers, t):
        for worker in workers:
            ranks = [int(one[0]) for one in workers]
            add("state", worker, t, step=number, digest=f"d{number}", ranks=ranks)
        for worker in workers:
            add(
                "issued", worker, t, step=number, part=0, op="SUM", dtype="FLOAT32", contribution=part(worker)
            )
        for worker in workers:
            add("result", worker, t, step=number, part=0, result=total(workers))

    for worker in ALL:
        add("began", worker, 0.0)
    for worker in ALL[:2]:
        add("joined", worker, 0.0, number=1, id="g1", members=ALL[:2], newcomers=[])
    step(0, ALL[:2], 1.0)
    for worker in ALL:
        add("joined", worker, 2.0, number=2, id="g2", members=ALL, newcomers=["2/c"])
    step(1, ALL, 3.0)
    for worker in ALL:
        add("over", worker, 4.0, step=2)
    return records


def changed(what, worker, /, **fields):
    """Return the history with the last record of this kind and worker changed."""
    records = history()
    record = [one for one in records if one["what"] == what and one["worker"] == worker][-1]
    record |= fields
    return records


def test_a_correct_history():
    assert violations(history()) == []


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (changed("joined", "2/c", members=["1/b", "2/c"]), "sees another generation"),
        (changed("joined", "1/b", number=1), "went back to generation 1"),
        (changed("result", "2/c", result=part("2/c")), "different results"),
        (changed("state", "2/c", digest="other"), "another state"),
        (changed("state", "2/c", ranks=[0, 1]), "other ranks"),
        (changed("state", "1/b", step=2), "comes from step 0 to 2"),
        (changed("over", "0/a", what="failed", error="WorkerLost", text="?"), "no cause for WorkerLost"),
        (changed("over", "2/c", what="left", text="a room"), "left behind: a room"),
    ],
)
def test_each_kind_of_wrong_history(records, text):
    assert text in "\n".join(violations(records))


def test_a_sum_that_matches_no_generation():
    records = [
        record | {"result": total(ALL[:2])} if record["what"] == "result" else record for record in history()
    ]
    assert any("the sum of no generation" in line for line in violations(records))


def test_a_wait_after_all_faults():
    records = [{"what": "calm", "t": 0.0}, *changed("over", "2/c", t=400.0)]
    assert any("had nothing from 3.00 to 400.00" in line for line in violations(records))


def test_idle_time_without_a_fault_is_a_violation():
    late = [record | {"t": record["t"] + 40.0 * (record.get("step", 0) > 0)} for record in history()]
    assert any("nobody trained from" in line for line in violations(late))
    fault = {"what": "fault", "kind": "cut", "hosts": [], "t": 3.0, "seconds": 30.0}
    index = next(number for number, record in enumerate(late) if record["t"] > 3.0)
    assert not any("nobody trained" in line for line in violations([*late[:index], fault, *late[index:]]))


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_lost_worker_may_have_a_result_that_the_others_do_not_get(goes_on):
    """The others sum again without the lost worker in their own generation, so it must not continue to another step."""
    records = []
    for record in history():
        if record["t"] < 4.0 and record.get("worker") != "2/c" and record.get("step") != 1:
            records.append(record)
        elif record.get("step") == 1 and record["worker"] != "2/c":
            ranks = {"ranks": [0, 1]} if record["what"] == "state" else {}
            result = (
                {"result": part("0/a")} if (record["what"], record["worker"]) == ("result", "0/a") else {}
            )
            if result:
                joined = {"number": 3, "id": "g3", "members": ["0/a"], "newcomers": []}
                records.append({"what": "joined", "job": "a", "worker": "0/a", "t": 3.0} | joined)
            if result or record["what"] == "result":
                result = result or {"result": total(ALL[:2])}
            records.append(record | ranks | result)
    records = [record for record in records if record.get("number") != 2]
    records.append({"what": "over", "job": "a", "worker": "0/a", "t": 4.0, "step": 2})
    last = {"what": "over", "step": 2} if goes_on else {"what": "killed"}
    records.append({"job": "a", "worker": "1/b", "t": 4.0} | last)
    found = violations(records)
    assert found == (["['0/a', '1/b'] have different results of ('g1', 1, 0)"] if goes_on else [])
