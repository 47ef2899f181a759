"""Hierarchical mode (`local_group`): the ranks of a node reduce among themselves first."""
