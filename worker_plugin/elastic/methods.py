"""Methods of `ReductionState` for elastic jobs."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from reduction.errors import ConfigError, ReductionError

from worker_plugin.communicator import Communicator
from worker_plugin.config import PluginConfig
from worker_plugin.elastic.making import make_steps
from worker_plugin.elastic.newcomers.training import Training, describe
from worker_plugin.elastic.node.node_steps import NodeSteps
from worker_plugin.elastic.steps import OnChange, Steps
from worker_plugin.elastic.used_parameters import UsedParameters
from worker_plugin.process import log_setup
from worker_plugin.process.stop_request import is_asked

log = logging.getLogger(__name__)

#: What a job that is not elastic can do instead of losing one worker.
_STOP_TOGETHER = ", or have all ranks stop together with state.should_stop()"


class ElasticMethods(ABC):
    """Methods of a `ReductionState` for jobs whose workers join and leave."""

    config: PluginConfig
    _on_change: list[OnChange]

    @abstractmethod
    def fail(self, error: Exception) -> ReductionError:
        """See `ReductionState`."""

    @abstractmethod
    def close(self) -> None:
        """See `ReductionState`."""

    @abstractmethod
    def _connected(self, model: str = "") -> Communicator: ...

    def _reset_elastic(self) -> None:
        #: The work between two steps; None before the first `sync`.
        self._steps: Steps | NodeSteps | None = None
        #: Records which parameters got gradients.
        self._used = UsedParameters()

    def sync(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Begin a step of an elastic job with all present workers, all of them in the same state.

        Every worker calls it before every step, on the training thread, when the collectives of the
        previous step are done. Workers waiting to join get model, optimizer and `extra`, in place, from one
        that is in the job; in a new job all workers get them from the first one. The model's buffers
        become those of the first worker at every call. It blocks until all workers have called it.

        Args:
            model: its state_dict is sent; the module inside DDP, or the DDP module itself, the same choice
                on all workers.
            optimizer: its state_dict is sent.
            extra: anything else that newcomers need: a dictionary of tensors, numbers, strings, lists and
                dictionaries, such as the step and the position in the data.

        Returns:
            `extra`, or the `extra` of the worker whose state this worker got.

        Raises:
            ConfigError: the job is not elastic; the model differs from that of the other workers; a
                parameter got no gradient.
            RankTaken: another live process has this rank.
            WorkersMissing: too few workers joined within `join_timeout_s`.
            ReductionError: any other error that ended the job for this worker.
        """
        self._check_elastic("sync")
        try:
            self._used.check()
            training = Training(model, optimizer, extra or {})
            if self._steps is None:
                self._steps = make_steps(self._connected(describe(model)), self.config, self._on_change)
            return self._steps.sync(training)
        except ReductionError:
            raise
        except Exception as error:
            raise self.fail(error) from error

    def should_leave(self) -> bool:
        """Return whether this worker of an elastic job should leave, because its process got SIGTERM.

        With the setting `notices`, it is also true once the cloud has announced that it will reclaim the machine.
        Call it once per step; with `local_group` call it on all ranks of a worker, and the answer is that of the
        worker's first rank. It takes over SIGTERM as `should_stop` does, whose answer is the same on all workers.

        Raises:
            ConfigError: the job is not elastic; the first call is not on the main thread.
            WorkerLost: another rank of this worker has ended.
            ReductionError: another rank of this worker has failed, with this error.
        """
        self._check_elastic("should_leave", _STOP_TOGETHER)
        asked = is_asked(self.config.notices)
        return asked if self._steps is None else self._steps.agree(asked)

    def leave(self) -> None:
        """Leave an elastic job after a step, permanently, as `close` does.

        The others continue without this worker in their next step, without a grace period, and lose nothing. Other
        workers may leave as well: half of them at the same time, or all but one.

        Raises:
            ConfigError: the job is not elastic.
        """
        self._check_elastic("leave", _STOP_TOGETHER)
        log_setup.announce(log, f"job {self.config.job} rank {self.config.rank}: leaving")
        self.close()

    def _check_elastic(self, method: str, instead: str = "") -> None:
        if not self.config.elastic:
            raise ConfigError(
                f"state.{method} is for elastic jobs: make the state with elastic=True{instead}"
            )

    def on_change(self, call: OnChange) -> OnChange:
        """Register a function to call when the set of workers differs from the previous step; may be a decorator.

        It is called in `sync` on every worker, including one that has just got the others' state, with the ranks
        before and after, for example to scale the learning rate.
        """
        self._on_change.append(call)
        return call

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part in the current step of an elastic job; empty before its first `sync`."""
        return () if self._steps is None else self._steps.ranks
