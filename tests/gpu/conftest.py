"""Tests with a real GPU, in real processes; ranks may share one. Without a GPU all are skipped with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from integration.conftest import (  # noqa: F401
    _shared_ranks,
    _shared_reducers,
    fresh_ranks,
    job,
    plane,
    ranks,
    reducers,
    serve,
    until,
)

# Makes cuBLAS compute the same in each process; it is read when cuBLAS starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    reason = "torch sees no GPU" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))
