"""Runs a script whose process groups of Gloo have the backend "reduction": `-m ...with_backend SCRIPT`."""

from __future__ import annotations

import runpy
import sys

from support.asking_for import ask_for

if __name__ == "__main__":
    ask_for("reduction")
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
