"""Does the simulator notice faults in the product? `python -m tests.simulation.mutants --count 80 [--seconds 60]`

Each mutant is a module of a core with one small change: a negated condition, a comparison or a number off by one, or a
dropped statement (a reset, an action). It exists only in its own process, never in the product. A mutant is killed when
a run fails that passes without it. A mutant that no run kills is passed to the unit tests of its package. Prints each
of these as a line of a diff.

Changes that no run can show to be wrong are left out: words (in f-strings and log lines), statistics, `<` for `<=`
between two times, and speeds (paces and shares, which `paces` and the tests of their modules check).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import itertools
import logging
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "reducer.core.job",
    "reducer.core.jobs",
    "reducer.core.slot",
    "worker_plugin.core.epochs",
    "worker_plugin.core.link",
    "worker_plugin.core.rank",
    "worker_plugin.core.window",
    "worker_plugin.core.flow.lane",
    "worker_plugin.core.membership.roster",
    "worker_plugin.core.membership.judge",
)
#: Modules of elastic jobs, used with `--elastic`.
ELASTIC = (
    "reducer.core.lobby",
    "worker_plugin.elastic.worker",
    "worker_plugin.elastic.forming",
    "worker_plugin.elastic.ledger",
    "worker_plugin.elastic.membership.council",
    "worker_plugin.elastic.membership.lineage",
    "worker_plugin.elastic.newcomers.admission",
    "worker_plugin.elastic.newcomers.donation",
    "worker_plugin.elastic.recovery",
    "worker_plugin.elastic.steps",
)
_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
_COMPARISONS |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
#: Matches statements and conditions that only concern words or statistics.
_NO_MATTER = re.compile(r"\bLog\(|\b_?log\b|totals|\bwaits\b|WARNING|is_paced|pace\b|rate\b")
#: Matches a time on either side of a comparison.
_TIMES = re.compile(r"\bnow\b.* [<>]=? |[<>]=? .*\bnow\b")
KILLED, ALIVE = 10, 0
KILLERS = ("simulation", "tests", "nothing")
#: Time limit for the unit tests of a package, in seconds of wall clock time.
TESTS_S = 300.0


class Mutation(NamedTuple):
    """A change of a module: the number of the node in its tree, and the kind of the change."""

    module: str
    node: int
    kind: str


def path_of(module: str) -> Path:
    """Return the file of a module."""
    path = f"{module.replace('.', '/')}.py"
    return ROOT / "proto" / path if module.startswith("reduction.") else ROOT / path


def mutations(module: str) -> Iterator[Mutation]:
    """Yield every change of a module that could matter."""
    tree = ast.parse(path_of(module).read_text())
    words = {
        id(part) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for part in ast.walk(text)
    }
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in words:
            continue
        if isinstance(node, (ast.If, ast.IfExp, ast.Compare, ast.AugAssign, ast.Assign, ast.Expr)):
            source = ast.unparse(node.test if isinstance(node, (ast.If, ast.IfExp)) else node)
            if _NO_MATTER.search(source) or (isinstance(node, ast.Compare) and _TIMES.search(source)):
                continue
        if isinstance(node, (ast.If, ast.IfExp)):
            yield Mutation(module, number, "negated")
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
            yield Mutation(module, number, "compared")
        elif isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value == 1:
            yield Mutation(module, number, "off by one")
        elif isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
        ):
            yield Mutation(module, number, "dropped")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield Mutation(module, number, "dropped")


def mutated(mutation: Mutation) -> tuple[ast.Module, str]:
    """Return the tree of a mutant and a description of the change."""
    source = path_of(mutation.module).read_text()
    tree = ast.parse(source)
    node = list(ast.walk(tree))[mutation.node]
    text = f"{mutation.module}:{node.lineno} {mutation.kind}: {source.splitlines()[node.lineno - 1].strip()}"
    match mutation.kind:
        case "negated":
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case "compared":
            node.ops = [_COMPARISONS[type(node.ops[0])]()]
        case "off by one":
            node.right = ast.Constant(2)
        case "dropped":
            _Drop(node).visit(tree)
    return ast.fix_missing_locations(tree), text


class _Drop(ast.NodeTransformer):
    def __init__(self, node: ast.AST) -> None:
        self._node = node

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if node is self._node else self.generic_visit(node)


class _Loader(importlib.abc.Loader, importlib.abc.MetaPathFinder):
    """Imports the mutant in place of its module."""

    def __init__(self, mutation: Mutation) -> None:
        self._module = mutation.module
        self._tree, _ = mutated(mutation)

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == self._module else None

    def exec_module(self, module: object) -> None:
        exec(compile(self._tree, str(path_of(self._module)), "exec"), module.__dict__)


def judge(mutation: Mutation, seconds: float) -> int:
    """Simulate with a mutant in this process; return whether it was killed.

    Each seed is run with faults of many kinds, and with faults of a single kind, which no other kind can hide.
    """
    logging.disable(logging.CRITICAL)
    package = "simulation.elastic" if mutation.module in ELASTIC else "simulation"
    simulate = importlib.import_module(f"{package}.world").simulate
    kinds = list(importlib.import_module(f"{package}.faults").KINDS)
    runs = ((seed, chosen) for seed in itertools.count(1) for chosen in ([], [kinds[seed % len(kinds)]]))
    begun = time.process_time()  # other processes may use the machine too
    while time.process_time() < begun + seconds:
        seed, chosen = next(runs)
        if simulate(seed, kinds=chosen).violations:
            print(f"seed {seed} {chosen}, {time.process_time() - begun:.1f} s", flush=True)
            return KILLED
    return ALIVE


def judge_by_tests(mutation: Mutation) -> int:
    """Run the unit tests of a mutant's package in this process; return whether one of them fails."""
    room = Path(*mutation.module.split(".")[:2])
    code = pytest.main(["-qx", "-p", "no:cacheprovider", str(ROOT / "tests" / "unit" / room)])
    return {pytest.ExitCode.OK: ALIVE, pytest.ExitCode.TESTS_FAILED: KILLED}.get(code, 1)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1, help="chooses the mutants")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the processor, for each")
    parser.add_argument("--elastic", action="store_true", help="change modules of elastic jobs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time")
    parser.add_argument(
        "--one", nargs=3, metavar=("MODULE", "NODE", "KIND"), help="judge one mutant in this process"
    )
    parser.add_argument("--by-tests", action="store_true", help="judge it by the unit tests")
    arguments = parser.parse_args()
    if arguments.one:
        module, node, kind = arguments.one
        mutation = Mutation(module, int(node), kind)
        sys.meta_path.insert(0, _Loader(mutation))
        return judge_by_tests(mutation) if arguments.by_tests else judge(mutation, arguments.seconds)
    modules = ELASTIC if arguments.elastic else MODULES
    known = [mutation for module in modules for mutation in mutations(module)]
    chosen = Random(arguments.seed).sample(known, min(arguments.count, len(known)))
    print(f"{len(chosen)} of {len(known)} mutants", flush=True)

    def is_killed(mutation: Mutation, limit_s: float, *options: str) -> bool:
        what = [sys.executable, "-P", __file__, *options, "--one", *map(str, mutation)]
        paths = os.pathsep.join(
            [str(ROOT), str(ROOT / "proto"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        )
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": paths}
        try:
            done = subprocess.run(what, env=environment, capture_output=True, timeout=limit_s, cwd=ROOT)
        except subprocess.TimeoutExpired:  # a mutant that never ends is noticed too
            return True
        if done.returncode not in (ALIVE, KILLED):
            raise RuntimeError(f"{mutation}: {(done.stdout + done.stderr).decode()[-2000:]}")
        return done.returncode == KILLED

    def killer_of(mutation: Mutation) -> str:
        if is_killed(mutation, 5 * arguments.seconds + 60, "--seconds", f"{arguments.seconds:g}"):
            return "simulation"
        return "tests" if is_killed(mutation, TESTS_S, "--by-tests") else "nothing"

    killed: Counter[tuple[str, str]] = Counter()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for mutation, killer in zip(chosen, pool.map(killer_of, chosen), strict=True):
            killed[mutation.module, killer] += 1
            if killer != "simulation":
                print(f"killed by {killer}: {mutated(mutation)[1]}", flush=True)
    for module in modules:
        print(module, *(f"{killer} {killed[module, killer]}" for killer in KILLERS))
    for killer in KILLERS:
        print(f"killed by {killer}: {sum(killed[module, killer] for module in modules)} of {len(chosen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
