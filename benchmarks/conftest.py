"""The fixtures of `make bench`, its rows as they are measured, and the table at the end of the run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import torch

from benchmarks.gpu import nccl_log
from benchmarks.gpu.nccl_ranks import GpuMissing
from benchmarks.lab import environment
from benchmarks.lab.cluster import Cluster, Shape, running
from benchmarks.lab.network import NetworkUnavailable, check_network
from benchmarks.lab.ranks import TRANSPORTS
from benchmarks.loads.models import NARROW, gradient_bytes
from benchmarks.method.paired import Effort, Measurement, compare
from benchmarks.method.progress import Progress, weight
from benchmarks.method.report import LATEST, Report
from benchmarks.method.row import Row
from benchmarks.plots import __main__ as plots

_REPORT = pytest.StashKey[Report]()

#: Efforts on loopback. Benchmarks on shaped links have efforts of their own.
QUICK = Effort(rounds=9, budget_s=6.0)
FULL = Effort(rounds=41, budget_s=40.0)

#: Shapes on loopback. Benchmarks on shaped links have shapes of their own.
SHAPES = [
    Shape(workers=4, reducers=2),
    pytest.param(Shape(workers=2, reducers=1), marks=pytest.mark.full),
    pytest.param(Shape(workers=8, reducers=2), marks=pytest.mark.full),  # slow on two cores
    Shape(workers=2, reducers=2, device="cuda"),  # NCCL chooses its transports
    Shape(workers=4, reducers=4, device="cuda"),
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --full, unless the tests' conftest has already added it."""
    with suppress(ValueError):
        parser.addoption("--full", action="store_true", help="run what is marked full, and more rounds")


def pytest_configure(config: pytest.Config) -> None:
    """Create the report, and show pytest-benchmark's own table only with --benchmark-verbose."""
    signal.signal(signal.SIGTERM, _interrupt)
    config.option.benchmark_quiet = True
    config.stash[_REPORT] = Report()
    config.pluginmanager.register(_Rows(config))


def _interrupt(number: int, frame: object) -> None:
    """End the run as Ctrl-C does, so that its table is printed, and hosts and processes end with it."""
    # timeout(1) sends SIGTERM twice: to its child and to the process group.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


class _Rows:
    """Prints every row once it is measured, and how long the rest of the run takes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._planned: dict[str, float] = {}
        self._shown = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan the progress of the run from the collected benchmarks."""
        self._reporter.showfspath = False
        weights = {item.nodeid: _weight(item) for item in session.items}
        self._planned = {name: value for name, value in weights.items() if value}
        self._progress = Progress(list(self._planned.values()), self._say)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Report the progress and the new rows after each benchmark."""
        if nodeid in self._planned:
            rows = self._config.stash[_REPORT].rows
            self._progress.done(*(row.line() for row in rows[self._shown :]))
            self._shown = len(rows)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print a line for a failure, and nothing for benchmarks that have a row or are skipped."""
        if report.failed:
            return "failed", f"failed: {report.nodeid}\n", "FAILED"
        if report.skipped:
            return "skipped", "", "SKIPPED"
        return ("passed", "", "PASSED") if report.when == "call" else None

    def _say(self, line: str) -> None:
        self._reporter.write_line(line)

    @property
    def _reporter(self) -> Any:
        return self._config.pluginmanager.getplugin("terminalreporter")


@pytest.hookimpl(trylast=True)  # after pytest's own order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip benchmarks that are marked full unless --full is given, and group those that share processes."""
    if not config.getoption("--full"):
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip(reason="takes long: only with --full"))
    first: dict[Shape | None, int] = {}
    items.sort(key=lambda item: first.setdefault(_shape(item), len(first)))


def _parameters(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)  # only functions with parameters have it
    return {} if callspec is None else callspec.params


def _shape(item: pytest.Item) -> Shape | None:
    return _parameters(item).get("cluster")


