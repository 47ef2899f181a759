"""The identity of a rank, and the settings that the protocol needs."""

from __future__ import annotations

from dataclasses import dataclass

from reduction.model import NOWHERE, NamedReducers, Place

from worker_plugin.core.flow.credit import TCP, PlaneTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of one rank; fixed for the communicator's life."""

    job: str
    #: Distinguishes the process groups of one job; "" is the group of all ranks.
    group: str = ""
    #: Random, 16 bytes, on rank 0. Empty on the other ranks, which learn it from the first configuration.
    instance: bytes
    nonce: bytes
    host: str
    rank: int
    world_size: int
    #: None: begin with the target's value, and let `Grid` choose.
    chunk_bytes: int | None
    #: None: up to the default grant of reducers, continuously adapted.
    credit_bytes: int | None
    target: PlaneTarget = TCP
    timeout_s: float
    stall_warn_s: float
    join_timeout_s: float
    close_timeout_s: float
    #: "reshard", "wait" or "raise"; rank 0's value counts.
    on_reducer_loss: str = "reshard"
    #: Whether rank 0 may start a reducer when none is left.
    may_fall_back: bool = False
    #: Whether pushes and results have checksums; rank 0's value counts.
    checksums: bool = False
    #: The DType in which floating-point tensors are pushed; 0 stands for their own.
    wire_dtype: int = 0
    #: Where this process runs.
    place: Place = NOWHERE
    #: See `Join`.
    life_port: int = 0
    #: Whether streams move to the data ports of reducers that have one.
    uses_data_ports: bool = False
    #: Number of processes that this rank represents: each contribution is the sum of theirs.
    local_size: int = 1
    #: Whether the job continues an ended job of its ranks. If so, a reducer that is absent now is not waited for before
    #: the first epoch; it takes part once it appears.
    goes_on: bool = False
    #: The reducers that this rank was given, if the ranks have no store to agree on them.
    named: NamedReducers | None = None
    #: See `Join.run`.
    run: str = ""
