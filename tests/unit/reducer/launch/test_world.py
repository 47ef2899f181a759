"""The environment of a training process on one of several hosts."""

import pytest
from reduction.discovery.cluster import Cluster
from reduction.errors import ConfigError

from reducer.launch.serving import serve_options
from reducer.launch.world import check, variables

WORKER = Cluster("vertex", ("r:2222",), ("chief", "w-0", "w-1"), "worker", 2)
REDUCER = Cluster("vertex", ("r:2222",), ("chief", "w-0", "w-1"), "reducer", 0, "0.0.0.0:2222")
TORCHRUN = ("torchrun", "--nproc-per-node", "4")
MODULE = ("python", "-m", "torch.distributed.run")


def test_the_world_excludes_reducers():
    assert variables(WORKER, 29500) == {
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": "chief",
        "PET_MASTER_PORT": "29500",
        "MASTER_ADDR": "chief",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "3",
        "RANK": "2",
        "NODE_RANK": "2",
    }


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ((*TORCHRUN, "train.py"), {}),
        ((*TORCHRUN, "--nnodes=3", "train.py"), {"PET_NNODES": "3"}),
        ((*TORCHRUN, "--nnodes", "1:3", "train.py"), {"SLURM_LOCALID": "0"}),
        ((*TORCHRUN, "train.py", "--nnodes", "7", "--standalone"), {}),
        (("python", "train.py"), {}),
        (("torchrun", "--nnodes"), {}),
    ],
)
def test_matching_commands_pass(command, environ):
    check(WORKER, command, environ)


@pytest.mark.parametrize(
    ("command", "environ", "message"),
    [
        ((*TORCHRUN, "--nnodes", "4", "train.py"), {}, "--nnodes is 4, but vertex has 3 hosts with workers"),
        ((*MODULE, "--nnodes=2", "train.py"), {}, "--nnodes is 2, but vertex has 3 hosts with workers"),
        ((*TORCHRUN, "--standalone", "train.py"), {}, "--standalone trains on one host, but vertex has 3"),
        ((*TORCHRUN, "train.py"), {"PET_NNODES": "5"}, "PET_NNODES is 5, but vertex has 3 hosts"),
        ((*TORCHRUN, "train.py"), {"SLURM_LOCALID": "1"}, "SLURM_LOCALID is 1: `reducer run` runs once per"),
    ],
)
def test_contradictory_commands_are_refused(command, environ, message):
    with pytest.raises(ConfigError) as caught:
        check(WORKER, command, environ)
    assert message in str(caught.value)


NOTHING = {"exit-after-job": None, "wait-for-job": None}


@pytest.mark.parametrize(
    ("given", "insecure", "environ", "expected"),
    [
        (NOTHING, True, {}, "--bind 0.0.0.0:2222 --exit-after-job 30 --wait-for-job 1800 --insecure"),
        (NOTHING, False, {"REDUCER_BIND": "10.0.0.5:2222"}, "--exit-after-job 30 --wait-for-job 1800"),
        (
            {"exit-after-job": None, "wait-for-job": 0.5},
            False,
            {"REDUCER_EXIT_AFTER_JOB": "9", "REDUCER_WAIT_FOR_JOB": "9"},
            "--bind 0.0.0.0:2222 --wait-for-job 0.5",
        ),
    ],
)
def test_options_of_serve(given, insecure, environ, expected):
    assert " ".join(serve_options(REDUCER, given, insecure=insecure, environ=environ)) == expected
