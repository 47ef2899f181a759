"""`vertex:` against CLUSTER_SPEC in Vertex AI's format."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction.discovery.cluster import Cluster
from reduction.discovery.platforms.vertex import parse
from reduction.discovery.schemes import cluster_of
from reduction.errors import ConfigError
from unit.reduction.discovery.documents import cluster_spec, rubbish

POOLS = {
    "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
    "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
    "workerpool2": ["cmle-training-workerpool2-ab-0:2222", "cmle-training-workerpool2-ab-1:2222"],
}
WORKERS = (
    "cmle-training-workerpool0-ab-0",
    "cmle-training-workerpool1-ab-0",
    "cmle-training-workerpool1-ab-1",
)


def spec(pool="workerpool0", index=0, pools=POOLS, **task):
    return cluster_spec(pools, pool, index, **task)


@pytest.mark.parametrize(
    ("task", "role", "index", "bind"),
    [
        (("workerpool0", 0), "worker", 0, None),
        (("workerpool1", 1), "worker", 2, None),
        (("workerpool2", 1), "reducer", 1, "0.0.0.0:2222"),
        (("workerpool3", 0), None, None, None),
    ],
)
def test_every_replica_of_a_job(task, role, index, bind):
    found = cluster_of("vertex:", {"CLUSTER_SPEC": spec(*task, trial="7")})
    assert found == Cluster("vertex", tuple(POOLS["workerpool2"]), WORKERS, role, index, bind)


def test_a_job_with_only_the_primary_worker_and_no_trials():
    pools = {"workerpool0": ["a:2222"], "workerpool2": ["r:2222"]}
    found = cluster_of("vertex:workerpool2", {"CLUSTER_SPEC": spec(pools=pools)})
    assert (found.reducers, found.workers) == (("r:2222",), ("a",))


def test_reducers_in_another_pool():
    found = cluster_of("vertex:workerpool1", {"CLUSTER_SPEC": spec("workerpool1", 1)})
    assert (found.reducers, found.workers) == (tuple(POOLS["workerpool1"]), WORKERS[:1])
    assert (found.role, found.index) == ("reducer", 1)


def test_a_spec_without_a_task():
    found = parse(json.dumps({"cluster": POOLS}))
    assert (found.workers, found.role, found.index, found.bind) == (WORKERS, None, None, None)


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        (
            "vertex:workerpool0",
            {},
            "reducers 'vertex:workerpool0': reducers can be in workerpool1, workerpool2",
        ),
        ("vertex:pool", {}, "reducers 'vertex:pool': reducers can be in"),
        ("vertex:", {}, "reducers 'vertex:': CLUSTER_SPEC is not set"),
        (
            "vertex:",
            {"CLUSTER_SPEC": spec(pools={"workerpool0": ["a:1"]})},
            "reducers 'vertex:': CLUSTER_SPEC has no replicas in workerpool2",
        ),
        (
            "vertex:",
            {"CLUSTER_SPEC": json.dumps({"cluster": {"workerpool2": ["r"]}})},
            "reducers 'vertex:' of vertex: reducer 'r' is not HOST:PORT",
        ),
    ],
)
def test_errors_name_what_is_missing(text, environ, message):
    with pytest.raises(ConfigError) as caught:
        cluster_of(text, environ)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[\n3,\n4]", "it is not an object"),
        ("[" * 100_000, "recursion"),
        ("{}", "it has no object 'cluster'"),
        ('{"cluster": 3}', "it has no object 'cluster'"),
        ('{"cluster": {"workerpool2": "r:1"}}', "workerpool2 is not a list of strings: 'r:1'"),
        ('{"cluster": {"workerpool0": [1]}}', "workerpool0 is not a list of strings: [1]"),
        ('{"cluster": {}, "task": 3}', "task is not an object: 3"),
        (spec(index=1), "task.index is 1, which is not a replica of workerpool0"),
        (spec(index=None), "task.index is None, which is not a replica of workerpool0"),
        (spec(index=True), "task.index is True, which is not a replica of workerpool0"),
    ],
)
def test_a_malformed_spec_is_shown_with_the_reason(text, reason):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("CLUSTER_SPEC is not what Vertex AI writes (")
    assert reason in message
    assert message.endswith(f"): {' '.join(text[:200].split())}")


@given(rubbish("cluster", "task", "type", "index", "workerpool0", "workerpool2"))
def test_rubbish_is_a_config_error(text):
    with contextlib.suppress(ConfigError):
        parse(text)


NAMES = st.lists(st.from_regex(r"[a-z]{1,8}(-[0-9])?", fullmatch=True), min_size=1, max_size=5, unique=True)


@given(NAMES, NAMES, NAMES, st.data())
def test_hosts_are_recovered_from_a_written_spec(primary, others, reducers, data):
    pools = {
        f"workerpool{n}": [f"{host}:2222" for host in hosts]
        for n, hosts in enumerate((primary, others, reducers))
    }
    index = data.draw(st.integers(0, len(others) - 1))
    found = parse(spec("workerpool1", index, pools))
    assert found.reducers == tuple(pools["workerpool2"])
    assert found.workers == (*primary, *others)
    assert found.index is not None
    assert found.workers[found.index] == others[index]
