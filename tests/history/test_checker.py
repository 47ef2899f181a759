"""The checker detects each kind of wrong history. Like the checker, these tests import none of our code."""

import numpy as np
import pytest
from history.checker import fold, violations


def history(*changes):
    """Return a correct history of two ranks and one sum, with records removed, changed or added."""
    parts = [np.array([1.0, 2.0], "<f4").tobytes(), np.array([10.0, 20.0], "<f4").tobytes()]
    total = np.array([11.0, 22.0], "<f4").tobytes()
    job = {"job": "a", "life": 1}
    records = [{"what": "life", "t": 0.0, "ranks": 2, "local_size": 1, "on_reducer_loss": "reshard"} | job]
    for rank, part in enumerate(parts):
        records.append(
            {
                "what": "issued",
                "t": 1.0,
                "rank": rank,
                "seq": 0,
                "op": "SUM",
                "dtype": "FLOAT32",
                "contribution": part,
            }
            | job
        )
    records += [
        {"what": "result", "t": 2.0, "rank": rank, "seq": 0, "result": total} | job for rank in range(2)
    ]
    records += [{"what": "over", "t": 3.0, "rank": rank} | job for rank in range(2)]
    for change in changes:
        change(records)
    return records


def result_of_rank_1(records):
    return next(record for record in records if record["what"] == "result" and record["rank"] == 1)


def other_bits(records):
    result_of_rank_1(records)["result"] = np.array(
        [11.0, np.nextafter(np.float32(22), np.float32(23))], "<f4"
    ).tobytes()


def no_contribution(records):
    records.remove(next(record for record in records if record["what"] == "issued" and record["rank"] == 1))


def no_result(records):
    records.remove(result_of_rank_1(records))


def result_twice(records):
    records.insert(4, dict(result_of_rank_1(records)))


def result_of_another_life(records):
    result_of_rank_1(records)["life"] = 2


def result_after_the_end(records):
    records.append(dict(result_of_rank_1(records), seq=1, t=4.0))


def failed(error, text="", t=2.5):
    def change(records):
        records[-1:] = [
            {"what": "failed", "t": t, "job": "a", "life": 1, "rank": 1, "error": error, "text": text}
        ]

    return change


def killed(rank, t=2.4):
    return lambda records: records.insert(-1, {"what": "killed", "t": t, "job": "a", "life": 1, "rank": rank})


def fault(kind, seconds=1.0):
    return lambda records: records.insert(
        1, {"what": "fault", "t": 0.5, "kind": kind, "hosts": [], "seconds": seconds}
    )


def reducer(what, t, name="r:1/1"):
    return lambda records: records.append({"what": what, "t": t, "reducer": name})


def second_sum(result_t):
    """Issue another sum at 20 s whose results arrive at `result_t`."""

    def change(records):
        del records[-2:]
        records += [dict(record, seq=1, t=20.0) for record in records if record["what"] == "issued"]
        records += [
            dict(record, seq=1, t=result_t)
            for record in records
            if record["what"] == "result" and record["t"] < 9
        ]

    return change


#: One of two long-running reducers starts to drain.
DRAIN = [reducer("listens", 0.0), reducer("listens", 0.0, "r:2/1"), reducer("drains", 30.0)]
LOST = "rank 0 (a-0) is gone: its streams to r:1 broke without goodbye"


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [killed(0), failed("WorkerLost", LOST)],
        [fault("cut", 12.0), failed("WorkerLost", LOST)],
        [fault("no memory"), failed("ResourceExhausted")],
        [second_sum(21.0), reducer("listens", 0.0)],
        [second_sum(25.0)],
        [second_sum(25.0), fault("cut", 15.0), reducer("listens", 0.0)],
        [second_sum(25.0), reducer("listens", 0.0), reducer("ended", 21.0)],
        [*DRAIN, reducer("ended", 30.5)],
        [*DRAIN, fault("slow", 25.0)],
        [*DRAIN, reducer("drains", 30.6, "r:2/1")],
    ],
)
def test_a_correct_history_has_no_violations(changes):
    assert violations(history(*changes)) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([other_bits], "a wrong result of collective 0"),
        ([no_contribution], "a result of 1 contributions"),
        ([no_result], "ended with 0 of 1 results and no error"),
        ([result_twice], "got collective 0 twice"),
        ([result_of_another_life], "a result of 0 contributions"),
        ([result_after_the_end], "got a result after its end"),
        ([failed("WorkerLost", LOST)], "has no cause for WorkerLost"),
        ([killed(1), failed("WorkerLost", LOST)], "has no cause for WorkerLost"),
        ([fault("reset"), failed("WorkerLost", LOST)], "has no cause for WorkerLost"),
        ([fault("cut"), failed("OutOfOrder")], "has no cause for OutOfOrder"),
        ([failed("CollectiveMismatch")], "has no cause for CollectiveMismatch"),
        (
            [lambda records: records.append({"what": "left", "t": 9.0, "text": "r:1: 1 jobs"})],
            "left behind: r:1: 1 jobs",
        ),
        ([second_sum(25.0), reducer("listens", 0.0)], "collective 1 was complete at 20.00 and took longer"),
        (DRAIN, "r:1/1 drains since 30.00 and was not left"),
        ([*DRAIN, reducer("ended", 32.0)], "r:1/1 drains since 30.00 and was not left"),
        ([lambda records: records.pop(), killed(0)], "died, and rank 1 did not learn of it in time"),
    ],
)
def test_a_wrong_history_has_violations(changes, text):
    found = violations(history(*changes))
    assert any(text in line for line in found), found


@pytest.mark.parametrize(
    ("dtype", "op", "parts", "total", "local_size"),
    [
        # Folded in rank order; from the right the result would be 1.
        (
            "FLOAT32",
            "SUM",
            [np.array([1.0], "<f4"), np.array([2.0**30], "<f4"), np.array([-(2.0**30)], "<f4")],
            np.array([0.0], "<f4"),
            1,
        ),
        # Rounded once; with rounding to float16 after each addition the result would stay 2048.
        (
            "FLOAT16",
            "SUM",
            [np.array([2048.0], "<f2"), np.array([1.0], "<f2"), np.array([1.0], "<f2")],
            np.array([2050.0], "<f2"),
            1,
        ),
        (
            "BFLOAT16",
            "AVG",
            [np.array([0x3F80], "<u2"), np.array([0x4000], "<u2")],
            np.array([0x3FC0], "<u2"),
            1,
        ),
        # Each part is the sum of two processes.
        ("FLOAT32", "AVG", [np.array([6.0], "<f4"), np.array([10.0], "<f4")], np.array([4.0], "<f4"), 2),
        (
            "INT32",
            "SUM",
            [np.array([2**31 - 1], "<i4"), np.array([1], "<i4")],
            np.array([-(2**31)], "<i4"),
            1,
        ),
        ("INT64", "MAX", [np.array([3], "<i8"), np.array([-4], "<i8")], np.array([3], "<i8"), 1),
    ],
)
def test_the_fold(dtype, op, parts, total, local_size):
    records = [{"op": op, "dtype": dtype, "contribution": part.tobytes()} for part in parts]
    assert fold(records, local_size) == total.tobytes()
