"""Run Horovod's own test_torch.py on our module with Horovod's API: `python -m tests.horovod_suite SOURCE`.

SOURCE is a copy of https://github.com/horovod/horovod, which is used only for its tests, and not built.
The file runs unmodified, on all ranks at the same time. The exit code is 1 if a test fails that is not
explained in `EXPLAINED`.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "proto"), str(ROOT / "tests")]

from support.processes.reducers import Reducer  # noqa: E402

#: Tests of features that our module does not have, or that work differently.
EXPLAINED = {
    "test_broadcast_state_no_grad": "wants broadcast_optimizer_state to step with zero gradients, which decays weights",
    "test_horovod_reducescatter_adasum": "there is no Adasum",
    "test_optimizer_no_named_parameters": "looks into a private attribute of Horovod's optimizer",
    "test_sparse_embeddings": "sparse gradients need sparse_as_dense=True",
    "test_timeline_api": "there is no Horovod timeline; REDUCTION_TRACE has its place",
    "test_horovod_sync_batch_norm": "there is no SyncBatchNorm; torch.nn.SyncBatchNorm has its place",
}
#: Left out with more than two ranks: they want a float16 sum to equal three times a number that is not rounded to
#: float16. That holds for some elements, so some ranks would fail and leave the others in the test.
ON_TWO_RANKS = (
    "test_horovod_allreduce_prescale",
    "test_horovod_reducescatter_prescale",
    "test_horovod_grouped_reducescatter_prescale",
)
#: Time limit of all tests, in seconds.
RUN_S = 1200


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="a copy of Horovod's repository")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3], help="world sizes (%(default)s)")
    parser.add_argument("--pattern", default="test_", help="only tests with this text in their name")
    options = parser.parse_args()
    if not (options.source / "test/parallel/test_torch.py").exists():
        parser.error(f"{options.source}: there is no test/parallel/test_torch.py")
    rows, is_good = [], True
    with tempfile.TemporaryDirectory() as folder:
        reducer = Reducer(Path(folder))
        try:
            for size in options.ranks:
                results = _run(options.source, size, options.pattern, reducer.address)
                counts = collections.Counter(outcome for outcome, _ in results.values())
                rows.append(f"| {size} | {counts['pass']} | {counts['fail']} | {counts['skip']} |")
                for name, (outcome, reason) in sorted(results.items()):
                    if outcome == "fail":
                        is_good = is_good and name in EXPLAINED
                        print(f"  {name}: {EXPLAINED.get(name) or 'FAILED: ' + reason}")
        finally:
            reducer.kill()
    print("\n| ranks | passed | failed | skipped |\n|---|---|---|---|", *rows, sep="\n")
    return 0 if is_good else 1


def _run(source: Path, size: int, pattern: str, address: str) -> dict[str, tuple[str, str]]:
    """Run the tests; a test's outcome is the worst one of all ranks."""
    print(f"{size} ranks", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "REDUCTION_REDUCERS": address,
            "REDUCTION_LOG": "error",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(size),
        ]
        without = ON_TWO_RANKS if size > 2 else ()
        command = [*launcher, "-m", "tests.horovod_suite.one_rank", str(source), pattern, folder, *without]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=RUN_S
        )
        ranks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank-*.json"))]
    if len(ranks) < size:
        raise SystemExit(
            f"{len(ranks)} of {size} ranks came to the end\n{(done.stdout + done.stderr)[-4000:]}"
        )
    worst: dict[str, tuple[str, str]] = {}
    for name in ranks[0]:
        outcomes = [rank.get(name, ("fail", "a rank did not come to it")) for rank in ranks]
        worst[name] = min(outcomes, key=lambda outcome: ("fail", "skip", "pass").index(outcome[0]))
    return worst


if __name__ == "__main__":
    sys.exit(main())
