"""Damage in transit with `checksums=True`: damaged messages are sent again, and the sums are correct."""

from __future__ import annotations

import pytest
from reduction.errors import DataCorrupted
from reduction.wire import checksum
from support.processes.reducers import status_of

ROUNDS = 12


def sum_beside_damage(rank, reducers, job, where):
    """Damage one push or one result of rank 1 in the middle of many; every sum is checked."""
    with rank.state(reducers, job, checksums=True) as state:
        for step in range(ROUNDS):
            if step == ROUNDS // 2 and rank.number == 1:
                _damage_once(rank, where)
            rank.round(state, 300_000, step=step)
        rank.tell("there")
        rank.hear()
        assert state.error is None


def _damage_once(rank, where):
    name = {"push": "of_push", "result": "check"}[where]
    whole = getattr(checksum, name)

    def damaged(*arguments):
        setattr(checksum, name, whole)
        if where == "push":
            return whole(*arguments) ^ 1
        raise DataCorrupted("Result arrived damaged: says the test")

    setattr(checksum, name, damaged)


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("where", ["push", "result"])
def test_damaged_messages_are_resent(ranks, serve, job, where):
    reducers = [serve(), serve()]
    call = ranks.begin(3, sum_beside_damage, [reducer.address for reducer in reducers], job, where)
    assert [call.hear(rank) for rank in range(3)] == ["there"] * 3
    (row,) = status_of(reducers[0].address)["jobs"]
    for rank in range(3):
        call.tell(rank, "done")
    call.answers()
    assert row["epoch"] > 1, "nobody noticed"
    logs = [reducer.log.text for reducer in reducers] if where == "push" else [ranks.processes[1].log.text]
    assert any("arrived damaged" in text for text in logs)
