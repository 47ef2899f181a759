"""`ReductionState`, the object that users create and then pass to DDP or call directly."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Unpack

import torch
import torch.distributed as dist
from reduction.errors import ClosedError, ConfigError, ReductionError, ResourceExhausted, WorkerFailed
from reduction.layout import fingerprint
from reduction.limits import NUMEL_MAX
from reduction.model import DType, ReduceOp
from reduction.shortage import shortage
from reduction.timeline.record import Record
from torch._C._distributed_c10d import GradBucket
from torch.autograd.graph import increment_version
from torch.autograd.profiler import record_function
from torch.distributed.distributed_c10d import ProcessGroup, Store
from torch.nn.parallel import DistributedDataParallel

from worker_plugin.client import Client
from worker_plugin.communicator import Communicator, Request
from worker_plugin.config import AllSettings, PluginConfig, Settings, build, check_files
from worker_plugin.ddp import Modules, modules_of
from worker_plugin.discovery.rank_group import RankGroup, find_group, group_of
from worker_plugin.discovery.rendezvous import StoreRendezvous
from worker_plugin.elastic.making import make_communicator
from worker_plugin.elastic.node.meeting import local_ranks
from worker_plugin.elastic.steps import OnChange
from worker_plugin.elastic.used_parameters import check_alone
from worker_plugin.hierarchy.rail import Rails
from worker_plugin.lifetime import Lifetime
from worker_plugin.process import log_setup
from worker_plugin.riders.methods import Riders
from worker_plugin.settings import rows
from worker_plugin.tensors.encoding import ParameterSlice
from worker_plugin.tensors.feedback import ErrorFeedback, Origin
from worker_plugin.tensors.futures import Future, outcome_after
from worker_plugin.tensors.supported import admit, check_dense
from worker_plugin.timeline import recorder
from worker_plugin.timeline.stats import Numbers

log = logging.getLogger(__name__)

_SHAPE, _BUCKET = 1, 2
#: Loss scales that leave room for residuals in float32.
LOSS_SCALE_MIN, LOSS_SCALE_MAX = 2.0**-64, 2.0**64
#: The name of a collective in torch.profiler, formed like gloo:all_reduce.
PROFILED_AS = "reduction:all_reduce"


class ReductionState(Riders):
    """One rank's communicator. Constructing it opens nothing; the first collective connects.

    Args:
        **settings: The fields of `PluginConfig` in worker_plugin/config.py, including `reducers`.
        process_group: The ranks that reduce together; they meet through its store. None means the
            default group, if there is one. States of different groups never meet, even if their
            jobs have the same name.
        store: A `torch.distributed` store through which the ranks meet if they do not form a
            process group; `rank` and `world_size` number them. No other ranks may use the same
            store, so pass a PrefixStore.

    Every argument except the process group and the store can also be set through an environment
    variable REDUCTION_<NAME>; an explicit argument takes precedence. A number may be a string, as in
    `rank=os.environ["RANK"]`. An empty variable counts as not set, but `REDUCTION_REDUCERS=` is an
    error.

    Raises:
        ConfigError: a setting has a wrong value or type, or names a file that does not exist.
    """

    def __init__(
        self,
        reducers: Sequence[str] | str | None = None,
        *,
        process_group: ProcessGroup | None = None,
        store: Store | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        log_setup.prepare()
        self.config: PluginConfig = build({"reducers": reducers, **settings})
        check_files(self.config)
        if process_group is not None and not isinstance(process_group, ProcessGroup):
            raise ConfigError(
                f"process_group is {process_group!r}: this rank is not a member of it, or it is not a process group"
            )
        if store is not None and not isinstance(store, Store):
            raise ConfigError(f"store is {store!r}: pass a store of torch.distributed, such as a TCPStore")
        #: The ranks, if the caller passed their store.
        self._given: RankGroup | None = None
        if process_group is not None or store is not None:
            group = find_group(self.config.rank, self.config.world_size, process_group, store)
            self._given = None if store is None else group
        if self.config.elastic and (process_group is not None or store is not None):
            raise ConfigError("an elastic job needs no process group and no store: leave them out")
        self._process_group = process_group
        self._on_change: list[OnChange] = []
        self._reset()
        _states.add(self)

    @classmethod
    def of_ranks(cls, ranks: RankGroup, **settings: Unpack[AllSettings]) -> ReductionState:
        """Return a state for ranks with their own store; errors and logs refer to them by their label."""
        settings["rank"], settings["world_size"] = ranks.rank, ranks.size
        state = cls(store=ranks.store, **settings)
        state._given = ranks
        return state

    def _reset(self) -> None:
        self._lifetime = Lifetime()
        #: Looked up on first use, because torch.distributed may be initialised after the state is
        #: created.
        self._group: RankGroup | None = None
        self._modules = Modules()
        self._feedback = ErrorFeedback()
        self._numbers = Numbers()
        self._reset_elastic()
        self._reset_riders()

    # ---- collectives ----

    def all_reduce(
        self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType | dist.ReduceOp = dist.ReduceOp.SUM
    ) -> Future:
        """Reduce a contiguous tensor over all ranks, in place; return immediately.

        All ranks must issue the same collectives in the same order. The tensor is not touched until
        the future completes and must not be changed until then; it then holds the result, and is
        the future's value. After an error its content is undefined. SUM, MIN, MAX and PRODUCT work for
        all known dtypes, AVG for floating point. `wire_dtype` applies to SUM and AVG, without error
        feedback. Like Gloo, it leaves the tensor's autograd version counter unchanged, except for AVG.
        Callbacks of the future run on the thread that completes all futures, so they must not wait
        for another future.

        Raises:
            ConfigError: the tensor or op cannot be reduced, or the job is elastic and needs `sync` first;
                nothing was issued.
            ClosedError: after `close`.
            ReductionError: the communicator has failed earlier; the same error is raised again.
            WorkerFailed: this rank could not issue the collective, for example because it ran out of
                memory; the communicator has failed on all ranks.
        """
        return self.all_reduce_of(None, tensor, op)

    def all_reduce_of(
        self, origin: Origin | None, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType | dist.ReduceOp
    ) -> Future:
        """Reduce as `all_reduce` does, with error feedback if the origin of the gradients is known."""
        if not isinstance(tensor, torch.Tensor):
            raise ConfigError(f"all_reduce got a {type(tensor).__name__}: pass a tensor")
        try:
            return self._submit(tensor, op, (_SHAPE, *tensor.shape), origin)
        except ReductionError:
            raise
        except Exception as error:  # the other ranks have issued this collective
            raise self.fail(error) from error

    def connect(self) -> None:
        """Connect to the other ranks and the reducers now, and return when all have joined; optional.

        Without it the first collective connects in the background, and a wrong address is found in
        the first backward pass, after the data was loaded. All ranks call it; a rank that does not is
        waited for until its first collective. Afterwards the first collective does not wait for ranks to join.
        Idempotent; call it again after `restart`. In an elastic job `sync` does it.

        It blocks the calling thread, which may be any thread except the one that runs callbacks of futures.
        `close` in another thread or in a signal handler ends it with ClosedError.

        Raises:
            ConfigError: a setting is wrong, or contradicts another rank's.
            ClosedError: after `close`.
            ReducerUnavailable: a reducer could not be reached within `join_timeout_s`.
            WorkersMissing: a rank did not join within `timeout_s`.
            ReductionError: any other error that ended the communicator; the same error as `error`.
        """
        self._connected().connect()

    def reduce_bucket(self, bucket: GradBucket) -> Future:
        """Average a DDP bucket over all ranks. For the hook, which passes whatever this raises to `fail`."""
        parameters = bucket.parameters()
        sizes = (parameter.numel() for parameter in parameters)
        owner = self._modules.owner(parameters[0])
        if not isinstance(owner, DistributedDataParallel):
            for module in (modules := modules_of(parameters[0], self)):
                self.check_module(module)
            owner = modules[-1]
        check_dense(bucket.buffer())
        self._before_bucket(owner, bucket)
        origin = Origin(owner, bucket.index(), parameters)
        future = self._submit(bucket.buffer(), dist.ReduceOp.AVG, (_BUCKET, bucket.index(), *sizes), origin)
        self._after_bucket(owner, bucket, future)
        if (kept := self._recorder) is not None:
            kept.exposed = self._modules.exposed_s
            kept.totals.steps += bucket.is_last()
        return future

    def fail(self, error: Exception) -> ReductionError:
        """End the communicator on all ranks, because this rank cannot take part in a step; any thread.

        Later collectives raise the same error, and so do the other ranks', as WorkerFailed if its type is
        not one they know. Nothing happens if the communicator has already ended.

        Returns:
            The error. A foreign error becomes ResourceExhausted if this process has run out of a resource,
            otherwise WorkerFailed.
        """
        failure = _failure_of(error)
        if isinstance(failure, ClosedError):
            return failure
        self._lifetime.fail(failure, self._make)
        return failure

    def check_module(self, module: DistributedDataParallel) -> None:
        """Add a DDP module whose gradients this state will average.

        Raises:
            ConfigError: the module averages over different ranks than this state.
        """
        if self.config.elastic:
            ranks = local_ranks(self.config)
            check_alone(module, 1 if ranks is None else ranks.size)
            self._modules.add(module)
            self._used.watch(module)
        else:
            self._group = self._modules.check(module, self._ranks())

    def add_module(self, module: torch.nn.Module) -> None:
        """Add a module whose gradients `all_reduce_of` will get; add a nested module after its outer one."""
        self._modules.add(module)

    def _submit(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp.RedOpType | dist.ReduceOp,
        layout: tuple[int, ...],
        origin: Origin | None,
    ) -> Future:
        dtype, reduce_op = admit(tensor, op)
        if tensor.numel() > NUMEL_MAX:
            raise ConfigError(f"a tensor of {tensor.numel()} elements is too large, {NUMEL_MAX} is the limit")
        communicator, slices, step = self._connected(), [ParameterSlice(0, tensor.numel())], None
        if origin is not None and self._has_residuals(dtype, reduce_op):
            step = self._feedback.step_of(origin.module, origin.index)
            slices = self._feedback.slices(step, origin.parameters)
        if reduce_op is ReduceOp.AVG:  # as Gloo does, which divides the sum in place
            increment_version(tensor)
        future = self._issue(communicator, Request(tensor, dtype, reduce_op, fingerprint(layout), slices))
        return future if step is None else step.watch(future, tensor)

    def _issue(self, communicator: Communicator, request: Request) -> Future:
        if not torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            return communicator.submit(request)
        with record_function(PROFILED_AS) as span:
            future = communicator.submit(request)
            # The event ends with the result, on the thread that delivers it. The caller must not get the result
            # earlier: it could stop the profiler in between, and torch would crash (2.13).
            return outcome_after(span._call_end_callbacks_on_future(future), future, request.tensor)

    def _has_residuals(self, dtype: DType, op: ReduceOp) -> bool:
        """Whether what a collective's encoding leaves out is added to the next collective of the same parameters."""
        wire = self.config.wire
        return wire is not None and wire.block > 1 and wire.applies_to(dtype, op)

    def discard_step(self, *models: torch.nn.Module) -> None:
        """Make error feedback forget the last backward pass, because its gradients are not used.

        Call it on all ranks, wherever the script skips `optimizer.step()`, before the next backward
        pass. The residuals of a lossy `wire_dtype` return to their values from before that pass, and the
        next pass runs as if that one had never happened. It is not needed when an averaged gradient
        contains an Inf or NaN, because all ranks detect that on their own. It does nothing without a
        lossy `wire_dtype`, or when called a second time.

        A step is what DDP averages in one backward pass of one module. If several are averaged
        before one `optimizer.step()`, only the last can be discarded, so accumulate under `no_sync`.

        Args:
            *models: the modules whose gradients are not used, with or without DDP around them; may
                be left out if this state averages the gradients of only one module.

        Raises:
            ConfigError: the state averages for several modules and none is given, or it does not
                average for a given module.
        """
        owners: dict[torch.nn.Module, None] = {}
        for model in models:
            found = [self._modules.owner(parameter) for parameter in model.parameters()]
            known = {owner: None for owner in found if owner is not None}
            if not known:
                raise ConfigError(
                    f"this state averages no gradients of the {type(model).__name__}: pass a module whose gradients "
                    f"it does, as in state.discard_step(ddp_model)"
                )
            owners |= known
        self._feedback.discard(list(owners))

    def set_loss_scale(self, scale: float) -> None:
        """Set the factor by which the loss is multiplied, such as `scaler.get_scale()`, before the backward pass.

        What a lossy `wire_dtype` has left out of gradients is then added to later gradients in their scale.
        If the factor is a power of two, as GradScaler's are, this is exact to the bit. It is 1 until this is
        called. Without it, residuals keep the scale in which they were left out.

        Args:
            scale: positive and finite in float32; the same on all ranks.

        Raises:
            ConfigError: the scale is not such a number, or something was left out at an unknown scale before the
                first call. Call it before the first backward pass, or never.
        """
        if not isinstance(scale, (int, float)) or not LOSS_SCALE_MIN <= scale <= LOSS_SCALE_MAX:
            raise ConfigError(
                f"the loss scale is {scale!r}, but must be {LOSS_SCALE_MIN:g} to {LOSS_SCALE_MAX:g}: pass what the "
                f"loss is multiplied by, such as scaler.get_scale()"
            )
        self._feedback.set_loss_scale(scale)

    def state_dict(self) -> dict[str, Any]:
        """Return what a lossy `wire_dtype` has left out so far on this rank, for this rank's checkpoint.

        Call it between steps, when no collective is in flight, and after `discard_step`. The residuals are divided
        by the loss scale. They are empty if nothing was ever left out.
        """
        return self._feedback.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` returned on the same rank; before the first backward pass.

        Raises:
            ConfigError: `state` is not such a dictionary, or the call comes too late.
        """
        self._feedback.load_state_dict(state)

    @contextlib.contextmanager
    def trace(self, directory: str | os.PathLike[str]) -> Iterator[None]:
        """Record when each collective issued inside the block was pushed, summed and delivered.

        Each rank writes its own file `JOB-rankN.json` at the end of the block; wait for the last collective
        inside the block. `reducer trace DIRECTORY` reads the files of all ranks, shows where the time went, and
        writes a file for Perfetto. At most the latest 65536 collectives of each rank are recorded. In
        hierarchical mode a rank's record is that of its rail.

        Raises:
            ReductionError: the communicator has failed, or was closed.
            OSError: the file cannot be written.
        """
        communicator = self._connected()
        if communicator.recorder is not None:
            communicator.recorder.keep_many()
        begin = time.monotonic()
        try:
            yield
        finally:
            if communicator.recorder is not None:
                error = communicator.error
                record = communicator.recorder.record("" if error is None else str(error), begin)
                recorder.write(record, directory)

    def record(self) -> Record | None:
        """Return the progress of the latest 1024 collectives: the same record that `trace` writes, at any time.

        None before the first collective, and in a forked child. May be called from any thread.
        """
        if (kept := self._recorder) is None:
            return None
        error = self.error
        return kept.record("" if error is None else str(error))

    def stats(self) -> dict[str, float]:
        """Return statistics of this rank's collectives for the user's own logger; cheap, callable from any thread.

        Before the first collective, and in a forked process, all of them are 0. In
        hierarchical mode they are those of this rank's rail, which carries 1/`local_size` of every
        tensor between the nodes; copies within the node do not count.

        These count from the start of the communicator, so until `restart`, and in an elastic job until the next
        change of its workers:

        - `rank`, `world_size`: this rank's number, -1 if not known yet; number of ranks, 0 if not known yet.
        - `local_size`: ranks of a node that reduce among themselves first, 1 without `local_group`.
        - `skipped_steps`, `non_finite_steps`: among the steps that `report_steps` covers, since it was called.
          `late_s`: in the latest of them, how much later than the first rank this rank reached its last bucket.
        - `steps`: backward passes of DDP. `collectives`: those that have completed.
          `in_flight`: those that have been issued but not completed.
        - `bytes_pushed`, `bytes_pulled`: payload sent and received. `bytes_repushed`: bytes, counted as in the
          tensors, that were sent again after a reducer was lost or joined.
        - `epochs`: the number of the set of reducers. `resharded`: how often its members or shares
          changed. `reducers`: processes in it.
        - `retransmits`: packets that TCP sent again, if the kernel reports it; at most a second old.
        - `comm_s`: seconds in which at least one collective was in flight.

        These cover the latest 128 collectives, in seconds per *round*, a time in which at least one of them was
        in flight; with DDP there is usually one per step. They are recomputed only about once a second,
        so polling continuously costs 0.2 %:

        - `round_s`, and its parts `ideal_s` + `copy_s` + `credit_s` + `ranks_s` + `transfer_s` +
          `copy_back_s`, which docs/operating.md explains.
        - `algbw`: bytes of tensors per second. `efficiency`: `ideal_s` / `round_s`.
        - `rtt_s`: the shortest time from the first push of a collective to its first result.

        `exposed_s`, if DDP has measured it: how long the latest measured step waited for
        collectives after its own computations. DDP measures only a few steps unless asked for more.
        """
        communicator, kept = self._communicator, self._recorder
        config, group = self.config, self._group
        rank, size = (config.rank, config.world_size) if group is None else (group.rank, group.size)
        found: dict[str, float] = {
            "rank": -1 if rank is None else rank,
            "world_size": size or 0,
            "local_size": 1 if communicator is None else communicator.local_size,
            **self._numbers.read(kept or recorder.Recorder(None), config.link_mbit),
            **self._reported(),
        }
        if (exposed := self._modules.exposed_s()) is not None:
            found["exposed_s"] = exposed
        return found

    @property
    def _recorder(self) -> recorder.Recorder | None:
        communicator = self._communicator
        return None if communicator is None else communicator.recorder

    # ---- life ----

    @property
    def error(self) -> ReductionError | None:
        """The error that ended this communicator, and that every later collective raises.

        None while nothing has failed. Also None after `close` if nothing had failed before, because
        ClosedError is what the user asked for. An error from before `close` stays here until `restart`.
        """
        return self._lifetime.error

    def close(self) -> None:
        """Leave in good order. Idempotent; never raises because other ranks are absent; also runs at exit.

        First it waits until all ranks have called `should_stop` as often as this one. If nothing has failed, it then
        waits at most `close_timeout_s` until all other ranks have all their results too; after an error it does not.
        """
        self._stopping.settle()
        self._lifetime.close()

    def abort(self) -> None:
        """End the communicator now, on this rank and on all others, without waiting; any thread.

        Collectives in flight fail with ClosedError on this rank, and on the others with WorkerFailed, which
        names this rank. Their tensors are no longer written once `abort` has returned and the futures
        are done. Ranks that have not met yet cannot be notified. If this rank has issued a collective, it keeps
        trying in the background for `close_timeout_s`; after that the others wait for it as for any rank that
        has not joined. Idempotent; does nothing after `close`.
        """
        self._lifetime.abort()

    def restart(self) -> None:
        """Reset the state after an error, so that the next collective makes a new communicator.

        DDP cannot replace its hook, so this is how the same DDP object continues. All ranks
        must call it, and restore model, optimizer and `load_state_dict` from one checkpoint, because after
        an error they may differ by the last collective. Do not call it while another thread uses the state.
        An open communicator is closed first. Calls of `watch`, `report_steps` and `on_change` stay in effect.
        """
        self.close()
        self._reset()

    def __repr__(self) -> str:
        """Return the job, the rank, and whether the state is new, open, failed or closed; opens nothing."""
        config, group = self.config, self._group
        rank, size = (config.rank, config.world_size) if group is None else (group.rank, group.size)
        where = "rank ?" if rank is None else f"rank {rank}"
        communicator = self._communicator
        job = config.job if communicator is None else communicator.job or config.job
        of = "?" if size is None else size
        named = "no job name yet" if job is None else f"job {job!r}"
        return f"<ReductionState: {named}, {where} of {of}, {self._lifetime}>"

    def __enter__(self) -> ReductionState:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._given is not None:
            raise ConfigError("a state with a store cannot be pickled: make it in the process that uses it")
        if self._process_group is not None and group_of(self._process_group).label:
            raise ConfigError(
                "a state of a process group other than the default one cannot be pickled, because process "
                "groups cannot: make it in the process that uses it"
            )
        return {"config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        log_setup.prepare()
        self.config = state["config"]
        self._process_group = None
        self._given = None
        self._on_change = []
        self._reset()
        _states.add(self)

    def _connected(self, model: str = "") -> Communicator:
        return self._lifetime.open(partial(self._make, model))

    @property
    def _communicator(self) -> Communicator | None:
        return self._lifetime.communicator

    def _ranks(self) -> RankGroup:
        if self._group is None:
            config, given = self.config, self._given
            self._group = given or find_group(config.rank, config.world_size, self._process_group)
        return self._group

    def _make(self, model: str = "") -> Communicator:
        if self.config.elastic and not model:
            # A newcomer is not part of the job yet, and the others could not compare the models.
            raise ConfigError(
                "this worker has not begun to take part in the elastic job: call state.sync(model, optimizer) before "
                "its first collective"
            )
        try:
            return make_communicator(self.config, model) if self.config.elastic else self._make_fixed()
        except (RuntimeError, OSError, MemoryError) as error:
            if shortage(error):
                raise _failure_of(error) from error
            raise

    def _make_fixed(self) -> Communicator:
        ranks, local_group = self._ranks(), self.config.local_group
        rendezvous = StoreRendezvous(self.config, ranks.store, ranks.size, ranks.label)
        if local_group in (None, 1) or ranks.size == 1 or (local_group == "auto" and ranks.store is None):
            own = self.config, ranks.rank, ranks.size
            return Client(
                self.config, ranks, partial(rendezvous.agree, *own), partial(rendezvous.fall_back, *own)
            )
        if ranks.store is None:
            raise ConfigError(
                f"local_group={local_group} needs a way to meet the other ranks of the node: initialise "
                f"torch.distributed, with this rank {ranks.rank} of {ranks.size}"
            )
        return Rails(self.config, ranks, rendezvous)


def _failure_of(error: Exception) -> ReductionError:
    """Return the error that ends the communicator."""
    if isinstance(error, ReductionError):
        return error
    text = f"{type(error).__name__}: {error}"
    reason = shortage(error)
    failure = ResourceExhausted(f"{text}; {reason}") if reason else WorkerFailed(text)
    failure.__cause__ = error
    return failure


#: The states of this process.
_states: weakref.WeakSet[ReductionState] = weakref.WeakSet()
#: The attributes of states from before this process was forked. Dropping a lifetime would leave the job on the parent's
#: behalf, and GPU memory cannot be freed here.
_inherited: list[object] = []


def _forget() -> None:
    """Reset all states, because their communicators belong to the process that this one was forked from."""
    for state in list(_states):
        _inherited.append(vars(state).copy())
        state._reset()


os.register_at_fork(after_in_child=_forget)

ReductionState.__doc__ = rows.document(ReductionState.__doc__, rows.rows(PluginConfig))
