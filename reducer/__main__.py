"""The `reducer` command, as `python -m reducer` or when this file is run by its path.

`launch.reducer_command` runs it by its path. It then uses the packages `reducer` and `reduction` of
the process that started it, and the installed packages for everything else. No user folder precedes
these. PYTHONPATH comes last, and the working directory is not used at all.
"""

import importlib.util
import os
import sys


def _find_packages() -> None:
    """Set `sys.path` and import `reducer` and `reduction`, which cannot be imported before."""
    path = os.environ.get("PYTHONPATH")
    # An empty entry means the working directory.
    user = [os.path.abspath(entry) for entry in path.split(os.pathsep)] if path else []
    handed = [entry for entry in os.environ.get("REDUCTION_START_PATH", "").split(os.pathsep) if entry]
    handed += [entry for entry in user if entry != os.getcwd()]
    sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) not in user]
    sys.path += [entry for entry in dict.fromkeys(handed) if entry not in sys.path]
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    _load("reducer", folder)
    beside = [entry for entry in (*handed, folder) if os.path.exists(os.path.join(entry, "reduction", "v1"))]
    if beside:
        _load("reduction", beside[0])


def _load(name: str, folder: str) -> None:
    package = os.path.join(folder, name)
    init = os.path.join(package, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[package])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


if __spec__ is None:
    _find_packages()

from reducer.commands.main import main  # noqa: E402

main(prog_name="reducer")
