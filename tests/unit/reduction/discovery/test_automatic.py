"""Platforms that name reducers without being asked."""

import json

import pytest
from reduction.discovery.platforms.automatic import Named, named_by_platform
from reduction.errors import ConfigError

NOBODY = {"SAGEMAKER_BASE_DIR": "/nowhere"}


def vertex(**pools):
    return NOBODY | {
        "CLUSTER_SPEC": json.dumps({"cluster": pools, "task": {"type": "evaluator", "index": 0}})
    }


def sagemaker(**groups):
    listed = [{"instance_group_name": name, "hosts": hosts} for name, hosts in groups.items()]
    return {"SM_RESOURCE_CONFIG": json.dumps({"current_host": "algo-1", "instance_groups": listed})}


@pytest.mark.parametrize(
    "environ",
    [
        NOBODY,
        NOBODY | {"CLUSTER_SPEC": ""},
        vertex(workerpool0=["chief:1"]),
        vertex(workerpool2=[]),
        sagemaker(homogeneousCluster=["algo-1"]),
        sagemaker(gpu=["algo-1"], cpu=["algo-2"]),
        NOBODY | {"SLURM_JOB_NODELIST_HET_GROUP_0": "a", "SLURM_JOB_NODELIST_HET_GROUP_1": "b"},
    ],
)
def test_nothing_is_guessed(environ):
    assert named_by_platform(environ) is None


def test_vertex_ai_names_the_reducers_in_the_third_worker_pool():
    spec = vertex(workerpool0=["chief:1"], workerpool1=["w:1"], workerpool2=["r-0:2222", "r-1:2222"])
    assert named_by_platform(spec) == Named(("r-0:2222", "r-1:2222"), "CLUSTER_SPEC")


def test_sagemaker_names_the_reducers_in_a_group():
    environ = sagemaker(gpu=["algo-1"], reducers=["algo-3", "algo-2"])
    assert named_by_platform(environ) == Named(
        ("algo-2:50051", "algo-3:50051"), "SageMaker's resourceconfig.json"
    )


def test_two_platforms_that_disagree():
    environ = vertex(workerpool2=["r:1"]) | sagemaker(reducers=["algo-2"])
    with pytest.raises(ConfigError) as caught:
        named_by_platform(environ)
    assert str(caught.value) == (
        "two platforms name reducers, CLUSTER_SPEC (r:1) and SageMaker's resourceconfig.json (algo-2:50051): "
        "pass reducers= or set REDUCTION_REDUCERS"
    )


@pytest.mark.parametrize("pool", [["r"], ["r:1", "r:1"]])
def test_addresses_of_the_platform_are_checked_too(pool):
    with pytest.raises(ConfigError, match=r"^CLUSTER_SPEC: .*(HOST:PORT|twice)"):
        named_by_platform(vertex(workerpool2=pool))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '"text"'])
def test_documents_of_another_shape(text):
    with pytest.raises(ConfigError, match="CLUSTER_SPEC is not what Vertex AI writes"):
        named_by_platform(NOBODY | {"CLUSTER_SPEC": text})
    if text != "{}":
        with pytest.raises(ConfigError, match=r"resourceconfig\.json is not what SageMaker writes"):
            named_by_platform({"SM_RESOURCE_CONFIG": text})
