"""`sagemaker:` against resourceconfig.json in SageMaker's format."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction.discovery.cluster import Cluster
from reduction.discovery.platforms.sagemaker import parse
from reduction.discovery.schemes import cluster_of
from reduction.errors import ConfigError
from unit.reduction.discovery.documents import resource_config, rubbish


def document(host="algo-1", key="current_group_name", **groups):
    groups = groups or {"gpu": ["algo-1", "algo-11"], "reducers": ["algo-10", "algo-2"]}
    return resource_config(groups, host, key)


@pytest.mark.parametrize("key", ["current_group_name", "current_instance_group"])
@pytest.mark.parametrize(
    ("host", "role", "index", "bind"),
    [
        ("algo-1", "worker", 0, None),
        ("algo-11", "worker", 1, None),
        ("algo-2", "reducer", 0, "0.0.0.0:6000"),
        ("algo-10", "reducer", 1, "0.0.0.0:6000"),
        ("elsewhere", None, None, None),
    ],
)
def test_every_host_of_a_heterogeneous_cluster(key, host, role, index, bind):
    environ = {"SM_RESOURCE_CONFIG": document(host, key=key)}
    assert cluster_of("sagemaker:reducers:6000", environ) == Cluster(
        "sagemaker",
        ("algo-2:6000", "algo-10:6000"),
        ("algo-1", "algo-11"),
        role,
        index,
        bind,
    )


def test_the_file_with_default_group_and_port(tmp_path):
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(document())
    found = cluster_of("sagemaker:", {"SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert found.reducers == ("algo-2:50051", "algo-10:50051")
    found = cluster_of("sagemaker:gpu", {"SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert (found.reducers, found.role) == (("algo-1:50051", "algo-11:50051"), "reducer")


def test_a_missing_or_unreadable_config_is_an_error(tmp_path):
    environ = {"SAGEMAKER_BASE_DIR": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"neither SM_RESOURCE_CONFIG nor \S+/resourceconfig.json exists"):
        cluster_of("sagemaker:reducers:1", environ)
    (tmp_path / "input" / "config" / "resourceconfig.json").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot be read: .*Is a directory"):
        cluster_of("sagemaker:", environ)


@pytest.mark.parametrize(
    ("text", "config", "message"),
    [
        ("sagemaker:cpu:1", document(), "has no instance group 'cpu'; it has 'gpu', 'reducers'"),
        ("sagemaker:", '{"instance_groups": []}', "has no instance group 'reducers'; it has none"),
        (
            "sagemaker:",
            '{"instance_groups": [{"instance_group_name": "reducers", "hosts": []}]}',
            "says that the instance group 'reducers' has no hosts",
        ),
        ("sagemaker:", "{}", "has no instance group 'reducers'; it has none"),
        ("sagemaker:", document(homogeneousCluster=["algo-1"]), "; it has 'homogeneousCluster'"),
        ("sagemaker:reducers:x", document(), "'x' is not a port of 1 to 65535"),
        ("sagemaker:reducers:1:2", document(), "'1:2' is not a port"),
        ("sagemaker:", "[]", "is not what SageMaker writes (it is not an object): []"),
        ("sagemaker:", '{"instance_groups": 3}', "(instance_groups is not a list of objects: 3)"),
        ("sagemaker:", '{"instance_groups": [{}]}', "(instance_group_name is not text: None)"),
        (
            "sagemaker:",
            '{"instance_groups": [{"instance_group_name": "reducers", "hosts": "algo-1"}]}',
            "(hosts is not a list of strings: 'algo-1')",
        ),
        ("sagemaker:", document(reducers=["ab:"]), "of sagemaker: reducer 'ab::50051': write an IPv6"),
    ],
)
def test_errors_name_the_faulty_value(text, config, message):
    with pytest.raises(ConfigError) as caught:
        cluster_of(text, {"SM_RESOURCE_CONFIG": config})
    assert message in str(caught.value)


@given(rubbish("instance_groups", "instance_group_name", "hosts", "current_host"))
def test_rubbish_is_a_config_error(text):
    with contextlib.suppress(ConfigError):
        parse(text, "reducers", 1)


@given(st.sets(st.integers(1, 200), min_size=2), st.randoms())
def test_hosts_are_recovered_from_a_written_config(numbers, random):
    hosts = [f"algo-{number}" for number in sorted(numbers)]
    gpu, cpu = hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :]
    found = parse(
        document(cpu[-1], gpu=random.sample(gpu, len(gpu)), reducers=random.sample(cpu, len(cpu))),
        "reducers",
        5,
    )
    assert found.reducers == tuple(f"{host}:5" for host in cpu)
    assert (found.workers, found.role, found.index) == (tuple(gpu), "reducer", len(cpu) - 1)
