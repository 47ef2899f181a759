"""The role that `reducer run` assigns to a host, from documents in the platforms' formats."""

import json
import socket

import pytest
from reduction.errors import ConfigError

from reducer.launch.role import Request, find, is_own

NOBODY = {"SAGEMAKER_BASE_DIR": "/nowhere"}
VERTEX = {
    "cluster": {
        "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
        "workerpool1": ["cmle-training-workerpool1-ab-0:2222"],
        "workerpool2": ["cmle-training-workerpool2-ab-0:2222", "cmle-training-workerpool2-ab-1:2222"],
    },
    "environment": "cloud",
}
SLURM = {
    "SLURM_JOB_NODELIST_HET_GROUP_0": "gpu[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu-red[01-02]",
    "SLURM_JOB_ID": "4711",
}


def vertex(pool, index, **pools):
    document = VERTEX | {"task": {"type": pool, "index": index}}
    document["cluster"] = {**VERTEX["cluster"], **pools}
    return NOBODY | {"CLUSTER_SPEC": json.dumps(document)}


def sagemaker(host, **groups):
    groups = groups or {"gpu": ["algo-1", "algo-3"], "reducers": ["algo-2"]}
    listed = [{"instance_group_name": name, "hosts": hosts} for name, hosts in groups.items()]
    return {"SM_RESOURCE_CONFIG": json.dumps({"current_host": host, "instance_groups": listed})}


def error(request, environ):
    with pytest.raises(ConfigError) as caught:
        find(request, environ)
    return str(caught.value)


@pytest.mark.parametrize(
    ("request_", "environ", "expected"),
    [
        (Request(), vertex("workerpool0", 0), ("worker", 0, 2, 2, None)),
        (Request(), vertex("workerpool1", 0), ("worker", 1, 2, 2, None)),
        (Request(), vertex("workerpool2", 1), ("reducer", 1, 2, 2, "0.0.0.0:2222")),
        (Request(), vertex("workerpool1", 0, workerpool2=[]), ("worker", 1, 2, 0, None)),
        (Request(), sagemaker("algo-3"), ("worker", 1, 2, 1, None)),
        (Request(), sagemaker("algo-2"), ("reducer", 0, 2, 1, "0.0.0.0:50051")),
        (Request(), sagemaker("algo-2", gpu=["algo-1", "algo-2"]), ("worker", 1, 2, 0, None)),
        (
            Request(cluster="sagemaker:cpu:6000"),
            sagemaker("b", cpu=["b"], gpu=["a"]),
            ("reducer", 0, 1, 1, "0.0.0.0:6000"),
        ),
        (
            Request(cluster="slurm:1:50051"),
            SLURM | {"SLURMD_NODENAME": "cpu-red02"},
            ("reducer", 1, 2, 2, "0.0.0.0:50051"),
        ),
        (Request(cluster="slurm:1:50051"), SLURM | {"SLURMD_NODENAME": "gpu1"}, ("worker", 0, 2, 2, None)),
        (
            Request(),
            SLURM | {"SLURMD_NODENAME": "gpu2", "REDUCTION_REDUCERS": "slurm:1:50051"},
            ("worker", 1, 2, 2, None),
        ),
        (
            Request(cluster="slurm:nodes=gpu2:50051"),
            {"SLURM_JOB_NODELIST": "gpu[1-3]", "SLURMD_NODENAME": "gpu3"},
            ("worker", 1, 2, 1, None),
        ),
        (Request(hosts="a,b", reducer_hosts="c", host="c"), NOBODY, ("reducer", 0, 2, 1, "0.0.0.0:50051")),
        (Request(hosts="a,b", host="b"), vertex("workerpool2", 0), ("worker", 1, 2, 0, None)),
    ],
)
def test_roles(request_, environ, expected):
    found = find(request_, environ)
    assert (found.role, found.index, len(found.workers), len(found.reducers), found.bind) == expected


@pytest.mark.parametrize(
    "environ",
    [
        NOBODY,
        vertex("workerpool0", 0) | {"REDUCTION_REDUCERS": "red-0:50051"},
        vertex("workerpool0", 0) | {"REDUCTION_REDUCERS": "file:/etc/reducers"},
        vertex("workerpool0", 0) | {"REDUCTION_REDUCERS": "slurm:1:50051,slurm:2:50051"},
        vertex("workerpool0", 0, workerpool1=[], workerpool2=[]),
        sagemaker("algo-1", homogeneousCluster=["algo-1"]),
        NOBODY | SLURM,
    ],
)
def test_no_role_on_one_machine_or_with_reducers_started_elsewhere(environ):
    assert find(Request(), environ) is None


@pytest.mark.parametrize(
    ("request_", "environ", "message"),
    [
        (
            Request(),
            vertex("workerpool3", 0),
            f"vertex gives this host ({socket.gethostname()}) no role: workers are cmle-training-workerpool0-ab-0, ",
        ),
        (Request(), vertex("workerpool2", 7), "CLUSTER_SPEC is not what Vertex AI writes (task.index is 7"),
        (Request(), {"CLUSTER_SPEC": "{"}, "CLUSTER_SPEC is not what Vertex AI writes"),
        (Request(), {"SM_RESOURCE_CONFIG": "[]"}, "resourceconfig.json is not what SageMaker writes"),
        (
            Request(),
            vertex("workerpool0", 0) | sagemaker("algo-1"),
            "both CLUSTER_SPEC and SageMaker's resourceconfig.json exist: unset one",
        ),
        (Request(cluster="vertex:"), NOBODY, "CLUSTER_SPEC is not set"),
        (Request(cluster="slurm:2:50051"), SLURM, "SLURM_JOB_NODELIST_HET_GROUP_2 is not set"),
        (
            Request(cluster="slurm:1:50051"),
            SLURM,
            "no role: workers are gpu1, gpu2, reducers cpu-red01:50051, cpu-red02:50051",
        ),
        (
            Request(cluster="slurm:nodes=a:50051"),
            {"SLURM_JOB_NODELIST": "a", "SLURMD_NODENAME": "a"},
            "--cluster 'slurm:nodes=a:50051' does not say which hosts have workers",
        ),
        (Request(cluster="red-0:50051"), NOBODY, "--cluster 'red-0:50051' names no platform"),
        (Request(cluster="vertex:", hosts="a"), NOBODY, "--cluster vertex: and --hosts were both given"),
        (Request(port=6000), NOBODY, "--port and --host belong to --hosts and --reducer-hosts"),
        (
            Request(hosts="a", reducer_hosts="b", host="c"),
            NOBODY,
            "--hosts gives this host (c) no role: workers are a, reducers b:50051",
        ),
        (Request(reducer_hosts="b", host="b"), NOBODY, "--hosts '' names no host with workers"),
    ],
)
def test_invalid_clusters_are_refused(request_, environ, message):
    assert message in error(request_, environ)
    assert "\n" not in error(request_, environ)


def test_a_host_is_known_by_its_name_and_by_its_addresses():
    assert is_own(socket.gethostname(), None)
    assert is_own(socket.gethostname().partition(".")[0] + ".some.where", None)
    assert is_own("127.0.1.9", None)
    assert not is_own("192.0.2.1", None)  # RFC 5737: no host has this address
    assert not is_own("no-such-host.invalid", None)
    assert is_own("other", "other")
    assert not is_own("127.0.1.9", "127.0.1.8")
