"""`reduction_server`, the module that documents, examples and messages name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import reduction

import reduction_server
import worker_plugin

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import reduction_server as rs
assert issubclass(rs.errors.ConfigError, ValueError | Exception)
print(rs.__version__, "numpy" in sys.modules)
try:
    rs.attach
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["ReductionState", "attach", "reduction_hook", "errors", "__version__"])
def test_its_names_are_those_of_worker_plugin(name):
    assert getattr(reduction_server, name) is getattr(worker_plugin, name)
    assert name in dir(reduction_server)
    assert name in reduction_server.__all__


def test_other_names_raise_attribute_error():
    with pytest.raises(AttributeError, match="'reduction_server' has no attribute 'atach'"):
        _ = reduction_server.atach


def test_it_can_be_imported_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60, check=True
    )
    version, missing = done.stdout.splitlines()
    assert version == f"{reduction.__version__} False"
    assert "torch" in missing


def test_it_does_not_load_the_compiler():
    """Loading the compiler takes more than a second."""
    script = "import reduction_server as rs, sys; rs.attach; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], timeout=100, check=True)


@pytest.mark.parametrize("module", ["process_group", "elastic", "horovod", "doctor"])
def test_its_modules_need_no_framework(module):
    found = __import__(f"reduction_server.{module}", fromlist=["x"])
    assert all(hasattr(found, name) for name in getattr(found, "__all__", ["main"]))


def test_documents_and_examples_use_only_public_names():
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.py")]
    pattern = re.compile(r"(from|import|-m) (worker_plugin|reduction)(\.| )")
    assert [path.name for path in files if pattern.search(path.read_text())] == []
