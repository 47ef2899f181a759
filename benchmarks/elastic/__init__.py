"""Elastic jobs whose workers are killed all the time, beside the same job under torchrun's restarts."""
