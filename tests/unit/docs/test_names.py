"""Documents and comments name files and modules. After a renaming they must follow."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[3]
#: The change log is exempt, because it describes the past.
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "proto/README.md",
    "docs/**/*.md",
]

#: A file with one of our own files' endings, and any folders written before it.
_FILE = re.compile(r"(?<![\w/.:*<-])(?:[\w-]+/)*[\w-]+\.(?:py|pyi|proto|sh|svg|yml)\b(?![\w/*-])")
#: A folder of a package or of the tests, such as `worker_plugin/core/`.
_FOLDER = re.compile(r"`((?:proto/|reducer/|worker_plugin/|tests/|benchmarks/|docs/|examples/)[\w/-]*)`")
_MODULE = re.compile(
    r"(?<![\w./-])(?:reduction|reducer|worker_plugin|benchmarks)(?:\.(?!pem|key)[A-Za-z_]\w*)+(?![\w/(])"
)
#: Files that our sources name but that belong to others: torch, grpc, click.
_FOREIGN = {
    "torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py",
    "powerSGD_hook.py",
    "grpc.py",
    "click.py",
}
#: Files that a document's command writes.
_WRITTEN = {"picture.svg"}
#: The path in a Markdown link; links to other sites have a colon.
_LINK = re.compile(r"\]\(([^):#]+)(?:#[\w-]*)?\)")
#: Packages, and the folders that contain them.
_PACKAGES = {"reduction": "proto", "reducer": ".", "worker_plugin": ".", "benchmarks": "."}


def _tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git repository")
    return set(listed.stdout.splitlines())


TRACKED = _tracked()
FOLDERS = {str(parent) for path in TRACKED for parent in PurePosixPath(path).parents}
PAGES = sorted(path.relative_to(ROOT) for pattern in DOCUMENTS for path in ROOT.glob(pattern))
SOURCES = sorted(
    path
    for path in TRACKED
    if path.startswith(("proto/", "reducer/", "worker_plugin/", "benchmarks/", "examples/"))
    and path.endswith((".py", ".proto"))
    and not path.endswith("_pb2.py")
)


def _unknown_files(text: str) -> set[str]:
    """Return the files that a text names and that do not exist.

    A name may be the end of a path, because a sentence may name the folder once for several files.
    """
    return {
        name for name in _FILE.findall(text) if not any(f"/{path}".endswith(f"/{name}") for path in TRACKED)
    }


def test_every_file_named_in_a_comment_exists():
    missing = {path: _unknown_files((ROOT / path).read_text()) - _FOREIGN for path in SOURCES}
    assert not {path: names for path, names in missing.items() if names}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_file_named_in_a_document_exists(page):
    text = (ROOT / page).read_text()
    missing = _unknown_files(text) - _WRITTEN
    missing |= {name for name in _FOLDER.findall(text) if name.rstrip("/") not in TRACKED | FOLDERS}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_module_named_in_a_document_exists(page):
    missing = {name for name in _MODULE.findall((ROOT / page).read_text()) if not _is_there(name)}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_of_a_document_leads_to_a_file(page):
    """The site's own check reads only the pages in docs/."""
    links = _LINK.findall((ROOT / page).read_text())
    assert not {link for link in links if not (ROOT / page.parent / link).exists()}


def _is_there(name: str) -> bool:
    """Whether a module of that name exists, or one that has the rest of the name as an attribute."""
    package, *parts = name.split(".")
    place = ROOT / _PACKAGES[package] / package
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if parts and (place / f"{parts[0]}.py").is_file():
        place /= f"{parts.pop(0)}.py"
    source = place if place.is_file() else place / "__init__.py"
    return not parts or (source.is_file() and re.search(rf"\b{parts[0]}\b", source.read_text()) is not None)
