"""What other programs call by an entry point: torch, and the console script `reducer`.

Torch 2.5 and newer call `on_import_torch` at the end of every `import torch`
(TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns that off); 2.14 and newer call `register_backend` when the backend
"reduction" is first named. An exception there would break `import torch` in every program of the
environment. So this module costs next to nothing, imports our packages only where they are wanted, and
has a name that no user's file has: what lies beside a script comes before our packages in `sys.path`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import runpy
import sys
from importlib.machinery import PathFinder
from typing import Any

NAME = "reduction"
VARIABLE = "REDUCTION_AUTO"
#: The packages that a worker needs, and a module of each by which we know it.
_PACKAGES = {"reduction": "rails", "worker_plugin": "process_group"}


def on_import_torch() -> None:
    """Register the backend; with REDUCTION_AUTO, have DDP modules average through the reducers. Never raises."""
    wanted = ""
    try:
        register_backend()
        if wanted := os.environ.get(VARIABLE, ""):
            require_packages()
            from worker_plugin.integrations.auto import install

            install(wanted)
    except (Exception, SystemExit) as error:
        what = f"{VARIABLE}={wanted} has no effect" if wanted else "not loaded into torch"
        why = str(error) if isinstance(error, ImportError) else repr(error)
        with contextlib.suppress(Exception):  # stderr may be closed
            print(f"reduction-server: {what}: {why}", file=sys.stderr, flush=True)


def register_backend() -> None:
    """Make the backend known to torch, which then imports `worker_plugin` to make a group. Idempotent."""
    import torch.distributed as dist

    if not dist.is_available() or NAME.upper() in dist.Backend._plugins:
        return
    # A list: of a string torch 2.13 would take the letters for devices.
    dist.Backend.register_backend(NAME, _make_group, extended_api=True, devices=["cpu", "cuda"])


def _make_group(options: Any, pg_options: object) -> Any:
    require_packages()
    from worker_plugin.process_group.register import make_group

    return make_group(options, pg_options)


def require_packages() -> None:
    """Return if our packages are what an import of their names finds. Does not run what it finds.

    Raises:
        ImportError: a module of somebody else comes first; the message says where it is.
    """
    for name, known_by in _PACKAGES.items():
        if (found := sys.modules.get(name)) is not None:
            path, file = getattr(found, "__path__", None), getattr(found, "__file__", None)
        elif (spec := importlib.util.find_spec(name)) is not None:
            path, file = spec.submodule_search_locations, spec.origin
        else:
            continue  # the import itself says best what is missing
        if path is None or PathFinder.find_spec(f"{name}.{known_by}", path) is None:
            where = file or ", ".join(path or ()) or "a module without a file"
            raise ImportError(
                f"{where} hides the package {name!r} of reduction-server: rename it, or keep its folder out of "
                f"sys.path",
                name=name,
                path=file,
            )


def reducer() -> None:
    """Run the command `reducer`, whatever modules lie in folders of PYTHONPATH."""
    mains = (os.path.join(folder, "reducer", "__main__.py") for folder in sys.path)
    ours = (
        main for main in mains if os.path.exists(os.path.join(os.path.dirname(main), "commands", "main.py"))
    )
    runpy.run_path(next(ours), run_name="__main__")
