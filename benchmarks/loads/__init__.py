"""The workloads that ranks run while they are measured."""
