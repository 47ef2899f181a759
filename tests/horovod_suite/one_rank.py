"""Runs Horovod's tests on one rank, with our module in place of horovod.torch; results go to a JSON file.

`python -m tests.horovod_suite.one_rank SOURCE PATTERN FOLDER [NAME...]`, on all ranks at the same time,
excluding the named tests. A test that fails on one rank leaves the others in the middle of it; after TEST_S
they fail as well.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import signal
import sys
import time
import types
import unittest
import warnings
from pathlib import Path
from typing import Any

TEST_S = 20


def main() -> None:
    source, pattern, folder, *without = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:]
    warnings.simplefilter("ignore")
    # Horovod's Gloo controller sets it. It tells the tests that they may shut down and start over.
    os.environ["HOROVOD_RANK"] = os.environ["RANK"]
    os.environ["HOROVOD_SIZE"] = os.environ["WORLD_SIZE"]
    _stand_in_for_horovod()
    case = _test_case(source / "test/parallel/test_torch.py")
    results: dict[str, Any] = {}
    out = folder / f"rank-{os.environ['RANK']}.json"
    signal.signal(signal.SIGALRM, _too_late)
    for name in unittest.TestLoader().getTestCaseNames(case):
        if pattern not in name or name in without:
            continue
        result = unittest.TestResult()
        began = time.monotonic()
        signal.alarm(TEST_S)
        case(name).run(result)
        signal.alarm(0)
        bad = [text for _, text in result.failures + result.errors]
        outcome = "skip" if result.skipped else "fail" if bad else "pass"
        results[name] = outcome, "\n".join(bad)[-1500:]
        print(f"{outcome} {name} {time.monotonic() - began:.1f} s", flush=True)
        out.write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


def _too_late(*_: Any) -> None:
    faulthandler.dump_traceback()
    raise TimeoutError(f"not done after {TEST_S} s")


def _stand_in_for_horovod() -> None:
    """Make `import horovod.torch` find our module, and the tests' helpers find their imports."""
    import worker_plugin.integrations.horovod as ours

    for name in ("horovod", "horovod.runner", "horovod.runner.util", "horovod.runner.util.threads", "mock"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["horovod"].torch = ours  # type: ignore[attr-defined]
    sys.modules["horovod.torch"] = ours
    sys.modules["horovod.runner.util.threads"].in_thread = None  # type: ignore[attr-defined]


def _test_case(path: Path) -> type[unittest.TestCase]:
    import torch

    # Horovod's tests are for torch 1, which had this, and had no optimizer that accepts only matrices.
    torch.FatalError = RuntimeError  # type: ignore[attr-defined]
    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "not one of those that are tried"
    spec = importlib.util.spec_from_file_location("test_torch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_torch"] = module
    spec.loader.exec_module(module)
    case: type[unittest.TestCase] = module.TorchTests
    return case


if __name__ == "__main__":
    main()
