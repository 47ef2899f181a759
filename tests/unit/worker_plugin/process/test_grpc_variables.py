"""gRPC reads its variables when it is imported, which `import worker_plugin` does, so they must be set before."""

import os
import subprocess
import sys

import pytest

#: Prints the variables at the moment gRPC is first imported.
SCRIPT = """
import os, sys

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"), os.environ.get("GRPC_VERBOSITY"))

sys.meta_path.insert(0, Watch)
import worker_plugin
"""


@pytest.mark.parametrize(("given", "expected"), [({}, "0 ERROR"), ({"GRPC_VERBOSITY": "INFO"}, "0 INFO")])
def test_they_are_set_before_grpc_is_imported(given, expected):
    without = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=without | given)
    assert done.stdout == f"{expected}\n", done.stderr
