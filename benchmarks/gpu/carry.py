"""Wheels for a machine with a GPU and without a package registry: what we need and it lacks, and our own.

    ssh that-machine pip list --format=freeze >there.txt
    python -m benchmarks.gpu.carry there.txt --python 3.12        # into .wheels/, which git ignores
    ssh that-machine 'python3 -m pip install --no-index --no-deps --target /tmp/site .wheels/*.whl'
    ssh that-machine 'PYTHONPATH=/tmp/site python3 -m benchmarks.gpu.proof results/'

A line of there.txt may be a name alone. Then a package that must have some version is carried too. Needs `pip`,
`packaging` and a registry here; wheels are those for Linux on x86-64.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from email.parser import BytesParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
#: What runs tests/gpu, beside our own requirements.
TOOLS = ("pytest>=8", "pytest-benchmark>=5", "pytest-timeout>=2.3", "hypothesis>=6.100", "packaging>=24")
PLATFORMS = (
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_24",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux1",
)
#: So much may travel at once, in bytes.
SIZE_MAX = 64 << 20


def packages(text: str) -> dict[str, str | None]:
    """Return the packages that a machine has, by canonical name: a version, or None if the list does not say it."""
    known: dict[str, str | None] = {}
    for line in text.split("\n"):
        words = line.partition("#")[0].replace("@", "==").split("==")
        if name := words[0].strip():
            version = words[1].strip() if len(words) > 1 else ""
            known[canonicalize_name(name)] = version if version[:1].isdigit() else None
    return known


def is_met(requirement: Requirement, there: Mapping[str, str | None]) -> bool:
    """Whether a machine is sure to have what is required."""
    name = canonicalize_name(requirement.name)
    if name not in there:
        return False
    version = there[name]
    if version is None:
        return not requirement.specifier
    return requirement.specifier.contains(version, prereleases=True)


def lacking(
    wanted: Iterable[str],
    there: Mapping[str, str | None],
    python: str,
    get: Callable[[Requirement], Iterable[str]],
) -> list[Requirement]:
    """Return what a machine lacks, each with what it needs itself.

    Args:
        wanted: requirements as pyproject.toml has them.
        there: see `packages`.
        python: its version, "3.12".
        get: fetches a wheel, and returns the requirements in it.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    left, found = list(wanted), dict[str, Requirement]()
    while left:
        requirement = Requirement(left.pop())
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate(environment)
        if not applies or name in found or is_met(requirement, there):
            continue
        found[name] = requirement
        left += get(requirement)
    return list(found.values())


def download(requirement: Requirement, folder: Path, python: str) -> list[str]:
    """Fetch a wheel; return the requirements in it.

    Raises:
        subprocess.CalledProcessError: there is none; pip has said why.
    """
    before = set(folder.glob("*.whl"))
    platforms = [f"--platform={name}_x86_64" for name in PLATFORMS]
    options = [
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        f"--python-version={python}",
        "--implementation=cp",
    ]
    plain = f"{requirement.name}{requirement.specifier}"
    command = [sys.executable, "-m", "pip", "download", *options, *platforms, "-d", str(folder), plain]
    subprocess.run(command, check=True)
    return [line for path in set(folder.glob("*.whl")) - before for line in requirements_of(path)]


def requirements_of(wheel: Path) -> list[str]:
    """Return the requirements of a wheel, with their markers."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return BytesParser().parsebytes(archive.read(name)).get_all("Requires-Dist", [])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.carry",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("there", type=Path, help="what `pip list --format=freeze` says there")
    parser.add_argument("--python", default="3.12", help="its version there (%(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".wheels", help="(%(default)s)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for old in given.folder.glob("*.whl"):
        old.unlink()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["torch"], *TOOLS]
    there = packages(given.there.read_text())
    lacking(wanted, there, given.python, lambda one: download(one, given.folder, given.python))
    own = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(given.folder), str(ROOT)]
    subprocess.run(own, check=True)
    wheels = sorted(given.folder.glob("*.whl"))
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1e6:7.2f} MB  {wheel.name}")
    total = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{total / 1e6:7.2f} MB  in {given.folder}")
    if total > SIZE_MAX:
        sys.exit(f"that is more than {SIZE_MAX >> 20} MiB: name more of what is there, with versions")


if __name__ == "__main__":
    main()
