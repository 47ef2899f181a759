"""Methods of `ReductionState` whose data travels with the gradient sums."""

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
    """Methods of a `ReductionState` by which the ranks exchange information beside their gradients."""

    _modules: Modules

    #: Models whose weights must be the same on all ranks.
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
        # In an elastic job, workers that have just joined have no answer from the previous step.
        self._stopping = Stopping(is_at_once=self.config.elastic, notices=self.config.notices)
        self._weighing = Weighing()
        for watch in self._watches:
            watch.forget()
        for _, reports in self._reports:
            reports.forget()

    def _before_bucket(self, owner: DistributedDataParallel, bucket: GradBucket) -> None:
        """Do the work due before a DDP bucket is summed; it still holds this rank's own gradients."""
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
            # Every rank finds this in its own table. The first one to raise it ends the communicator, so by then all
            # ranks must have the results of the previous step. One more sum ensures this, because it completes on no
            # rank before all have got here.
            with contextlib.suppress(ReductionError):
                self.all_reduce(torch.zeros(1)).wait()
            raise

    def _after_bucket(self, owner: DistributedDataParallel, bucket: GradBucket, future: Future) -> None:
        """Do the work due after a bucket's sum has begun."""
        for module, reports in self._reports:
            if module() is owner:
                reports.after_bucket(bucket, future)

    def should_stop(self) -> bool:
        """Return whether all ranks should stop after this step, because one of them got SIGTERM.

        With the setting `notices`, it is also true once a rank's cloud has announced that it will reclaim the machine.
        Call it once per step on every rank. It becomes true on all ranks in the same step, so that they write the same
        checkpoint: in an elastic job in the step of the signal, otherwise in the next one. The first call takes over
        SIGTERM, so that it no longer ends the process; an existing Python handler is called as well. It costs a sum of
        one number, which is not waited for unless the job is elastic.

        Raises:
            ConfigError: the first call is not on the main thread.
            ReductionError: the error that has ended the communicator.
        """
        return self._stopping.ask(self.all_reduce)

    def watch(
        self, model: torch.nn.Module, every: int = 100, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Compare the weights of all ranks every N steps, where a step is a backward pass in which DDP averages.

        Call it once on all ranks, with the same arguments, before the first backward pass or after the same one. In
        every N-th backward pass a digest of 64 bits per parameter goes into a sum; the next pass checks it. A
        comparison reads all weights once. Nothing is compared inside DDP's `join`.

        Args:
            model: the DDP module, or the one inside; see `Watch` in worker_plugin/riders/drift.py.
            every: N.
            optimizer: its tensors, such as momentum, are compared as well.

        Raises:
            ConfigError: an argument is wrong.

        If weights differ, a backward pass ends with ReplicasDiffer, in the same step on all ranks. The error names the
        ranks that differ from most others, and the first tensor. The communicator has failed then.
        """
        own = weakref.proxy(self)  # a state without other references is dropped immediately
        watch = Watch(model, every, optimizer, lambda table: own.all_reduce(table), lambda: own._places())
        self._watches = (*self._watches, watch)
        if self.config.elastic:
            # Newcomers count from the step in which they join.
            self.on_change(lambda before, after: watch.count_again())

    def weigh(self, samples: float) -> None:
        """Weight each rank's gradients by its number of samples, instead of all ranks equally.

        Call it once per step on every rank, before the backward pass that DDP averages; best before the forward pass,
        which then hides the round trip. DDP's average becomes the sum of gradient times samples over all ranks, divided
        by the samples of all. That is the gradient of the mean loss over all samples, if each rank's loss is the mean
        over its own. The weights stay in effect until the next call. A rank with an empty batch passes 0, and a loss
        such as `0.0 * model(...).sum()`. Inside DDP's `join`, ranks without data automatically have weight 0.

        In an elastic job, the gradient of the step in which a worker is lost is off by a factor, the same on all
        ranks: the ratio of the mean samples of the remaining workers to the mean samples of all.

        Args:
            samples: this rank's number of samples or tokens, or any other weight from 0 to 2**53.

        Raises:
            ConfigError: it is not such a number. If it is 0 on all ranks, the backward pass ends with ConfigError.
            ReductionError: the error that has ended the communicator.
        """
        self._weighing.weigh(samples, self.all_reduce)

    # ---- reports of steps ----

    def report_steps(self, ddp_model: DistributedDataParallel) -> None:
        """Report, in each backward pass, which ranks skip it, are late, or have Inf or NaN gradients.

        Call it once on all ranks, before the first forward pass. From then on `last_step` has the report of the latest
        pass, and `skip_step` may be called. Rank 0 also logs each rank whose gradients become Inf or NaN, with the
        parameter. It reads all gradients once, and costs one small sum per step. The next forward
        pass begins by waiting for that sum, so on a GPU no earlier than when the backward pass is done.

        Args:
            ddp_model: the DDP module. Several may be reported, with one call for each.

        Raises:
            ConfigError: it is not a DDP module, or averages over different ranks than this state.
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
        """The report of all ranks on the latest backward pass of the first module passed to `report_steps`.

        Read it on any rank after the backward pass. The report has then arrived, or reading waits one round trip for
        it. None before the first backward pass.
        """
        if not self._reports:
            raise ConfigError("nothing is reported: call state.report_steps(ddp_model) once, on all ranks")
        return self._reports[0][1].look()

    def skip_step(self, ddp_model: DistributedDataParallel | None = None) -> None:
        """Take part in a backward pass that failed on this rank, so that all ranks can drop this step and continue.

        It is for errors that concern only one batch, such as OutOfMemoryError. Call it where the forward or the
        backward pass has raised the error, outside `no_sync`, on this rank alone. It returns when the other ranks have
        done their backward pass. The gradients of all ranks are then NaN, so GradScaler skips the step; without
        GradScaler see `last_step.counts`. The residuals of lossy wires are unchanged. The model's buffers, such as
        the means of a BatchNorm, have seen the batch.

        Args:
            ddp_model: the module; may be left out if only one is reported.

        Raises:
            ConfigError: `report_steps` was not called for the module, or no pass that could be skipped has begun.
            ReductionError: the error that has ended the communicator.
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
        except RuntimeError:  # errors of DDP's futures lose their type
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

        All ranks have the same averages, so nothing is sent. It calls `torch.nn.utils.clip_grad_norm_` with all the
        modules' parameters. Call it after the backward pass, and after `scaler.unscale_`.
        """
        return torch.nn.utils.clip_grad_norm_(self._modules.parameters(), max_norm)

    def _places(self) -> tuple[list[str], int]:
        """Return the names of the ranks that currently take part, and the index of this rank among them."""
        if not self.config.elastic:
            ranks = self._ranks()
            return [str(rank) for rank in ranks.global_ranks or range(ranks.size)], ranks.rank
        local = local_ranks(self.config)
        workers, own = self.members, self.members.index(self.config.rank or 0)
        if local is None:
            return [str(worker) for worker in workers], own
        names = [f"{worker} (its {number})" for worker in workers for number in range(local.size)]
        return names, own * local.size + local.rank
