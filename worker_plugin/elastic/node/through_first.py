"""A worker that is a node: its first rank gets the whole fold of all ranks, and gives them the result."""

from __future__ import annotations

from dataclasses import replace

import torch

from worker_plugin.hierarchy.exchange import Exchange, Share, Submission
from worker_plugin.hierarchy.local_group import LocalGroup


class ExchangeThroughFirst(Exchange):
    """An `Exchange` in which only the first rank sends and receives over the network."""

    def scatter(self, group: LocalGroup, submission: Submission) -> Share:
        """Do what `Exchange.scatter` does, and give the first rank all shards."""
        share, node, request = super().scatter(group, submission), self._node, submission.request
        assert share.outgoing is not None
        shard, most = share.outgoing.tensor, share.shards.most
        row, rows = most * shard.element_size(), 0 if node.local_rank else node.size
        mine, gathered = self._take(row, shard.device), self._take(rows * row, shard.device)
        mine.view(shard.dtype)[: shard.numel()].copy_(shard)
        group.all_to_all(
            gathered,
            mine,
            [row if rows else 0] * node.size,
            [0 if rank else row for rank in range(node.size)],
        )
        share.outgoing = None
        if rows:
            whole = torch.empty(request.tensor.numel(), dtype=shard.dtype, device=shard.device)
            share.shards.unpack(gathered.view(shard.dtype).view(rows, most), whole)
            share.outgoing = replace(request, tensor=whole)
        self._give(mine)
        self._give(gathered)
        return share

    def gather(self, group: LocalGroup, share: Share) -> torch.Tensor:
        """Return the result, which the first rank has, for `write`."""
        tensor = share.submission.request.tensor
        result = self._take(tensor.nbytes, tensor.device)
        if share.outgoing is not None:
            result.view(tensor.dtype).copy_(share.outgoing.tensor)
        group.broadcast(result)
        return result

    def _put(self, share: Share, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        flat.copy_(gathered)
