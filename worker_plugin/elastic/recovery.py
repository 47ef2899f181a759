"""How the workers of a new generation agree, before they continue, on which results stand.

A result that any worker holds stands, and all workers get its bytes. A collective whose result no worker
holds is reduced again, from the contributions of the remaining workers. All of this uses all-reduces
of the new generation, so its workers cannot disagree about it:

1. Each worker reports how far it has got.
2. Each worker reports which results it holds, from the first that any worker lacks to the last that
   any worker has.
3. For each result that some workers hold and others lack, the first worker that holds it sends it: the
   others add zeros to its bytes.

A worker that holds a result had everyone's contribution to it, so every worker here has issued it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from reduction.errors import LocalProtocolError

from worker_plugin.elastic.ledger import Entry, bytes_of

#: Sums a tensor of whole numbers over all workers of the generation, in place; blocks.
Sum: TypeAlias = Callable[[torch.Tensor], None]


def agree_on_results(
    entries: Mapping[int, Entry], bounds: tuple[int, int], index: int, count: int, add: Sum
) -> dict[int, torch.Tensor]:
    """Return the results that this worker lacks and another one holds, as bytes, by number.

    Args:
        entries: the collectives that this worker has issued and not forgotten, by number.
        bounds: the first collective without a result here, and one more than the last with a result.
        index: this worker's index in the generation.
        count: number of workers in the generation.
        add: sums over the generation.

    Raises:
        ReductionError: the generation has failed.
        LocalProtocolError: a result that some worker needs has been forgotten everywhere, which cannot happen.
    """
    table = torch.zeros(count, 2, dtype=torch.int64)
    table[index] = torch.tensor(bounds)
    add(table)
    start, stop = int(table[:, 0].min()), int(table[:, 1].max())
    if start >= stop:
        return {}
    held = torch.zeros(count, stop - start, dtype=torch.int64)
    for seq in range(start, stop):
        entry = entries.get(seq)  # this worker may not have issued it yet
        if entry is not None and entry.result is not None:
            held[index, seq - start] = 1
    add(held)
    found: dict[int, torch.Tensor] = {}
    for seq in range(start, stop):
        holders = held[:, seq - start]
        if not holders.any() and bool((table[:, 0] > seq).any()):
            # The workers that lack it would continue with the next one, and the others with this one.
            raise LocalProtocolError(
                f"collective {seq}: some workers lack its result, and the others have forgotten it: {table.tolist()}"
            )
        if not 0 < int(holders.sum()) < count:
            continue
        entry = entries[seq]
        payload = torch.zeros_like(bytes_of(entry.request.tensor))
        if index == int(holders.argmax()):
            assert entry.result is not None  # as this worker reported
            payload.copy_(entry.result)
        add(payload)
        if entry.result is None:
            found[seq] = payload
    return found
