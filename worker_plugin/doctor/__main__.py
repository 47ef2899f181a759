"""Examine the reducers from all ranks together, and report what to fix first.

    torchrun --nnodes 4 --nproc-per-node 1 ... -m reduction_server.doctor \\
        --parameters 340M --compute 0.41

Run it in the same way as the training, with one process per host. Reducers,
certificates and tokens come from the REDUCTION_... variables as usual; the other
variables are ignored here. It takes about 20 s, and exits with the code of
`reducer doctor`: 0 good, 1 it works but slowly, 2 it does not work. Under
torchrun it exits with 0 if it works, however slowly, because torchrun prints a
traceback for any other code, and turns 2 into 1.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from reduction.discovery.platforms.automatic import Named
from reduction.errors import ConfigError, ReductionError
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from worker_plugin.config import PluginConfig, build
from worker_plugin.discovery import colocated
from worker_plugin.discovery.addresses import configured
from worker_plugin.doctor.clocks import offset_to_rank_0
from worker_plugin.doctor.look import LookFailed, judge, look
from worker_plugin.doctor.meeting import Meeting, MeetingFailed
from worker_plugin.doctor.rates import Rates, better
from worker_plugin.process import log_setup

#: Time limits in seconds for ranks to join, and for their examinations.
COME_S, LOOK_S = 30.0, 70.0
#: Time limit in seconds for Gloo's connections and pings.
GLOO_S = 20.0
#: Settings that a doctor needs; all others are for the training.
KEPT = ("reducers", "tls_cert", "tls_key", "tls_ca", "token_file", "job")
#: Options of `reducer doctor` for its verdict.
JUDGED = (
    "link",
    "parameters",
    "parameter-bytes",
    "compute",
    "bucket",
    "worker-price",
    "reducer-price",
    "steps",
)

#: Rank 0's input for `reducer doctor`: its `Facts`, as JSON fields.
Facts = dict[str, Any]


def main() -> None:
    """Run the doctor of one rank."""
    arguments = _arguments()
    torch.set_num_threads(1)
    # With our own handler, the many short jobs do not announce their connections.
    logging.basicConfig(level=logging.WARNING, format=log_setup.FORMAT)
    # It would warn that a single reducer is slower than a ring, each time one is measured alone.
    logging.getLogger(colocated.__name__).setLevel(logging.ERROR)
    try:
        config, settings = _settings(arguments.reducers)
        named = configured(config)
        if named is None:
            raise ConfigError("no reducers are named: set REDUCTION_REDUCERS or pass --reducers")
    except ConfigError as error:
        sys.exit(f"doctor: {error}")
    try:
        store, rank, ranks = _store(arguments.wait)
    except (KeyError, ValueError) as error:
        sys.exit(
            f"doctor: the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are for torchrun to set: {error}"
        )
    except dist.DistError as error:
        sys.exit(f"doctor: no connection to rank 0's host within {arguments.wait:g} s: {error}")
    meeting = Meeting(PrefixStore("reduction-doctor", store), rank, ranks, socket.gethostname())
    facts: Facts = {"workers": []}
    try:
        meeting.meet(socket.gethostname(), arguments.wait)
        _examine(meeting, store, facts, named, config, settings, arguments)
    except MeetingFailed as error:
        facts["failure"] = str(error)
    except (ReductionError, LookFailed, RuntimeError) as error:
        meeting.fail(str(error))
        facts["failure"] = str(error)
    code = 0
    if rank == 0:
        options = [
            f"--{name}={value}" for name in JUDGED if (value := getattr(arguments, name.replace("-", "_")))
        ]
        options += ["--json"] if arguments.json else []
        code = _last_word(facts, options)
    if code == 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        code = 0  # torchrun prints a traceback for any other code, and cannot tell 1 from 2
    meeting.leave(5.0)
    # All output is done, and every stream has been closed. Tearing down torch would take a second.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _examine(
    meeting: Meeting,
    store: Store,
    facts: Facts,
    named: Named,
    config: PluginConfig,
    settings: Mapping[str, Any],
    arguments: argparse.Namespace,
) -> None:
    """Measure everything, and record the results as they arrive.

    Raises:
        MeetingFailed: a rank is missing, or has failed.
        ReductionError: the data plane has failed.
        LookFailed: this rank cannot examine the reducers.
        RuntimeError: Gloo's connections have failed.
    """
    job = config.job or meeting.exchange(f"doctor-{secrets.token_hex(4)}", COME_S, "the start")[0]
    own = look(named.texts, job, config) | {"rank": meeting.rank, "source": named.source}
    facts["workers"] = meeting.exchange(own, LOOK_S, "the check of the reducers")
    _connect_gloo(meeting, own, store)
    clock_s, error_s = offset_to_rank_0(meeting.rank, meeting.ranks)
    clock = {"clock_s": clock_s, "clock_error_s": error_s}
    for worker, its in zip(
        facts["workers"], meeting.exchange(clock, GLOO_S, "the comparison of clocks"), strict=True
    ):
        worker |= its
    usable, facts["unmeasured"] = _usable(facts["workers"], arguments)
    if not usable or facts["unmeasured"]:
        return
    rates = Rates(meeting, job, is_exact=config.job is not None, settings=settings)
    facts |= {"alone": [], "incast": []}
    for rows in rates.alone(usable):
        facts["alone"] = better(facts["alone"], rows)
    if meeting.ranks > 1:
        for rows in rates.incast(usable):
            facts["incast"] += rows
    facts["together"] = rates.together(usable)
    if meeting.ranks > 1:
        facts["ring"] = rates.ring()


def _usable(workers: Sequence[Mapping[str, Any]], arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Return the given addresses that every rank can use, and why nothing is to be measured with them."""
    reducers = [reducer for worker in workers for reducer in worker["reducers"]]
    broken = {reducer["given"] for reducer in reducers if reducer["trouble"]}
    usable = [address for address in workers[0]["addresses"] if address not in broken]
    jobs = sorted({job for reducer in reducers for job in reducer["jobs"]})
    if arguments.no_rates:
        return usable, "--no-rates"
    if jobs and not arguments.anyway:
        names = ", ".join(map(repr, jobs))
        return usable, f"job {names} is running there; --anyway measures all the same, and slows it"
    return usable, ""


