"""Automatic discovery on platforms: their reducers, and the address of a reducer that was given none."""

import pytest
from reduction.discovery.own_place import own_place
from reduction.discovery.platforms.automatic import Named, named_by_platform
from reduction.errors import ConfigError
from unit.reduction.discovery.documents import NOBODY, of_sagemaker, of_vertex

POOLS = {"workerpool0": ["chief:2222"], "workerpool2": ["r-0:2222", "r-1:2222"]}
GROUPS = {"gpu": ["algo-1"], "reducers": ["algo-3", "algo-2"]}
SLURM = NOBODY | {
    "SLURM_JOB_NODELIST_HET_GROUP_0": "gpu[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu-red[01-02]",
    "SLURM_STEP_NODELIST": "cpu-red[01-02]",
    "SLURMD_NODENAME": "cpu-red02",
}


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        (of_vertex(POOLS), Named(("r-0:2222", "r-1:2222"), "CLUSTER_SPEC")),
        (of_sagemaker(GROUPS), Named(("algo-2:50051", "algo-3:50051"), "SageMaker's resourceconfig.json")),
        # Nothing is guessed.
        (NOBODY, None),
        (NOBODY | {"CLUSTER_SPEC": ""}, None),
        (of_vertex({"workerpool0": ["chief:1"]}), None),
        (of_vertex({"workerpool2": []}), None),
        (of_sagemaker({"gpu": ["algo-1"], "cpu": ["algo-2"]}), None),
        (NOBODY | {"SLURM_JOB_NODELIST_HET_GROUP_0": "a", "SLURM_JOB_NODELIST_HET_GROUP_1": "b"}, None),
    ],
)
def test_reducers_named_by_the_platform(environ, named):
    assert named_by_platform(environ) == named


@pytest.mark.parametrize("pool", [["r"], ["r:1", "r:1"]])
def test_addresses_of_the_platform_are_checked_too(pool):
    with pytest.raises(ConfigError, match=r"^CLUSTER_SPEC: .*(HOST:PORT|twice)"):
        named_by_platform(of_vertex({"workerpool2": pool}))


@pytest.mark.parametrize(
    ("environ", "source", "bind", "index", "reducers"),
    [
        (of_vertex(POOLS, "workerpool2", 1), "CLUSTER_SPEC", "0.0.0.0:2222", 1, ("r-0:2222", "r-1:2222")),
        (
            of_sagemaker(GROUPS, "algo-3"),
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
            of_sagemaker({"cpu": ["algo-1"]}) | {"REDUCTION_REDUCERS": "sagemaker:cpu:7000"},
            "REDUCTION_REDUCERS=sagemaker:cpu:7000",
            "0.0.0.0:7000",
            0,
            ("algo-1:7000",),
        ),
    ],
)
def test_place_of_a_reducer(environ, source, bind, index, reducers):
    cluster, says = own_place(environ)
    assert says == source
    assert (cluster.bind, cluster.index, cluster.reducers) == (bind, index, reducers)


@pytest.mark.parametrize(
    "environ",
    [
        NOBODY,
        NOBODY | {"REDUCTION_REDUCERS": "10.0.0.5:50051, file:/nowhere"},
        of_vertex({"workerpool0": ["chief:2222"]}, "workerpool0"),
        of_sagemaker({"gpu": ["algo-1"]}),
        NOBODY | {"SLURM_JOB_NODELIST": "a", "SLURMD_NODENAME": "a"},  # in the batch script, not in a step
        NOBODY | {"SLURM_STEP_NODELIST": "a"},
    ],
)
def test_no_place_is_found(environ):
    assert own_place(environ) is None


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        (
            of_vertex(POOLS, "workerpool0"),
            "CLUSTER_SPEC says that this host is worker 0 of 1, and that reducers serve at r-0:2222, r-1:2222: run the "
            "training here, or give --bind (REDUCER_BIND) to serve on this host too",
        ),
        (
            of_vertex(POOLS, "workerpool3"),
            "CLUSTER_SPEC says that this host is none of the workers or reducers",
        ),
        (of_sagemaker(GROUPS), "SageMaker's resourceconfig.json says that this host is worker 0 of 1, and"),
        (
            SLURM | {"REDUCTION_REDUCERS": "slurm:0:6000"},
            "REDUCTION_REDUCERS=slurm:0:6000 says that this host is worker 1 of 2, and",
        ),
        (NOBODY | {"REDUCTION_REDUCERS": "vertex:"}, "reducers 'vertex:': CLUSTER_SPEC is not set"),
        (NOBODY | {"CLUSTER_SPEC": "[]"}, "CLUSTER_SPEC is not what Vertex AI writes (it is not an object)"),
        ({"SM_RESOURCE_CONFIG": "["}, "resourceconfig.json is not what SageMaker writes (Expecting"),
        (
            of_vertex({"workerpool2": ["r:1"]}) | of_sagemaker({"reducers": ["algo-2"]}),
            "two platforms name reducers, CLUSTER_SPEC (r:1) and SageMaker's resourceconfig.json (algo-2:50051): "
            "pass reducers= or set REDUCTION_REDUCERS",
        ),
        (SLURM | {"SLURM_STEP_NODELIST": "a["}, "node list 'a[':"),
    ],
)
def test_refusals_explain_why(environ, text):
    with pytest.raises(ConfigError) as caught:
        own_place(environ)
    assert str(caught.value).startswith(text)
