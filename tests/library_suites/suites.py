"""The tests of each library that are run, how ours takes part in them, and why some cannot pass."""

from __future__ import annotations

from dataclasses import dataclass, field

_HERE = "tests.library_suites"
_PLUGINS = f"{_HERE}.in_place"


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests of one library."""

    #: The module whose version is printed.
    library: str
    #: Test files for pytest, below the folder that the command names, or below that of the module.
    files: tuple[str, ...] = ()
    #: The same, but each test has its own process: some start pytest again as their second rank.
    apart: tuple[str, ...] = ()
    #: Scripts of the library that torchrun starts, below the folder of the module.
    scripts: tuple[str, ...] = ()
    #: Folder that the tests import themselves from, below the one that the command names. If None, the tests
    #: are in the library's wheel, and no folder needs to be named.
    root: str | None = None
    #: pytest plugins for both ways of running, and for the one with ours.
    plugins: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    #: Why a test fails only with ours, by a regular expression for its name.
    explained: dict[str, str] = field(default_factory=dict)


_LIGHTNING = (f"{_PLUGINS}.lightning_on_cpu",)

SUITES = {
    "accelerate": Suite(
        library="accelerate",
        # Without test_distributed_data_loop.py, which hangs on the CPU over Gloo as well: Accelerate joins uneven
        # inputs on GPUs only. The other files of the folder need GPUs or data from the network.
        scripts=tuple(f"test_utils/scripts/test_{name}.py" for name in ("script", "ops", "sync")),
    ),
    "torchft": Suite(
        library="torchft",
        files=("process_group_test.py",),
        ours=(f"{_PLUGINS}.torchft",),
        explained={
            "NormalGloo.*with_resiliency.*allreduce": "wants the words of Gloo's error; ours names the rank that left",
            "test_gloo_apis": "wants futures of reduce-scatters, which torchft's group refuses, and ours leaves to "
            "Gloo, whose have none (torch 2.13)",
        },
    ),
    "lightning": Suite(
        library="lightning",
        root="tests",
        # Without test_ddp_integration_comm_hook.py: Lightning has other hooks on GPUs only, and ours beside none.
        files=("tests_pytorch/strategies/test_ddp.py",),
        apart=("tests_pytorch/strategies/test_ddp_integration.py",),
        plugins=_LIGHTNING,
        ours=(f"{_PLUGINS}.state", f"{_PLUGINS}.lightning"),
    ),
    "fabric": Suite(
        library="lightning",
        root="tests",
        files=("tests_fabric/strategies/test_ddp.py",),
        apart=("tests_fabric/strategies/test_ddp_integration.py",),
        plugins=_LIGHTNING,
        ours=(f"{_PLUGINS}.state", f"{_PLUGINS}.fabric"),
        explained={"backend.None-": "wants the name of the backend, which was turned into another"},
    ),
    "ray": Suite(
        library="ray",
        root="python/ray/train/v2/tests",
        files=("test_torch_trainer.py",),
        ours=(f"{_PLUGINS}.ray",),
    ),
}
