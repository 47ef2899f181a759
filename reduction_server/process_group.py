"""The backend "reduction" of torch.distributed. Importing this module registers it."""

from worker_plugin.process_group import ReductionOptions, add_error_feedback, state_of

__all__ = ["ReductionOptions", "add_error_feedback", "state_of"]