def _weight(item: pytest.Item) -> float:
    """Return how long a benchmark takes relative to the others; 0 if this machine skips it."""
    shape = _shape(item) or _parameters(item).get("shape")
    if shape is None or item.get_closest_marker("skip"):
        return 0.0
    if shape.device == "cuda" and not torch.cuda.is_available():
        return 0.0
    if shape.link is not None:
        try:
            check_network()
        except NetworkUnavailable:
            return 0.0
    # Benchmarks without a size parameter are trainings.
    return weight(shape, _parameters(item).get("size_bytes") or gradient_bytes(NARROW["transformer"]))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table and write the JSON file."""
    report = config.stash[_REPORT]
    if not report.rows:
        return
    report.write(LATEST)
    terminalreporter.section("reduction server against the ring, paired turns")
    terminalreporter.write_line(environment.summary(report.environment))
    for line in ["", *report.lines(), ""]:
        terminalreporter.write_line(line)
    if environment.is_busy(report.environment):
        terminalreporter.write_line(
            f"This machine was busy before the benchmarks began (load {report.environment['load_average'][0]:.2f}): "
            f"reducers need more cores than a ring, so run them again on an idle one."
        )
    reasons = {
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped")
    }
    for reason in sorted(reasons):
        terminalreporter.write_line(f"left out: {reason}")
    terminalreporter.write_line(f"columns: benchmarks/README.md; all rounds: {LATEST}")
    for path in plots.write(LATEST, LATEST.parent):
        terminalreporter.write_line(f"figure: {path}")


@pytest.fixture(scope="session", params=SHAPES, ids=lambda shape: shape.name)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The running processes of each shape. All benchmarks of a shape run before the next shape."""
    shape: Shape = request.param
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(running(shape))
        except (GpuMissing, NetworkUnavailable) as error:
            pytest.skip(str(error))
        yield cluster


@pytest.fixture
def is_full(request: pytest.FixtureRequest) -> bool:
    """Whether there is time for more rounds."""
    return bool(request.config.getoption("--full"))


@pytest.fixture
def effort(is_full: bool) -> Effort:
    """Return how many turns to measure on loopback."""
    return FULL if is_full else QUICK


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Return the report, for rows that were not measured on the processes of `cluster`."""
    return request.config.stash[_REPORT]


class _Clock:
    """A timer that passes the times of our turns to pytest-benchmark. Its own timer would include our pipes."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def replay(self, seconds: float) -> None:
        self._now_s += seconds


@pytest.fixture
def record(
    request: pytest.FixtureRequest, cluster: Cluster
) -> Callable[[str, int, int, dict[str, Measurement]], None]:
    """Return a function that adds a row to the report, and our turns to pytest-benchmark's report."""
    clock = _Clock()
    request.applymarker(pytest.mark.benchmark(timer=clock.now))

    def take(load: str, size_bytes: int, iterations: int, measured: dict[str, Measurement]) -> None:
        # Requested only now, because pytest-benchmark complains about a fixture that an interrupted test has not used.
        benchmark = request.getfixturevalue("benchmark")
        log = nccl_log.read(cluster.ranks.nccl_logs()) if cluster.shape.device == "cuda" else None
        row = Row(cluster.shape, load, size_bytes, iterations, measured, nccl=log)
        request.config.stash[_REPORT].rows.append(row)
        ours = TRANSPORTS[0]
        turns = measured[ours].turns
        later = iter(turns)
        benchmark.pedantic(clock.replay, setup=lambda: ((next(later),), {}), rounds=len(turns), iterations=1)
        benchmark.extra_info["contender"] = ours
        benchmark.extra_info["algbw_gb_s"] = row.figures(ours)["algbw_gb_s"]
        benchmark.extra_info["ratio"] = row.quartiles(ours)

    return take


@pytest.fixture
def measure(cluster: Cluster, record: Callable[..., None]) -> Callable[..., None]:
    """Return a function that runs a load on our transports, the ring and other contenders in turn."""

    def run(
        what: str,
        size_bytes: int,
        effort: Effort,
        load: type,
        *arguments: object,
        iterations: int = 1,
        also: Sequence[str] = (),
    ) -> None:
        cluster.ranks.load(load, *arguments)
        record(what, size_bytes, iterations, compare(cluster, [*TRANSPORTS, "ring", *also], effort))

    return run
