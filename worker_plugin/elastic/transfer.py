"""A training's state on its way from one worker to others: tensors and JSON, no code.

It goes through all-reduces of whole numbers: the donor adds its bytes, the others add zeros. A first
byte of every message says whether the donor has added anything: if it died, nobody did, and the
receivers all see that.

A **tree** is what `state_dict` methods return: dictionaries, lists and tuples of tensors, numbers,
texts, booleans and None.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from reduction.errors import ConfigError, WorkerLost

from worker_plugin.elastic.ledger import bytes_of
from worker_plugin.elastic.recovery import Sum

#: Tensors travel in pieces of this size, so that neither side needs a copy of all of them.
PIECE_BYTES = 8 << 20
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def pack(tree: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return a tree as JSON knows it, and its tensors in the order in which it refers to them.

    Raises:
        ConfigError: there is something in it that is neither a tensor nor JSON.
    """
    tensors: list[torch.Tensor] = []

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return {"tensor": [str(value.dtype), list(value.shape)]}
        if isinstance(value, dict):
            return {"dict": [[walk(key), walk(item)] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [walk(item) for item in value]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise ConfigError(
            f"the state has a {type(value).__name__} ({value!r:.80}): only tensors, numbers, texts, lists and "
            f"dictionaries of them can be sent to another worker"
        )

    return walk(tree), tensors


def unpack(packed: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return a tree from what `pack` made of it, with new tensors, which are also returned in order.

    Raises:
        ConfigError: it is nothing that `pack` makes.
    """
    tensors: list[torch.Tensor] = []

    def walk(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "tensor":
            dtype, shape = content
            tensors.append(torch.zeros(shape, dtype=_DTYPES[dtype]))
            return tensors[-1]
        if kind == "dict":
            return {walk(key): walk(item) for key, item in content}
        return {"list": list, "tuple": tuple}[kind](walk(item) for item in content)

    try:
        return walk(packed), tensors
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the state that came from another worker cannot be read: {error!r}") from None


def send(tree: Any, add: Sum) -> None:
    """Send a tree to those who `receive` it."""
    packed, tensors = pack(tree)
    text = torch.frombuffer(bytearray(json.dumps(packed).encode()), dtype=torch.uint8)
    size = torch.tensor([1, len(text)], dtype=torch.int64)
    add(size)
    if not int(size[0]):
        raise WorkerLost("the worker that sends the state is not in this generation")
    _send_bytes(text, add)
    for tensor in tensors:
        _send_bytes(bytes_of(tensor.detach().cpu().contiguous()), add)


def receive(add: Sum) -> Any:
    """Return the tree that another worker sends.

    Raises:
        WorkerLost: it is lost; whatever came until then is not returned.
        ConfigError: this is no tree.
    """
    size = torch.zeros(2, dtype=torch.int64)
    add(size)
    if not int(size[0]):
        raise WorkerLost("the worker that sends the state is lost")
    text = torch.zeros(int(size[1]), dtype=torch.uint8)
    _receive_bytes(text, add)
    try:
        tree, tensors = unpack(json.loads(text.numpy().tobytes()))
    except ValueError as error:
        raise ConfigError(f"the state that came from another worker cannot be read: {error}") from None
    for tensor in tensors:
        _receive_bytes(bytes_of(tensor), add)
    return tree


def _send_bytes(data: torch.Tensor, add: Sum) -> None:
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        add(torch.cat((torch.ones(1, dtype=torch.uint8), piece)))


def _receive_bytes(data: torch.Tensor, add: Sum) -> None:
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        message = torch.zeros(1 + len(piece), dtype=torch.uint8)
        add(message)
        if not int(message[0]):
            raise WorkerLost("the worker that sends the state is lost")
        piece.copy_(message[1:])
