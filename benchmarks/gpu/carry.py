"""Collect wheels for a GPU machine without a package registry: our missing requirements, and our own package.

    ssh that-machine pip list --format=freeze >there.txt
    python -m benchmarks.gpu.carry there.txt --python 3.12        # into .wheels/, which git ignores
    ssh that-machine 'python3 -m pip install --no-index --no-deps --target /tmp/site .wheels/*.whl'
    ssh that-machine 'PYTHONPATH=/tmp/site python3 -m benchmarks.gpu.proof results/'

A line of there.txt may be just a name. The package is then included if a certain version is required. Needs `pip`,
`packaging` and a registry here. Wheels are for Linux on x86-64.
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
#: Tools that run tests/gpu, in addition to our own requirements.
TOOLS = ("pytest>=8", "pytest-benchmark>=5", "pytest-timeout>=2.3", "hypothesis>=6.100", "packaging>=24")
PLATFORMS = (
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_24",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux1",
)
#: Maximum total size in bytes.
SIZE_MAX = 64 << 20


def packages(text: str) -> dict[str, str | None]:
    """Return the packages of a machine by canonical name, with a version or None if the list has none."""
    known: dict[str, str | None] = {}
    for line in text.split("\n"):
        words = line.partition("#")[0].replace("@", "==").split("==")
        if name := words[0].strip():
            version = words[1].strip() if len(words) > 1 else ""
            known[canonicalize_name(name)] = version if version[:1].isdigit() else None
    return known


def is_met(requirement: Requirement, there: Mapping[str, str | None]) -> bool:
    """Return whether a machine certainly meets a requirement."""
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
    """Return the requirements that a machine lacks, including their own requirements.

    Args:
        wanted: requirements in the form of pyproject.toml.
        there: see `packages`.
        python: Python version of the machine, such as "3.12".
        get: fetches a wheel, and returns its requirements.
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
    """Fetch a wheel, and return its requirements.

    Raises:
        subprocess.CalledProcessError: there is no wheel; pip has printed the reason.
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
