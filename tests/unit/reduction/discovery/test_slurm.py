"""`slurm:` against the variables of real jobs, and node lists against the real scontrol."""

import contextlib
import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reduction.discovery.cluster import Cluster
from reduction.discovery.platforms.nodelist import hostnames
from reduction.discovery.schemes import cluster_of
from reduction.errors import ConfigError
from reduction.limits import ADDRESSES_MAX

# As set by Slurm 22.05 for two components: in the batch step, and in a step of the second component.
BATCH = {
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "gpu[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "gpu[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu-red[01-02]",
    "SLURMD_NODENAME": "gpu1",
}
STEP = BATCH | {
    "SLURM_JOB_NODELIST": "cpu-red[01-02]",
    "SLURMD_NODENAME": "cpu-red02",
}
REDUCERS = ("cpu-red01:50051", "cpu-red02:50051")


@pytest.mark.parametrize(
    ("environ", "role", "index", "bind"),
    [(BATCH, "worker", 0, None), (STEP, "reducer", 1, "0.0.0.0:50051")],
    ids=["batch", "step"],
)
@pytest.mark.parametrize("text", ["slurm:1:50051", "slurm:nodes=cpu-red[01-02]:50051"])
def test_a_heterogeneous_job(text, environ, role, index, bind):
    assert cluster_of(text, environ) == Cluster("slurm", REDUCERS, ("gpu1", "gpu2"), role, index, bind)


def test_two_steps_of_one_allocation():
    environ = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURMD_NODENAME": "n4"}
    assert cluster_of("slurm:nodes=n[1-2],n1:7", environ) == Cluster(
        "slurm", ("n1:7", "n2:7"), ("n3", "n4"), "worker", 1
    )


def test_nodes_can_be_named_outside_of_slurm():
    assert cluster_of("slurm:nodes=a,b:7", {}) == Cluster("slurm", ("a:7", "b:7"))


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        ("slurm:2:50051", BATCH, "SLURM_JOB_NODELIST_HET_GROUP_2 is not set; this job has components 0 to 1"),
        ("slurm:1:50051", {}, "SLURM_JOB_NODELIST_HET_GROUP_1 is not set; this job has no components"),
        ("slurm:" + "9" * 5000 + ":1", BATCH, "is not set; this job has components 0 to 1"),
        ("slurm:x:50051", BATCH, "write slurm:GROUP:PORT with a number, or slurm:nodes=LIST:PORT"),
        ("slurm:", BATCH, "'' is not a port of 1 to 65535"),
        ("slurm:1:0", BATCH, "'0' is not a port of 1 to 65535"),
        ("slurm:nodes=:1", BATCH, "reducers 'slurm:nodes=:1': the node list is empty"),
        ("slurm:nodes=a[1-:1", BATCH, "node list 'a[1-': '[1-' is not of the form NAME or NAME[1-3,5]"),
    ],
)
def test_errors_name_the_faulty_value(text, environ, message):
    with pytest.raises(ConfigError) as caught:
        cluster_of(text, environ)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ""),
        ("a", "a"),
        ("a,b-1.x_y", "a b-1.x_y"),
        ("a,", "a"),
        ("a[01-02,7],b3", "a01 a02 a7 b3"),
        ("a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4"),
        ("a[1-2][3-4]", "a13 a14 a23 a24"),
        ("a[08-11]", "a08 a09 a10 a11"),
        ("b[2,1],b1", "b2 b1 b1"),
        ("[1-3]", "1 2 3"),
        ("a[1-2]-ib", "a1-ib a2-ib"),
    ],
)
def test_expanding_node_lists(text, names):
    assert hostnames(text) == tuple(names.split())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a[3-1]", "'3-1' is neither a number nor a range such as 1-3"),
        ("a[]", "'' is neither a number nor a range"),
        ("a[1,]", "'' is neither a number nor a range"),
        ("a[1-3-5]", "'1-3-5' is neither a number nor a range"),
        ("a[1-2", "'[1-2' is not of the form NAME or NAME[1-3,5]"),
        ("a,,b", "',b' is not of the form"),
        ("a b", "' b' is not of the form"),
        ("a[1-5000]", "has more than 4096 nodes"),
        ("a[1-4096],b", "has more than 4096 nodes"),
        ("a[1-99][1-99]", "has more than 4096 nodes"),
        ("a[1-3000,1-3000]", "has more than 4096 nodes"),
    ],
)
def test_invalid_node_lists_are_refused(text, reason):
    with pytest.raises(ConfigError) as caught:
        hostnames(text)
    assert str(caught.value).startswith(f"node list {text!r}")
    assert reason in str(caught.value)


@given(st.text() | st.text("ab01-[],.", max_size=30))
def test_rubbish_is_a_config_error(text):
    for parse in (hostnames, lambda text: cluster_of(f"slurm:{text}", BATCH)):
        with contextlib.suppress(ConfigError):
            parse(text)


@given(st.lists(st.from_regex("[a-z]{1,3}[0-9]{1,3}", fullmatch=True), min_size=1, max_size=20, unique=True))
def test_a_list_of_names_stays_the_same(names):
    assert hostnames(",".join(names)) == tuple(names)


@st.composite
def ranges(draw):
    first = draw(st.integers(0, 120))
    last = first + draw(st.integers(0, 12))
    digits = draw(st.integers(1, 4))
    return f"{first:0{digits}}" if first == last else f"{first:0{digits}}-{last}"


ELEMENTS = st.lists(
    st.tuples(st.from_regex("[a-z]{1,3}-?", fullmatch=True), st.lists(ranges(), min_size=1, max_size=3)),
    min_size=1,
    max_size=2,
)


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm's client is not installed")
@settings(max_examples=100, deadline=None)
@given(st.lists(ELEMENTS, min_size=1, max_size=3))
def test_node_lists_match_scontrol(tmp_path_factory, elements):
    text = ",".join("".join(f"{name}[{','.join(parts)}]" for name, parts in element) for element in elements)
    config = tmp_path_factory.getbasetemp() / "slurm.conf"
    config.write_text("ClusterName=test\nSlurmctldHost=localhost\n")
    done = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env=os.environ | {"SLURM_CONF": str(config)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    names = done.stdout.split()
    assert len(names) <= ADDRESSES_MAX
    assert hostnames(text) == tuple(names)
