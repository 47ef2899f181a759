"""Runs torch's tests once, on one backend, in one of two ways; the results go to a JSON file.

as-is     as for any backend unknown to torch: tests written for Gloo or NCCL are skipped
on-cpu    also tests written for Gloo (every group asks for "gloo" and gets the backend) and for GPUs
          (on the CPU instead, see `on_cpu.py`)

`python -m tests.torch_suite.one_run WAY BACKEND WORLD_SIZE PATTERN OUT.json`, in a separate process:
the tests read the environment when they are imported. Every test forks its ranks.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import unittest
import warnings
from pathlib import Path
from typing import Any

#: Features that torch tests only if a backend is in these lists.
FEATURES = ("plugin", "ddp", "subgroup", "gpu", "cuda")
TEST_TIMEOUT_S = 60
#: One rank has more inputs than the others in all of its cases, which takes 400 s.
LEFT_OUT = ("test_ddp_uneven_inputs",)


def main() -> None:
    way, backend, world_size, pattern, out = sys.argv[1:]
    is_on_cpu = way == "on-cpu"
    os.environ |= {
        "BACKEND": "gloo" if is_on_cpu else backend,
        "WORLD_SIZE": world_size,
        "TEMP_DIR": tempfile.mkdtemp(prefix="torch-suite-"),
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_TIMEOUT_S),
    }
    warnings.simplefilter("ignore")
    if is_on_cpu:
        from tests.torch_suite import on_cpu

        on_cpu.before_import()
    case = _test_case(is_on_cpu, backend, int(world_size))
    names = unittest.TestLoader().getTestCaseNames(case)
    results: dict[str, list[Any]] = {}
    for name in names:
        if name in LEFT_OUT or not re.search(pattern, name):
            continue
        started_at, result = time.monotonic(), unittest.TestResult()
        case(name).run(result)
        bad = [text for _, text in result.failures + result.errors]
        outcome = "skip" if result.skipped else "fail" if bad else "pass"
        reason = result.skipped[0][1] if result.skipped else "\n".join(bad)
        results[name] = [outcome, round(time.monotonic() - started_at, 1), reason[-3000:]]
        if outcome == "fail":
            print(f"FAIL {name}\n{reason[-1500:]}", flush=True)
        Path(out).write_text(json.dumps(results, indent=1))


def _test_case(is_on_cpu: bool, backend: str, world_size: int) -> type[unittest.TestCase]:
    from torch.testing._internal import common_distributed

    import worker_plugin.process_group  # noqa: F401

    for feature in FEATURES:
        common_distributed.DistTestCases.backend_feature[feature].add("reduction")
    from torch.testing._internal.distributed import distributed_test

    if is_on_cpu:
        from tests.torch_suite import on_cpu

        on_cpu.after_import(distributed_test, backend)

    class TorchTests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        @property
        def world_size(self) -> int:
            return world_size

        def setUp(self) -> None:
            super().setUp()
            # Torch uses spawn, which imports torch again for each rank and takes 7 s per test.
            self._start_processes(multiprocessing.get_context("fork").Process)

        def run_test(self, test_name: str, pipe: object) -> None:
            if not is_on_cpu:
                super().run_test(test_name, pipe)
                return
            from tests.torch_suite import on_cpu

            with on_cpu.OnCpu():
                super().run_test(test_name, pipe)

    return TorchTests


if __name__ == "__main__":
    main()
