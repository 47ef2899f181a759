"""The communicators of an elastic job: one for each generation, and one for each donation of the state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from reduction.errors import (
    CollectiveTimeout,
    PeerLeft,
    StaleInstance,
    WorkerFailed,
    WorkerLost,
    WorkersMissing,
)
from reduction.model import DType, ReduceOp

from worker_plugin.client import Client
from worker_plugin.communicator import Request
from worker_plugin.config import PluginConfig
from worker_plugin.discovery import meeting_point
from worker_plugin.discovery.rank_group import RankGroup, ranks_text
from worker_plugin.elastic.membership.entries import Offer
from worker_plugin.elastic.membership.lineage import Generation, Worker
from worker_plugin.elastic.trees import Submit
from worker_plugin.tensors.encoding import ParameterSlice

#: Errors that end a generation but not the job: its remaining workers can continue.
LOSSES = (WorkerLost, PeerLeft, WorkerFailed, CollectiveTimeout, WorkersMissing, StaleInstance)
#: Distinguishes the job's own collectives from the user's.
_FINGERPRINT = 1


def request_for(tensor: torch.Tensor) -> Request:
    """Return the request to sum a tensor of bytes or of 64-bit integers."""
    dtype = DType.UINT8 if tensor.dtype is torch.uint8 else DType.INT64
    return Request(tensor, dtype, ReduceOp.SUM, _FINGERPRINT, [ParameterSlice(0, tensor.numel())])


def submit_to(client: Client) -> Submit:
    """Return a function that begins to sum a tensor over a communicator's workers."""
    return lambda tensor: client.submit(request_for(tensor))


def client_of(config: PluginConfig, own: Worker, generation: Generation, local_size: int) -> Client:
    """Return the communicator of a generation, whose workers have `local_size` processes each."""
    purpose = f"generation {generation.number} {generation.id[:8]}"
    goes_on = generation.number > 1
    return _client(config, own, generation.workers, purpose, None, local_size, goes_on=goes_on)


def donation_client_of(config: PluginConfig, own: Worker, offer: Offer) -> Client:
    """Return the communicator of a donation: the donor and its newcomers."""
    return _client(config, own, offer.workers, f"state for {offer.id[:8]}", "", goes_on=True)


def _client(
    config: PluginConfig,
    own: Worker,
    workers: Sequence[Worker],
    purpose: str,
    announced: str | None,
    local_size: int = 1,
    *,
    goes_on: bool,
) -> Client:
    ranks = tuple(worker.rank for worker in workers)
    group = RankGroup(workers.index(own), len(workers), ranks, f"{ranks_text(ranks)}, {purpose}")
    # Each worker looks up the reducers on its own. The workers may find different ones while a DNS name changes; only
    # the reducers that all of them reach take part.
    agree = partial(meeting_point.choose, config, {})
    return Client(config, group, agree, local_size=local_size, announced_ranks=announced, goes_on=goes_on)
