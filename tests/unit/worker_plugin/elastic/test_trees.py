"""A training's state between workers: tensors and JSON, and the result when the donor is lost."""

import json
import math
import threading
from collections import namedtuple
from collections.abc import Callable, Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from reduction.errors import ConfigError, WorkerLost
from support.fakes.fake_sums import FakeSums

from worker_plugin.elastic import trees
from worker_plugin.tensors.futures import Future


def exchange(tree: object, receivers: int = 2) -> list[object]:
    sums, got = FakeSums(receivers + 1), []
    threads = [
        threading.Thread(target=lambda submit: got.append(trees.receive(submit)), args=(sums.member(),))
        for _ in range(receivers)
    ]
    for thread in threads:
        thread.start()
    trees.send(tree, sums.member())
    for thread in threads:
        thread.join(10)
    assert len(got) == receivers
    return got


def answering(messages: Iterable[torch.Tensor | None]) -> Callable[[torch.Tensor], Future]:
    """Return a `Submit` whose sums are these. None means that only zeros arrived."""
    coming = iter(messages)

    def submit(tensor: torch.Tensor) -> Future:
        message = next(coming)
        if message is not None:
            tensor.copy_(message)
        future: Future = torch.futures.Future()
        future.set_result(tensor)
        return future

    return submit


def test_a_model_and_its_optimizer_arrive_with_all_bits(monkeypatch):
    monkeypatch.setattr(trees, "PIECE_BYTES", 100)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model[0].bias[0], model[0].bias[1] = -0.0, math.inf
    tree = {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "extra": {"step": 3, "x": (1.5, None, "t", [True])},
    }
    for got in exchange(tree):
        for name, tensor in model.state_dict().items():
            assert torch.equal(got["model"][name], tensor)
            assert got["model"][name].dtype == tensor.dtype
        assert torch.equal(torch.signbit(got["model"]["0.bias"]), torch.signbit(model[0].bias))
        assert got["extra"] == tree["extra"]
        again = torch.optim.Adam(torch.nn.Linear(5, 3).parameters(), 1.0)
        other = torch.optim.Adam([*model.parameters()], 1.0)
        other.load_state_dict(got["optimizer"])
        assert other.param_groups[0]["lr"] == 0.1
        assert len(again.state) == 0


def test_empty_trees_and_tensors():
    got = exchange({"none": torch.zeros(0, 3), "scalar": torch.tensor(2.5, dtype=torch.bfloat16)}, 1)[0]
    assert got["none"].shape == (0, 3)
    assert got["scalar"] == torch.tensor(2.5, dtype=torch.bfloat16)


