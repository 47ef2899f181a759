"""A host with a reducer: `reducer run` becomes `reducer serve`, which ends with the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from reduction.discovery.cluster import Cluster
from reduction.process.launch import SETTINGS_PREFIX, reducer_command

#: How long a reducer stays after its last job, so that a restarted training finds it, and how long it waits
#: for its first job, in seconds.
EXIT_AFTER_JOB_S = 30.0
WAIT_FOR_JOB_S = 1800.0


def serve_options(
    cluster: Cluster, given: Mapping[str, float | None], *, insecure: bool, environ: Mapping[str, str]
) -> list[str]:
    """Return the options of `reducer serve` on this host.

    Variables for options of `serve` take effect; only options that the user gives to `reducer run` override
    them.

    Args:
        cluster: the cluster in which this host has a reducer.
        given: values of `exit-after-job` and `wait-for-job`; None for the default.
        insecure: whether to trust everyone on the network.
        environ: the environment.
    """
    assert cluster.bind is not None
    defaults = {"exit-after-job": EXIT_AFTER_JOB_S, "wait-for-job": WAIT_FOR_JOB_S}
    options = [] if "REDUCER_BIND" in environ else ["--bind", cluster.bind]
    for name, default in defaults.items():
        variable = SETTINGS_PREFIX + name.replace("-", "_").upper()
        if (value := given[name]) is not None or variable not in environ:
            options += [f"--{name}", f"{default if value is None else value:g}"]
    return [*options, *(["--insecure"] if insecure else [])]


def become_reducer(options: Sequence[str]) -> NoReturn:
    """Replace this process by `reducer serve`, so that it receives our signals and its exit code is ours."""
    command, environment = reducer_command(Path(__file__).parents[2], with_settings=True)
    sys.stderr.flush()
    sys.stdout.flush()
    os.execve(command[0], [*command, "serve", *options], environment)
