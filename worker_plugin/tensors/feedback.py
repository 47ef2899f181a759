"""What lossy contributions left out so far, by parameter: added to the next one (error feedback).

Parameters are known by the order in which DDP first showed them, which is the same in every run of
a script; so a residual finds its parameter again when DDP rebuilds its buckets, and after a restart
from a checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from reduction.errors import ConfigError
from torch.utils.weak import WeakIdKeyDictionary

from worker_plugin.tensors.encoding import ParameterSlice


class ErrorFeedback:
    """The residuals of one rank. Read and written by its encodings; not while collectives are in flight."""

    def __init__(self) -> None:
        #: Of each parameter, in the order in which DDP first showed them; not kept alive, nor is
        #: the residual.
        self._residuals: Any = WeakIdKeyDictionary()
        #: Loaded, of parameters that DDP has not shown yet.
        self._loaded: deque[NDArray[np.float32]] = deque()
        self._is_used = False

    def slices(self, parameters: Sequence[torch.Tensor]) -> list[ParameterSlice]:
        """Return where these parameters lie in their bucket, with their residuals.

        Raises:
            ConfigError: a residual that was loaded has another size than its parameter.
        """
        self._is_used = True
        slices, offset = [], 0
        for parameter in parameters:
            numel = parameter.numel()
            slices.append(ParameterSlice(offset, numel, self._residual(parameter, numel)))
            offset += numel
        return slices

    def _residual(self, parameter: torch.Tensor, numel: int) -> NDArray[np.float32]:
        residual: NDArray[np.float32] | None = self._residuals.get(parameter)
        if residual is None:
            residual = self._loaded[0] if self._loaded else np.zeros(numel, np.float32)
            if residual.size != numel:
                raise ConfigError(
                    f"the residual of parameter {len(self._residuals)} has {residual.size} elements, the parameter "
                    f"{numel}: load the state_dict of the same rank and model, or none"
                )
            if self._loaded:
                self._loaded.popleft()
            self._residuals[parameter] = residual
        return residual

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all residuals, in the order of their parameters."""
        residuals = [*self._residuals.values(), *self._loaded]
        return {"residuals": [torch.from_numpy(residual.copy()) for residual in residuals]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take residuals over; before the first collective.

        Raises:
            ConfigError: they come too late, or are none.
        """
        residuals = state.get("residuals")
        if not isinstance(residuals, list) or not all(isinstance(one, torch.Tensor) for one in residuals):
            raise ConfigError("this is no state_dict() of a ReductionState")
        if self._is_used:
            raise ConfigError("load_state_dict comes too late: call it before the first backward pass")
        self._loaded = deque(
            one.detach().cpu().to(torch.float32).reshape(-1).numpy().copy() for one in residuals
        )
