"""Workloads that ranks run while they are measured."""