Pair = namedtuple("Pair", "a b")
LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "the state has a object"),
        (torch.Size((1, 2)), "the state has a Size"),
        (Pair(1, 2), "the state has a Pair"),
        (torch.eye(2).to_sparse(), "the state has a Tensor"),
        (torch.eye(2, device="meta"), "the state has a Tensor"),
        (LOOP, "the state at x.1.0 is nested more than"),
        (2**20_000, "the state has a number of 20001 bits"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_only_tensors_and_json_can_be_sent(value, message):
    with pytest.raises(ConfigError, match=rf"(?s){message}.* (at x\.1|100 deep)"):
        trees.pack({"x": [0, value]})


_LEAVES = (
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(max_size=5)
)
_KEYS = some.recursive(_LEAVES, lambda inner: some.tuples(inner, inner), max_leaves=3)


@given(
    some.recursive(
        _LEAVES | some.just(torch.Size((1,))) | some.just(b""),
        lambda inner: (
            some.lists(inner, max_size=3)
            | some.tuples(inner, inner)
            | some.dictionaries(_KEYS, inner, max_size=3)
        ),
    )
)
def test_packed_trees_can_be_read(tree):
    try:
        packed, _ = trees.pack(tree)
    except ConfigError:
        return
    got, _ = trees.unpack(json.loads(json.dumps(packed)))
    assert repr(got) == repr(tree)


def test_a_tree_of_maximum_depth_can_be_read():
    tree: object = 1
    for _ in range(trees.DEPTH_MAX):
        tree = {"x": [tree]} if isinstance(tree, list) else [tree]
        try:
            packed, _ = trees.pack(tree)
        except ConfigError:
            break
    assert trees.unpack(json.loads(json.dumps(packed)))[0]


def test_conjugate_and_negative_views_arrive():
    tensor = torch.randn(3, dtype=torch.complex64)
    for view in (tensor.conj(), tensor.conj().imag):
        (got,) = exchange(view, 1)
        assert torch.equal(got, view)
        assert trees.digest(view) == trees.digest(view.clone().resolve_conj().resolve_neg())


@pytest.mark.parametrize(
    "packed",
    [
        {"tensor": ["torch.float99", [2]]},
        {"tensor": ["torch.float32", [-1]]},
        {"set": []},
        {"dict": 3},
        {"a": 1, "b": 2},
    ],
)
def test_invalid_trees_are_refused(packed):
    with pytest.raises(ConfigError):
        trees.unpack(packed)


HEAD = torch.tensor([1, 2]), torch.tensor([1, *b"{}"], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        # From some message on, everyone contributes only zeros.
        ([None], WorkerLost),
        ([HEAD[0], None], WorkerLost),
        # {} is no tree, and { no JSON.
        (HEAD, ConfigError),
        ([torch.tensor([1, 1]), torch.tensor([1, ord("{")], dtype=torch.uint8)], ConfigError),
    ],
)
def test_a_lost_or_nonsensical_donor_is_an_error(messages, error):
    with pytest.raises(error):
        trees.receive(answering(messages))


@pytest.mark.parametrize("lost_at", [0, 1, 8, 9])
def test_all_receivers_have_requested_equally_many_pieces_when_they_see_a_loss(monkeypatch, lost_at):
    """They continue together afterwards, so their next collective must be the same one."""
    monkeypatch.setattr(trees, "PIECE_BYTES", 10)
    text = json.dumps({"tensor": ["torch.uint8", [100]]}).encode()
    parts = [text[start : start + 10] for start in range(0, len(text), 10)]
    head = [torch.tensor([1, len(text)]), *(torch.tensor([1, *part], dtype=torch.uint8) for part in parts)]
    pieces = [torch.tensor([index != lost_at, *bytes(10)], dtype=torch.uint8) for index in range(10)]
    messages = iter([*head, *pieces])
    with pytest.raises(WorkerLost):
        trees.receive(answering(messages))
    # A loss is noticed when its message is the oldest of those in flight.
    assert len(list(messages)) == max(0, 10 - lost_at - trees.PIECES_IN_FLIGHT)


def test_a_donor_outside_of_the_generation_fails():
    with pytest.raises(WorkerLost):
        trees.send({}, answering([torch.zeros(2, dtype=torch.int64)]))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.bool, torch.float64, torch.complex128]
)
def test_a_digest_differs_with_any_element(dtype):
    tree = {"x": torch.zeros(5, dtype=dtype), "n": 3}
    same = trees.digest(tree)
    assert trees.digest({"x": torch.zeros(5, dtype=dtype), "n": 3}) == same
    assert trees.digest({"x": torch.zeros(5, dtype=dtype), "n": 4}) != same
    for index in range(5):
        other = torch.zeros(5, dtype=dtype)
        other[index] = 1
        assert trees.digest({"x": other, "n": 3}) != same


def test_a_digest_differs_with_the_order_and_with_signs_and_not_with_strides():
    weight = torch.arange(64, dtype=torch.float64).reshape(8, 8)
    assert len({trees.digest(one) for one in (weight, weight.t(), weight.flip(0), -weight)}) == 4
    assert trees.digest(weight.t()) == trees.digest(weight.t().contiguous())