def _store(wait_s: float) -> tuple[Store, int, int]:
    """Return the launcher's store, this rank and the number of ranks.

    `torch.distributed.rendezvous` would wait for all ranks, without reporting which one is missing.

    Raises:
        KeyError: a variable is missing.
        ValueError: one is not a number.
        DistError: there is no connection.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    is_master = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        ranks,
        is_master,
        timeout=timedelta(seconds=wait_s),
        wait_for_workers=False,
    )
    return store, rank, ranks


def _connect_gloo(meeting: Meeting, own: Mapping[str, Any], store: Store) -> None:
    """Create the default process group, over the interface that leads to the reducers."""
    paths = [reducer["path"] for reducer in own["reducers"] if reducer["path"]]
    interface = next((path["interface"] for path in paths if path["interface"]), "")
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group(
        "gloo",
        store=PrefixStore("reduction-doctor-gloo", store),
        rank=meeting.rank,
        world_size=meeting.ranks,
        timeout=timedelta(seconds=GLOO_S),
    )


def _last_word(facts: Facts, options: Sequence[str]) -> int:
    if not facts["workers"]:
        print(f"BROKEN ranks: {facts['failure']}\n\nit does not work", flush=True)
        return 2
    return judge(facts, options)


def _settings(reducers: str | None) -> tuple[PluginConfig, dict[str, Any]]:
    """Return the settings that matter, including those for the jobs. The other variables are hidden from the jobs.

    Raises:
        ConfigError: a setting is wrong.
    """
    config = build({"reducers": reducers})
    kept = {name: getattr(config, name) for name in KEPT}
    for name in [name for name in os.environ if name.startswith("REDUCTION_")]:
        if name != "REDUCTION_REDUCERS":
            del os.environ[name]
    return build(kept), {name: kept[name] for name in KEPT if name.startswith("t")}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m reduction_server.doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reducers", help="instead of REDUCTION_REDUCERS")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--no-rates", action="store_true", help="do not measure bandwidth")
    parser.add_argument(
        "--anyway", action="store_true", help="measure even if jobs are running, which slows them"
    )
    parser.add_argument(
        "--wait", type=float, default=COME_S, metavar="SECONDS", help="how long to wait for all ranks to join"
    )
    for name in JUDGED:
        parser.add_argument(f"--{name}", help=f"as for `reducer doctor --{name}`")
    return parser.parse_args()


if __name__ == "__main__":
    main()
