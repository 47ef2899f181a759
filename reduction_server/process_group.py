"""The backend "reduction" of torch.distributed. Importing this module registers it."""

from worker_plugin.process_group import ReductionOptions, state_of

__all__ = ["ReductionOptions", "state_of"]
