"""Elastic jobs whose workers are killed all the time, compared with the same job under torchrun's restarts."""
