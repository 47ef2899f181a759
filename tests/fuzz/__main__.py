"""Fuzz the code that parses bytes from other machines: `python -m tests.fuzz --minutes 10`. Needs the extra `fuzz`.

Every target runs for its share of the time in its own process, guided by coverage and starting from the kept corpus. A
failing input is saved under tests/fuzz/findings, with the command that replays it. `--keep` adds inputs with new
coverage to the corpus; `--minimise` first drops inputs that others cover. pytest replays the corpus without any of
this.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
NAMES = (
    "worker_frame",
    "reducer_frame",
    "status",
    "lobby_request",
    "lobby_response",
    "drain",
    "reducer_session",
    "reducer_data_port",
    "reducer_local_port",
    "worker_core",
    "worker_data_plane",
    "worker_local_plane",
)
TIMEOUT_S = 25
RSS_LIMIT_MB = 2048
#: Longer inputs are not kept, since the whole corpus must stay below 300 KB.
KEPT_BYTES_MAX = 3500


def main() -> int:
    """Return the process's exit code: 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=NAMES, action="append", help="default: all, one after the other")
    parser.add_argument("--minutes", type=float, default=10.0, help="of all targets together (default: 10)")
    parser.add_argument("--seed", type=int, help="of all choices (default: a new one, which is printed)")
    parser.add_argument("--keep", action="store_true", help="add to the corpus what covers something new")
    parser.add_argument(
        "--minimise", action="store_true", help="choose the corpus from scratch; implies --keep"
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="run one input of --target, and nothing else"
    )
    options = parser.parse_args()
    targets = options.target or list(NAMES)
    if options.replay is not None:
        if len(targets) != 1:
            parser.error("--replay needs one --target")
        return _child(targets[0], [str(options.replay)])[0]
    seed = random.SystemRandom().randrange(1, 1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}; again: python -m tests.fuzz --minutes {options.minutes:g} --seed {seed}", flush=True)
    seconds = max(1, round(options.minutes * 60 / len(targets)))
    failed = [name for name in targets if not _fuzz(name, seconds, seed, options.keep, options.minimise)]
    print(f"findings in: {', '.join(failed)}" if failed else "no findings")
    return 1 if failed else 0


def _fuzz(name: str, seconds: int, seed: int, keeps: bool, minimises: bool) -> bool:
    """Fuzz one target; return whether there were no findings."""
    findings = HERE / "findings"
    findings.mkdir(exist_ok=True)
    kept = HERE / "corpus" / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as found:
        artifacts = f"-artifact_prefix={findings}/{name}-"
        limits = [f"-timeout={TIMEOUT_S}", f"-rss_limit_mb={RSS_LIMIT_MB}", "-print_final_stats=1"]
        code, text = _child(
            name,
            [found, str(kept), f"-max_total_time={seconds}", f"-seed={seed}", *limits, artifacts],
        )
        print(f"{name}: {_summary(text)}", flush=True)
        for path in re.findall(r"Test unit written to (\S+)", text):
            print(f"  python -m tests.fuzz --target {name} --replay {shlex.quote(path)}")
        if code:
            print(text[-4000:])
            return False
        if keeps or minimises:
            _merge(name, kept, Path(found), minimises)
    return True


def _merge(name: str, kept: Path, found: Path, is_from_scratch: bool) -> None:
    """Add inputs of `found` with new coverage to `kept`; from scratch, keep the fewest of both that cover all."""
    before = len(list(kept.iterdir()))
    with tempfile.TemporaryDirectory() as scratch:
        into = Path(scratch) / "corpus" if is_from_scratch else kept
        into.mkdir(exist_ok=True)
        code, text = _child(
            name, ["-set_cover_merge=1" if is_from_scratch else "-merge=1", str(into), str(kept), str(found)]
        )
        if code:
            print(text[-4000:])
            raise SystemExit(f"{name}: the corpus could not be merged")
        if is_from_scratch:
            shutil.rmtree(kept)
            shutil.copytree(into, kept)
    for path in kept.iterdir():
        if path.stat().st_size > KEPT_BYTES_MAX:
            path.unlink()
    files = list(kept.iterdir())
    print(
        f"  corpus: {before} inputs before, {len(files)} now, {sum(path.stat().st_size for path in files)} bytes"
    )


def _child(name: str, arguments: list[str]) -> tuple[int, str]:
    """Run the engine on a target in its own process; return its exit code and its output."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "proto"), str(ROOT), str(HERE.parent))),
        "PYTHONHASHSEED": "0",
    }
    command = [sys.executable, "-m", "fuzz.engine", name, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode(errors="replace")


def _summary(text: str) -> str:
    """Return the executions, and the coverage at the start and at the end, from the engine's output."""
    lines = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text)
    runs = re.search(r"stat::number_of_executed_units: (\d+)", text)
    if not lines:
        return "no coverage was reported"
    first, last = lines[0], lines[-1]
    return (
        f"{runs.group(1) if runs else '?'} executions, edges {first[0]} -> {last[0]}, features {first[1]} -> "
        f"{last[1]}, corpus {first[2]} -> {last[2]}"
    )


if __name__ == "__main__":
    sys.exit(main())
