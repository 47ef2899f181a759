"""Digests of tensors: 64-bit numbers that tell whether two tensors have the same bits.

The memory is read as 8-byte words, in rows. A word is multiplied by an odd number that depends on its position in the
row, a row's sum by one that depends on the row's position, all modulo 2**64. So a change within one word always changes
the digest, since odd numbers have an inverse modulo 2**64. Any other change goes unnoticed with a probability of about
2**-64, unless it was constructed deliberately.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from worker_plugin.tensors.encoding import flat_of

#: Words in a row.
ROW = 4096
#: Rows that are multiplied at a time: 1 MiB, which fits in caches.
BLOCK = 32


def digest(model: torch.nn.Module | Mapping[str, torch.Tensor]) -> str:
    """Return a digest of a model's state_dict, or of named tensors: 32 hexadecimal digits.

    It depends only on names, shapes, dtypes and bits, and not on devices, ranks or versions. So it tells whether
    two processes have the same weights, for example a trainer and a server of its model.

    Raises:
        TypeError: something is not a dense tensor.
    """
    tensors = model.state_dict() if isinstance(model, torch.nn.Module) else model
    names = sorted(tensors)
    found = hashlib.sha256()
    for name, number in zip(names, digests([tensors[name] for name in names]).tolist(), strict=True):
        found.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)} {number}\n".encode())
    return found.hexdigest()[:32]


def digests(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the digests of tensors, int64 on the CPU. Waits for GPUs.

    Raises:
        TypeError: one of them is not a dense tensor.
    """
    found = [_digest(tensor) for tensor in tensors]  # all GPUs start before the first is waited for
    return torch.tensor([int(one) for one in found], dtype=torch.int64)


@torch.no_grad()
def _digest(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise TypeError(
            f"a digest is of dense tensors, this is {getattr(tensor, 'layout', type(tensor).__name__)}"
        )
    octets = flat_of(tensor.detach().resolve_conj().resolve_neg().contiguous()).view(torch.uint8)
    if octets.storage_offset() % 8:
        octets = octets.clone()
    rest = octets.numel() % (8 * ROW)
    whole, last = octets[: octets.numel() - rest].view(torch.int64), octets[octets.numel() - rest :]
    last = torch.nn.functional.pad(last, (0, 8 * ROW - rest)).view(torch.int64)
    factors = _factors(ROW).to(tensor.device)
    sums = [(block.view(-1, ROW) * factors).sum(1) for block in (*torch.split(whole, BLOCK * ROW), last)]
    rows = torch.cat(sums)
    return (rows * _factors(len(rows)).to(tensor.device)).sum()


def _factors(count: int) -> torch.Tensor:
    """Return odd pseudorandom numbers, from the generator SplitMix64 (Steele et al., OOPSLA 2014)."""
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
    return torch.from_numpy(mixed.view(np.int64))
