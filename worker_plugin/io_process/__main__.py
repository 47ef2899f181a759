"""The I/O process of a rank, run by its path; see remote.py, which starts it.

It uses the packages of the process that started it, and otherwise the installed packages. No folder of the
user's precedes those, and the working directory is not used at all. `reducer/__main__.py` does the same for
reducers; neither can import anything before this.
"""

import importlib.util
import os
import sys


def _find_packages() -> None:
    """Set `sys.path`, and import `reduction` and `worker_plugin` from the folders passed by the parent."""
    handed = [entry for entry in os.environ.get("REDUCTION_START_PATH", "").split(os.pathsep) if entry]
    sys.path += [entry for entry in handed if entry not in sys.path]
    for name, marker in (("reduction", "v1"), ("worker_plugin", "io_process")):
        folder = next(entry for entry in handed if os.path.exists(os.path.join(entry, name, marker)))
        package = os.path.join(folder, name)
        init = os.path.join(package, "__init__.py")
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[package])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


if __spec__ is None:
    _find_packages()

from worker_plugin.io_process.child import main  # noqa: E402

main()
