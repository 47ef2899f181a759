"""What a state offers that rides on the sums."""

from __future__ import annotations

import contextlib
import weakref
from abc import abstractmethod

import torch
import torch.distributed as dist
from reduction.errors import ConfigError, ReductionError, ReplicasDiffer
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from worker_plugin.ddp import Modules
from worker_plugin.discovery.rank_group import RankGroup
from worker_plugin.elastic.methods import ElasticMethods
from worker_plugin.elastic.node.meeting import local_ranks
from worker_plugin.riders.drift import Watch
from worker_plugin.riders.reports import Reports, StepReport
from worker_plugin.riders.stopping import Stopping
from worker_plugin.riders.weighing import Weighing
from worker_plugin.tensors.futures import Future


class Riders(ElasticMethods):
    """The methods of a `ReductionState` that have the ranks tell each other something beside their gradients."""

    _modules: Modules

    #: Models of which all ranks are to have the same weights.
    _watches: tuple[Watch, ...] = ()
    #: The DDP modules whose backward passes are reported, with their reports.
    _reports: tuple[tuple[weakref.ref[DistributedDataParallel], Reports], ...] = ()

    @abstractmethod
    def all_reduce(
        self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType | dist.ReduceOp = dist.ReduceOp.SUM
    ) -> Future:
        """See `ReductionState`."""

    @abstractmethod
    def check_module(self, module: DistributedDataParallel) -> None:
        """See `ReductionState`."""

    @property
    @abstractmethod
    def error(self) -> ReductionError | None:
        """See `ReductionState`."""

    @abstractmethod
    def _ranks(self) -> RankGroup: ...

    def _reset_riders(self) -> None:
        # Workers of an elastic job that have just come have no answer of the step before.
        self._stopping = Stopping(is_at_once=self.config.elastic, notices=self.config.notices)
        self._weighing = Weighing()
        for watch in self._watches:
            watch.forget()
        for _, reports in self._reports:
            reports.forget()

    def _before_bucket(self, owner: DistributedDataParallel, bucket: GradBucket) -> None:
        """Do what comes before DDP's buckets are summed; they hold this rank's gradients."""
        is_joining = owner._join_config.enable
        if bucket.index() == 0 and not is_joining:
            for watch in self._watches:
                if self._modules.owner(watch.first) is owner:
                    self._compare(watch)
        for module, reports in self._reports:
            if module() is owner:
                reports.before_bucket(bucket)
        if self._weighing.is_on:
            if bucket.index() == 0:
                self._weighing.begin(self.all_reduce, len(self._places()[0]), is_joining=is_joining)
            self._weighing.apply(bucket.buffer())

    def _compare(self, watch: Watch) -> None:
        try:
            watch.step()
        except ReplicasDiffer:
            # Every rank finds this in its own table. The first one to raise it ends the communicator, so all
            # must have the results of the step before by then: one more sum, which none has before all are here.
            with contextlib.suppress(ReductionError):
                self.all_reduce(torch.zeros(1)).wait()
            raise

    def _after_bucket(self, owner: DistributedDataParallel, bucket: GradBucket, future: Future) -> None:
        """Do what comes after a bucket's sum has begun."""
        for module, reports in self._reports:
            if module() is owner:
                reports.after_bucket(bucket, future)

    def should_stop(self) -> bool:
        """Return whether all ranks are to stop after this step, because one of them got SIGTERM.

        Or its cloud has said that it takes the machine away, with the setting `notices`. Call it once per step on every
        rank. It becomes true on all ranks in the same step, in an elastic job in the step of the signal and otherwise
        in the next one, so that they write the same checkpoint. The first call takes SIGTERM over, so that it no longer
        ends the process; a Python handler that was there is called as well. It costs a sum of one number, which is not
        waited for unless the job is elastic.

        Raises:
            ConfigError: the first call is not on the main thread.
            ReductionError: what has ended the communicator.
        """
        return self._stopping.ask(self.all_reduce)

    def watch(
        self, model: torch.nn.Module, every: int = 100, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Compare the weights of all ranks every N steps, where a step is a backward pass in which DDP averages.

        Call it once on all ranks, with the same arguments, before the first backward pass or after the same one. In
        every N-th backward pass a digest of 64 bits per parameter goes into a sum; the next pass looks at it. A
        comparison reads all weights once. Within DDP's `join` nothing is compared.

        Args:
            model: the DDP module, or the one inside; see `Watch` in worker_plugin/riders/drift.py.
            every: N.
            optimizer: its tensors, such as momentum, are compared as well.

        Raises:
            ConfigError: an argument is wrong.

        Where weights differ, a backward pass ends with ReplicasDiffer, in the same step on all ranks. It names the
        ranks that differ from most others, and the first tensor. The communicator has failed then.
        """
        own = weakref.proxy(self)  # a state that nobody else keeps is dropped at once
        watch = Watch(model, every, optimizer, lambda table: own.all_reduce(table), lambda: own._places())
        self._watches = (*self._watches, watch)
        if self.config.elastic:
            # Newcomers count from the step in which they come.
            self.on_change(lambda before, after: watch.count_again())

    def weigh(self, samples: float) -> None:
        """Let gradients count by samples: each rank's by its own, instead of all alike.

        Call it once per step on every rank, before the backward pass that DDP averages; best before the forward pass,
        which then hides the round trip. DDP's average becomes the sum of gradient times samples over all ranks, divided
        by the samples of all. That is the gradient of the mean loss over all samples, if each rank's loss is the mean
        over its own. It stays so until the next call. A rank with an empty batch passes 0, and a loss such as
        `0.0 * model(...).sum()`. Within DDP's `join` ranks without data weigh nothing by themselves.

        In an elastic job, the step in which a worker is lost has a gradient that is off by one factor for all: that of
        the mean samples of those who are left to those of all.

        Args:
            samples: of this rank: their number, or that of tokens, or any other weight from 0 to 2**53.

        Raises:
            ConfigError: it is not such a number. Where it is 0 on all ranks, the backward pass ends with ConfigError.
            ReductionError: what has ended the communicator.
        """
        self._weighing.weigh(samples, self.all_reduce)

    # ---- reports of steps ----

    def report_steps(self, ddp_model: DistributedDataParallel) -> None:
        """Have the ranks tell each other, in each backward pass, who skips it, is late, or has Inf or NaN gradients.

        Call it once on all ranks, before the first forward pass. From then on `last_step` has the report of the latest
        pass, and `skip_step` may be called. A rank whose gradients become Inf or NaN is named in the log of rank 0
        as well, with the parameter. It reads all gradients once, and costs one small sum per step. The next forward
        pass begins by waiting for that sum, so on a GPU no earlier than when the backward pass is done.

        Args:
            ddp_model: the DDP module. Several may be reported, each by a call of its own.

        Raises:
            ConfigError: it is not a DDP module, or averages over other ranks than this state is for.
        """
        if not isinstance(ddp_model, DistributedDataParallel):
            raise ConfigError(f"a {type(ddp_model).__name__} averages no gradients: pass the DDP module")
        self.check_module(ddp_model)
        own = weakref.proxy(self)
        if not any(module() is ddp_model for module, _ in self._reports):
            reports = Reports(ddp_model, lambda tensor, op: own.all_reduce(tensor, op), lambda: own._places())
            self._reports = (*self._reports, (weakref.ref(ddp_model), reports))

    @property
    def last_step(self) -> StepReport | None:
        """What all ranks told of the latest backward pass of the first module that `report_steps` was given.

        Read it on any rank, after the backward pass, which has it already or waits for it for one round trip. None
        before the first one.
        """
        if not self._reports:
            raise ConfigError("nothing is reported: call state.report_steps(ddp_model) once, on all ranks")
        return self._reports[0][1].look()

    def skip_step(self, ddp_model: DistributedDataParallel | None = None) -> None:
        """Take part in a backward pass that failed on this rank, so that all ranks can drop this step and go on.

        For errors that concern one batch only, such as OutOfMemoryError: call it where the forward or the backward
        pass has raised it, outside of `no_sync`, on this rank alone. It returns when the other ranks have done their
        backward pass. Then the gradients of all ranks are NaN, so GradScaler skips the step; without one see
        `last_step.counts`. What lossy wires have left out is as it was before. The model's buffers, such as the
        means of a BatchNorm, have seen the batch.

        Args:
            ddp_model: the module; may be left out if only one is reported.

        Raises:
            ConfigError: `report_steps` was not called for the module; or no pass has begun that could be skipped.
            ReductionError: what has ended the communicator.
        """
        found = [
            (module, reports)
            for ref, reports in self._reports
            if (module := ref()) is not None and ddp_model in (None, module)
        ]
        if len(found) != 1:
            raise ConfigError(
                f"skip_step() is for the modules that report_steps() was called for, these are {len(found)}: pass one "
                f"of them, as in state.skip_step(ddp_model)"
            )
        try:
            found[0][1].skip(found[0][0])
        except RuntimeError:  # what DDP's futures raise has no type
            if self.error is None:
                raise
            raise self.error from None
        self._used.forget()

    def _reported(self) -> dict[str, float]:
        return {
            "skipped_steps": sum(reports.skipped for _, reports in self._reports),
            "non_finite_steps": sum(reports.non_finite for _, reports in self._reports),
            "late_s": max((reports.late_s for _, reports in self._reports), default=0.0),
        }

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients of all modules whose gradients this state averages, as one vector; return its norm.

        All ranks have the same averages, so nothing is sent: it is `torch.nn.utils.clip_grad_norm_` of all their
        parameters. Call it after the backward pass, and after `scaler.unscale_`.
        """
        return torch.nn.utils.clip_grad_norm_(self._modules.parameters(), max_norm)

    def _places(self) -> tuple[list[str], int]:
        """Return the names of the ranks that take part at present, and the index of this one among them."""
        if not self.config.elastic:
            ranks = self._ranks()
            return [str(rank) for rank in ranks.global_ranks or range(ranks.size)], ranks.rank
        local = local_ranks(self.config)
        workers, own = self.members, self.members.index(self.config.rank or 0)
        if local is None:
            return [str(worker) for worker in workers], own
        names = [f"{worker} (its {number})" for worker in workers for number in range(local.size)]
        return names, own * local.size + local.rank
