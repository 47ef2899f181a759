"""Where a reducer that nobody told an address is."""

import json

import pytest
from reduction.discovery.own_place import own_place
from reduction.errors import ConfigError

NOBODY = {"SAGEMAKER_BASE_DIR": "/nowhere"}


def vertex(pool, index=0, **pools):
    pools = pools or {"workerpool0": ["chief:2222"], "workerpool2": ["r-0:2222", "r-1:2222"]}
    return NOBODY | {"CLUSTER_SPEC": json.dumps({"cluster": pools, "task": {"type": pool, "index": index}})}


def sagemaker(host, **groups):
    groups = groups or {"gpu": ["algo-1"], "reducers": ["algo-3", "algo-2"]}
    listed = [{"instance_group_name": name, "hosts": hosts} for name, hosts in groups.items()]
    return {"SM_RESOURCE_CONFIG": json.dumps({"current_host": host, "instance_groups": listed})}


SLURM = NOBODY | {
    "SLURM_JOB_NODELIST_HET_GROUP_0": "gpu[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu-red[01-02]",
    "SLURM_STEP_NODELIST": "cpu-red[01-02]",
    "SLURMD_NODENAME": "cpu-red02",
}


@pytest.mark.parametrize(
    ("environ", "source", "bind", "index", "reducers"),
    [
        (vertex("workerpool2", 1), "CLUSTER_SPEC", "0.0.0.0:2222", 1, ("r-0:2222", "r-1:2222")),
        (
            sagemaker("algo-3"),
            "SageMaker's resourceconfig.json",
            "0.0.0.0:50051",
            1,
            ("algo-2:50051", "algo-3:50051"),
        ),
        (SLURM, "SLURM_STEP_NODELIST", "0.0.0.0:50051", 1, ("cpu-red01:50051", "cpu-red02:50051")),
        (
            SLURM | {"REDUCTION_REDUCERS": "slurm:1:6000"},
            "REDUCTION_REDUCERS=slurm:1:6000",
            "0.0.0.0:6000",
            1,
            ("cpu-red01:6000", "cpu-red02:6000"),
        ),
        (
            sagemaker("algo-1", cpu=["algo-1"]) | {"REDUCTION_REDUCERS": "sagemaker:cpu:7000"},
            "REDUCTION_REDUCERS=sagemaker:cpu:7000",
            "0.0.0.0:7000",
            0,
            ("algo-1:7000",),
        ),
    ],
)
def test_a_reducer(environ, source, bind, index, reducers):
    cluster, says = own_place(environ)
    assert says == source
    assert (cluster.bind, cluster.index, cluster.reducers) == (bind, index, reducers)


@pytest.mark.parametrize(
    "environ",
    [
        NOBODY,
        NOBODY | {"REDUCTION_REDUCERS": "10.0.0.5:50051, file:/nowhere"},
        vertex("workerpool0", workerpool0=["chief:2222"]),
        sagemaker("algo-1", gpu=["algo-1"]),
        NOBODY | {"SLURM_JOB_NODELIST": "a", "SLURMD_NODENAME": "a"},  # in the batch script, no step
        NOBODY | {"SLURM_STEP_NODELIST": "a"},
    ],
)
def test_no_place(environ):
    assert own_place(environ) is None


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        (
            vertex("workerpool0"),
            "CLUSTER_SPEC says that this host is worker 0 of 1, and that reducers serve at r-0:2222, r-1:2222: run the "
            "training here, or give --bind (REDUCER_BIND) to serve on this host too",
        ),
        (vertex("workerpool3"), "CLUSTER_SPEC says that this host is none of the workers or reducers, and"),
        (sagemaker("algo-1"), "SageMaker's resourceconfig.json says that this host is worker 0 of 1, and"),
        (
            SLURM | {"REDUCTION_REDUCERS": "slurm:0:6000"},
            "REDUCTION_REDUCERS=slurm:0:6000 says that this host is worker 1 of 2, and",
        ),
        (NOBODY | {"REDUCTION_REDUCERS": "vertex:"}, "reducers 'vertex:': CLUSTER_SPEC is not set"),
        (
            NOBODY | {"CLUSTER_SPEC": "[]"},
            "CLUSTER_SPEC is not what Vertex AI writes (it is not an object): []",
        ),
        (vertex("workerpool2") | sagemaker("algo-2"), "two platforms name reducers, CLUSTER_SPEC ("),
        (SLURM | {"SLURM_STEP_NODELIST": "a["}, "node list 'a[':"),
    ],
)
def test_a_refusal(environ, text):
    with pytest.raises(ConfigError) as caught:
        own_place(environ)
    assert str(caught.value).startswith(text)
