"""Who a rank is, and the settings that the protocol needs."""

from __future__ import annotations

from dataclasses import dataclass

from reduction.model import NOWHERE, NamedReducers, Place

from worker_plugin.core.flow.credit import TCP, PlaneTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Of one rank; fixed for the communicator's life."""

    job: str
    #: Tells the process groups of one job apart; "" is the group of all ranks.
    group: str = ""
    #: Random, 16 bytes, on rank 0. Empty on the others, which learn it from the first
    #: configuration.
    instance: bytes
    nonce: bytes
    host: str
    rank: int
    world_size: int
    #: None: begin with the target's, and let `Grid` choose.
    chunk_bytes: int | None
    #: None: up to what reducers grant by default, adapted all the time.
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
    #: How many processes this rank stands for: each contribution is the sum of theirs.
    local_size: int = 1
    #: Whether the job goes on where another job of its ranks has ended. Then a reducer that is not there
    #: now is not waited for before the first epoch; it takes part when it comes.
    goes_on: bool = False
    #: The reducers that this rank was told of, if the ranks have no store to agree on them.
    named: NamedReducers | None = None
    #: See `Join.run`.
    run: str = ""
