"""Run other libraries' own tests on our strategy or backend: `python -m tests.library_suites NAME [SOURCE]`.

NAME is one of `suites.SUITES`; its library has to be installed. If the tests are not in the library's wheel, SOURCE
is a copy of its repository, of about the installed version; it is not built. The tests run unmodified. A test that
fails is run again without ours. The exit code is 1 if one fails only with ours and is not explained.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "proto"), str(ROOT / "tests")]

from support.processes.children import environment  # noqa: E402
from support.processes.reducers import Reducer  # noqa: E402

from tests.library_suites import recorder  # noqa: E402
from tests.library_suites.suites import SUITES, Suite  # noqa: E402

#: Outcome of a test, "pass", "fail" or "skip", and the reason.
Outcome = tuple[str, str]
#: Seconds for one test, for a script, and for all tests that run in one process.
TEST_S, SCRIPT_S, RUN_S = 150, 300, 1200
#: Rank counts for scripts that torchrun starts.
RANKS = (2, 3)


class Runner:
    """Runs the tests of a suite, with ours or without."""

    def __init__(self, suite: Suite, source: Path | None, reducer: Reducer, folder: Path) -> None:
        self._suite, self._reducer, self._folder = suite, reducer, folder
        module = importlib.util.find_spec(suite.library)
        assert module is not None
        assert module.submodule_search_locations
        self._package = Path(module.submodule_search_locations[0])
        self._root = self._package if source is None else source / (suite.root or "")

    def run(self, pattern: str) -> dict[str, Outcome]:
        """Run all tests with ours."""
        if self._suite.scripts:
            return {name: self._script(name) for name in self._scripts() if pattern in name}
        results = self._pytest(self._suite.files, *(["-k", pattern] if pattern else []))
        if self._suite.apart:
            for test in self._pytest(self._suite.apart, "--collect-only"):
                if pattern in test:
                    results |= self._apart(test)
        return results

    def run_without(self, test: str) -> Outcome:
        """Run one test again, without ours."""
        if self._suite.scripts:
            return self._script(test, with_ours=False)
        return self._apart(test, with_ours=False)[test]

    def _apart(self, test: str, with_ours: bool = True) -> dict[str, Outcome]:
        found = self._pytest([test], with_ours=with_ours)
        print(f"  {found.get(test, ('lost',))[0]} {test}", flush=True)
        return found

    def _pytest(self, tests: Sequence[str], *words: str, with_ours: bool = True) -> dict[str, Outcome]:
        out = self._folder / "results.json"
        out.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        command += [f"--timeout={TEST_S}", f"--rootdir={self._root}", *words]
        for plugin in (recorder.__name__, *self._suite.plugins, *(self._suite.ours if with_ours else ())):
            command += ["-p", plugin]
        command += [str(self._root / test) for test in tests]
        said = self._run(command, with_ours, {recorder.OUT: str(out)})
        if not out.exists():
            raise SystemExit(f"pytest did not begin:\n{said[-4000:]}")
        results: dict[str, Outcome] = {name: tuple(one) for name, one in json.loads(out.read_text()).items()}
        return results

    def _scripts(self) -> Iterator[str]:
        for script in self._suite.scripts:
            for ranks in RANKS:
                for way in ("backend", "without a line"):
                    yield f"{script}, {ranks} ranks, {way}"

    def _script(self, name: str, with_ours: bool = True) -> Outcome:
        script, ranks, way = name.split(", ")
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks.split()[0]]
        command, more = [sys.executable, *launcher], {"ACCELERATE_USE_CPU": "1"}
        if with_ours and way == "backend":
            command += ["-m", "tests.library_suites.with_backend"]
        elif with_ours:
            more["REDUCTION_AUTO"] = "ddp"
        said = self._run([*command, str(self._package / script)], with_ours, more, SCRIPT_S)
        code = int(said.rpartition("\n")[2])
        print(f"  {'fail' if code else 'pass'} {name}", flush=True)
        return ("fail", said[-3000:]) if code else ("pass", "")

    def _run(
        self, command: Sequence[str], with_ours: bool, more: dict[str, str], limit_s: float = RUN_S
    ) -> str:
        """Run it, and return what it printed, with the exit code on the last line."""
        folders = (ROOT, ROOT / "proto", ROOT / "tests", *([self._root] if self._suite.root else []))
        variables = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONDONTWRITEBYTECODE": "1"}
        variables |= {
            recorder.PARENT: str(os.getpid()),
            "REDUCTION_LOG": "error",
            "PYTHONHASHSEED": "0",
        } | more
        if with_ours:
            variables["REDUCTION_REDUCERS"] = self._reducer.address
        # Child processes end with it, because they share a session.
        with subprocess.Popen(
            command,
            # Not the tests' folder, because `-m` puts it into sys.path, where its files may hide Python modules.
            cwd=self._folder,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                said = f"not done after {limit_s:g} s"
            finally:
                _end(process.pid)
        return f"{said}\n{process.returncode}"


def _end(session: int) -> None:
    """Kill the remaining processes of a session."""
    import signal

    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=sorted(SUITES), metavar="NAME", help=", ".join(sorted(SUITES)))
    parser.add_argument("source", type=Path, nargs="?", help="a copy of the library's repository")
    parser.add_argument("--pattern", default="", help="only tests with this text in their name")
    options = parser.parse_args()
    suite = SUITES[options.suite]
    if suite.root is not None and options.source is None:
        parser.error(f"the tests of {options.suite} are not in its wheel: name a copy of its repository")
    source = None if options.source is None else options.source.resolve()
    with tempfile.TemporaryDirectory() as folder:
        reducer = Reducer(Path(folder))
        try:
            runner = Runner(suite, source, reducer, Path(folder))
            results = runner.run(options.pattern)
            good = [_explain(suite, runner, name, outcome) for name, outcome in sorted(results.items())]
        finally:
            reducer.kill()
        pushed = sum(map(int, re.findall(r"job ended .*received_bytes=(\d+)", reducer.log.text)))
    skipped = collections.Counter(reason for outcome, reason in results.values() if outcome == "skip")
    print(
        *(f"  skipped {count}: {reason.removeprefix('Skipped: ')}" for reason, count in skipped.items()),
        sep="\n",
    )
    counts = collections.Counter(outcome for outcome, _ in results.values())
    distribution = importlib.metadata.packages_distributions()[suite.library][0]
    version = importlib.metadata.version(distribution)
    print(f"\n{options.suite} {version}: {counts['pass']} passed, {counts['fail']} failed,", end=" ")
    print(f"{counts['skip']} skipped; ranks have pushed at least {pushed} bytes to the reducer")
    return 0 if all(good) else 1


def _explain(suite: Suite, runner: Runner, name: str, outcome: Outcome) -> bool:
    """Explain why a test has not passed; return whether that is expected."""
    kind, reason = outcome
    if kind == "pass":
        return True
    if kind == "skip":
        return True
    found = (text for pattern, text in suite.explained.items() if re.search(pattern, name))
    explanation = next(found, None)
    if explanation is None and runner.run_without(name)[0] == "fail":
        explanation = "fails without us as well"
    print(f"  failed {name}: {explanation or 'WITH US ALONE: ' + reason}", flush=True)
    return explanation is not None


if __name__ == "__main__":
    sys.exit(main())
