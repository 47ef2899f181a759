from __future__ import annotations

import threading

import pytest
import torch

from benchmarks.gil.load import BusyMain, Turn
from benchmarks.gil.rows import HEAD, Measured, cells, idle_cells, row
from benchmarks.lab.ranks import Rank


def turn(*, seconds: float = 1.0, loops: int = 100, cpu_s: float = 0.75, queued_s: float = 0.125) -> Turn:
    return Turn(seconds=seconds, tensor_bytes=10**9, loops=loops, cpu_s=cpu_s, queued_s=queued_s)


def test_a_row_compares_each_round_with_itself() -> None:
    idle = [[turn(), turn()], [turn(loops=50), turn(loops=50)]]
    spinning = [[turn(seconds=2), turn(seconds=4)], [turn(seconds=2, loops=50), turn(seconds=4, loops=50)]]
    waiting = [[turn(), turn(seconds=0.5)]] * 2
    found = row("tcp", idle, Measured(spinning, waiting))
    assert found["loop_speed"] == (0.375, 0.375, 0.375)  # of 100 a second: 50 and 25
    assert found["lost_s_per_gb"] == (2.0, 2.0, 2.0)  # 1 and 3
    assert found["spinning_gb_s"] == (0.25, 0.25, 0.25)  # the slowest rank's
    assert found["waiting_gb_s"] == (1.0, 1.0, 1.0)
    assert found["kept_bandwidth"] == (0.25, 0.25, 0.25)


def test_time_that_is_neither_on_a_core_nor_queued_is_blocked() -> None:
    assert turn().blocked_s == 0.125
    assert turn(cpu_s=1.1).blocked_s == 0.0  # the clocks differ a little


def test_rows_have_a_cell_for_each_column() -> None:
    found = row("ring", [[turn()]] * 3, Measured([[turn()]] * 3, [[turn()]] * 3))
    assert len(cells(found)) == len(idle_cells([[turn()]] * 3)) == len(HEAD)
    assert idle_cells([[turn()]])[:5] == ["nothing", "100%", "75%", "12%", "12%"]


class Alone:
    """A communicator of one rank that takes its time."""

    def __init__(self, damage: float = 0.0) -> None:
        self.damage = damage
        self.in_flight = 0
        self.most_in_flight = 0

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        tensor[-1] += self.damage

        def complete() -> None:
            self.in_flight -= 1
            future.set_result(tensor)

        threading.Timer(0.005, complete).start()
        return future


def busy(state: Alone, *, is_asleep: bool = False) -> BusyMain:
    rank = Rank(0, 1, torch.device("cpu"), {"tcp": state})  # type: ignore[dict-item]
    load = BusyMain(rank, 64, 6, 2, None, is_asleep)
    load.take(4)
    load.prepare()
    return load


@pytest.mark.parametrize("spins", [True, False])
def test_a_turn_reduces_all_tensors_and_computes_meanwhile(spins: bool) -> None:
    state = Alone()
    load = busy(state)
    done = load.fly("tcp", spins, 0.0)
    load.verify()
    assert done.tensor_bytes == 4 * 64 * 4
    assert (done.loops > 0) is spins
    assert state.most_in_flight == 2


def test_a_main_thread_may_keep_the_gil_asleep() -> None:
    load = busy(Alone(), is_asleep=True)
    done = load.fly("tcp", True, 0.0)
    load.verify()
    assert done.loops > 0
    assert done.cpu_s < done.seconds


def test_a_wrong_sum_is_found() -> None:
    load = busy(Alone(damage=1.0))
    load.fly("tcp", False, 0.0)
    with pytest.raises(AssertionError, match="1 of 64 elements are wrong"):
        load.verify()


def test_a_turn_of_no_time() -> None:
    done = busy(Alone()).idle(0.0, 0.0)
    assert (done.loops, done.tensor_bytes) == (0, 0)
