"""A training's state as it is sent from one worker to others: tensors and JSON, no code.

It travels through all-reduces of whole numbers: the donor adds its bytes, the others add zeros. The first
byte of every message says whether the donor added anything. If the donor died it stays zero, and all
receivers see that.

A **tree** is what `state_dict` methods return: dictionaries, lists and tuples of tensors, numbers,
strings, booleans and None. `unpack` returns exactly what `pack` was given, except that subclasses of
dictionaries and of the simple types arrive as their base types.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from reduction.errors import ConfigError, WorkerLost

from worker_plugin.elastic.ledger import bytes_of
from worker_plugin.tensors.futures import Future

#: Begins to sum a tensor of whole numbers in place over the donor and the receivers.
Submit: TypeAlias = Callable[[torch.Tensor], Future]

#: Tensors travel in pieces of this size, so that neither side needs a copy of all of them. Small ones travel together.
PIECE_BYTES = 4 << 20
#: Maximum number of pieces in flight.
PIECES_IN_FLIGHT = 4
#: Maximum nesting depth of a tree, and maximum number of bits of a whole number.
DEPTH_MAX = 100
INT_BITS_MAX = 4096
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def pack(tree: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return a tree as JSON, and its tensors in the order in which the JSON refers to them.

    Raises:
        ConfigError: the tree contains something that cannot be sent; the message says what, and where.
    """
    tensors: list[torch.Tensor] = []

    def walk(value: Any, path: tuple[Any, ...]) -> Any:
        if len(path) > DEPTH_MAX:
            raise ConfigError(f"the state at {_dotted(path[:3])} is nested more than {DEPTH_MAX} deep")
        if isinstance(value, torch.Tensor) and _is_plain(value):
            tensors.append(value)
            return {"tensor": [str(value.dtype), list(value.shape)]}
        if isinstance(value, dict):
            return {
                "dict": [
                    [walk(key, (*path, "a key")), walk(item, (*path, key))] for key, item in value.items()
                ]
            }
        if type(value) in (list, tuple):
            return {type(value).__name__: [walk(item, (*path, index)) for index, item in enumerate(value)]}
        if isinstance(value, int) and value.bit_length() > INT_BITS_MAX:
            raise ConfigError(
                f"the state has a number of {value.bit_length()} bits at {_dotted(path)}: at most {INT_BITS_MAX} can "
                f"be sent to another worker"
            )
        if value is None or isinstance(value, (int, float, str)):
            return value
        raise ConfigError(
            f"the state has a {type(value).__name__} ({value!r:.80}) at {_dotted(path)}: only dense tensors, numbers, "
            f"strings, lists, tuples and dictionaries of them can be sent to another worker; convert it"
        )

    return walk(tree, ()), tensors


def _dotted(path: Sequence[Any]) -> str:
    return ".".join(map(str, path)) or "its top"


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is fully described by its dtype, its shape and its bytes."""
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of any tensor that `pack` accepts, on the CPU; they may share its memory."""
    return bytes_of(tensor.detach().cpu().resolve_conj().resolve_neg().contiguous())


def join(parts: Sequence[tuple[Any, list[torch.Tensor]]]) -> tuple[Any, list[torch.Tensor]]:
    """Return the packed list of some trees, each given packed."""
    return {"list": [packed for packed, _ in parts]}, [tensor for _, tensors in parts for tensor in tensors]


def unpack(packed: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return the tree that `pack` packed, with new tensors, and these tensors in order.

    Raises:
        ConfigError: `pack` cannot have returned this.
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


def digest(tree: Any) -> str:
    """Return a string that only trees with the same bits have. This takes half a second per gigabyte."""
    packed, tensors = pack(tree)
    found = hashlib.sha256(json.dumps(packed).encode())
    for tensor in tensors:
        found.update(flat_bytes(tensor).numpy().data)
    return found.hexdigest()


def send(tree: Any, submit: Submit) -> None:
    """Send a tree to the workers that `receive` it.

    Raises:
        WorkerLost: this worker's bytes are not in what the others received.
        ConfigError: the tree contains something that cannot be sent.
    """
    send_packed(*pack(tree), submit)


def send_packed(packed: Any, tensors: Sequence[torch.Tensor], submit: Submit) -> None:
    """Send what `pack` returned; see `send`."""
    text = torch.frombuffer(bytearray(json.dumps(packed).encode()), dtype=torch.uint8)
    size = torch.tensor([1, len(text)], dtype=torch.int64)
    submit(size).wait()
    if not int(size[0]):
        raise WorkerLost("the worker that sends the state is not in this generation")
    for parts in ([text], [flat_bytes(tensor) for tensor in tensors]):
        window: deque[Future] = deque()
        for piece in _pieces(parts):
            window.append(submit(torch.cat((torch.ones(1, dtype=torch.uint8), *piece))))
            if len(window) == PIECES_IN_FLIGHT:
                window.popleft().wait()
        for future in window:
            future.wait()


def receive(submit: Submit) -> Any:
    """Return the tree that another worker sends.

    Raises:
        WorkerLost: the sender is lost; nothing received so far is returned. All receivers see this at the same piece,
            and have issued the same number of collectives.
        ConfigError: the data is not a tree.
    """
    size = torch.zeros(2, dtype=torch.int64)
    submit(size).wait()
    if not int(size[0]):
        raise WorkerLost("the worker that sends the state is lost")
    text = torch.zeros(int(size[1]), dtype=torch.uint8)
    _receive_bytes([text], submit)
    try:
        tree, tensors = unpack(json.loads(text.numpy().tobytes()))
    except ValueError as error:
        raise ConfigError(f"the state that came from another worker cannot be read: {error}") from None
    _receive_bytes([bytes_of(tensor) for tensor in tensors], submit)
    return tree


def _receive_bytes(parts: Sequence[torch.Tensor], submit: Submit) -> None:
    window: deque[tuple[Future, torch.Tensor, list[torch.Tensor]]] = deque()

    def take() -> bool:
        """Take the oldest piece; return whether the donor contributed to it."""
        future, message, piece = window.popleft()
        future.wait()
        start = 1
        for part in piece:
            part.copy_(message[start : start + len(part)])
            start += len(part)
        return bool(message[0])

    has_all = True
    for piece in _pieces(parts):
        message = torch.zeros(1 + sum(map(len, piece)), dtype=torch.uint8)
        window.append((submit(message), message, piece))
        if len(window) == PIECES_IN_FLIGHT and not take():
            has_all = False
            break
    while window:
        has_all = take() and has_all
    if not has_all:
        raise WorkerLost("the worker that sends the state is lost")


def _pieces(parts: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Cut flat tensors into slices, and yield them in groups of PIECE_BYTES; the last one may be shorter."""
    piece: list[torch.Tensor] = []
    room = PIECE_BYTES
    for part in parts:
        start = 0
        while start < len(part):
            piece.append(part[start : start + room])
            start += len(piece[-1])
            room -= len(piece[-1])
            if not room:
                yield piece
                piece, room = [], PIECE_BYTES
    if piece:
        yield piece
