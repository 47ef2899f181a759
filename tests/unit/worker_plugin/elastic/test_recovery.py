"""Results that one worker holds are distributed to all; missing ones are left to be reduced again."""

import threading

import pytest
import torch
from reduction.errors import LocalProtocolError
from reduction.model import DType, ReduceOp
from support.fakes.fake_sums import FakeSums

from worker_plugin.communicator import Request
from worker_plugin.elastic.ledger import Ledger, bytes_of
from worker_plugin.elastic.recovery import agree_on_results
from worker_plugin.tensors.encoding import ParameterSlice
from worker_plugin.tensors.futures import make_future


def ledger_of(issued: int, held: dict[int, float], first: int = 0) -> Ledger:
    """Return a ledger whose collectives from `first` on were issued; some of them have a result."""
    ledger = Ledger()
    ledger.begin(first)
    for seq in range(first, issued):
        tensor = torch.full((3 + seq,), -1.0)
        request = Request(tensor, DType.FLOAT32, ReduceOp.SUM, 0, [ParameterSlice(0, 3 + seq)])
        entry = ledger.issue(request, make_future(tensor))
        if seq in held:
            entry.result = bytes_of(torch.full((3 + seq,), held[seq])).clone()
    return ledger


def recover(*ledgers: Ledger) -> list[dict[int, float] | str]:
    """Return each worker's recovered results, by the number that fills each result, or its error."""
    sums, found = FakeSums(len(ledgers)), [None for _ in ledgers]

    def work(index: int) -> None:
        submit, ledger = sums.member(), ledgers[index]
        bounds = ledger.missing, ledger.end
        try:
            got = agree_on_results(
                ledger.entries, bounds, index, len(ledgers), lambda tensor: submit(tensor).wait()
            )
        except LocalProtocolError as error:
            found[index] = str(error)
            return
        values = {seq: data.view(torch.float32) for seq, data in got.items()}
        assert all(torch.equal(one, torch.full((3 + seq,), one[0].item())) for seq, one in values.items())
        found[index] = {seq: one[0].item() for seq, one in values.items()}

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(ledgers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_the_bytes_of_one_element_with_a_stride():
    column = torch.ones(1, 2)[:, 1]
    bytes_of(column).zero_()
    assert column.tolist() == [0.0]
    assert bytes_of(torch.ones(0)[::2]).numel() == 0


@pytest.mark.parametrize(
    ("ledgers", "found"),
    [
        ([ledger_of(2, {0: 1.0, 1: 2.0}), ledger_of(2, {0: 1.0, 1: 2.0})], [{}, {}]),
        ([ledger_of(0, {}), ledger_of(0, {})], [{}, {}]),
        ([ledger_of(1, {}), ledger_of(1, {0: 5.0}), ledger_of(1, {})], [{0: 5.0}, {}, {0: 5.0}]),
        # Results that no worker holds are left out.
        ([ledger_of(3, {2: 7.0}), ledger_of(3, {})], [{}, {2: 7.0}]),
        # Each lacks a different one.
        ([ledger_of(4, {0: 1.0, 2: 3.0}), ledger_of(3, {1: 2.0, 2: 3.0})], [{1: 2.0}, {0: 1.0}]),
        # A worker that came later knows nothing of earlier collectives.
        ([ledger_of(8, {}, first=7), ledger_of(9, {7: 1.0}, first=7)], [{7: 1.0}, {}]),
    ],
)
def test_results_that_one_worker_holds_are_given_to_all(ledgers, found):
    assert recover(*ledgers) == found


def test_a_result_that_one_worker_lacks_and_the_others_have_forgotten_fails_all():
    """Otherwise it would continue with this collective, and they with the next one."""
    for error in recover(ledger_of(8, {}, first=7), ledger_of(9, {8: 1.0}, first=8)):
        assert "collective 7" in error
        assert "[[7, 7], [9, 9]]" in error


def test_the_ledger_forgets_what_all_hold():
    ledger = ledger_of(4, {0: 1.0, 1: 1.0, 3: 1.0})
    assert (ledger.missing, ledger.end, [entry.seq for entry in ledger.open_entries]) == (2, 4, [2])
    ledger.forget_before(2)
    assert (ledger.first, ledger.missing, sorted(ledger.entries)) == (2, 2, [2, 3])
    assert (Ledger().missing, Ledger().end) == (0, 0)
