"""The worker's settings: explicit argument, else environment, else default. Every wrong value is named."""

import dataclasses

import pytest
from reduction import limits
from reduction.errors import ConfigError
from reduction.security.tls import TlsFiles

from worker_plugin import config
from worker_plugin.config import PluginConfig, build


def test_defaults_are_the_documented_ones():
    assert dataclasses.asdict(build({}, {})) == {
        "reducers": None,
        "job": None,
        "run": None,
        "rank": None,
        "world_size": None,
        "transport": "auto",
        "wire_dtype": None,
        "on_reducer_loss": "reshard",
        "fallback": None,
        "timeout_s": 600.0,
        "stall_warn_s": 5.0,
        "join_timeout_s": 60.0,
        "close_timeout_s": 5.0,
        "chunk_bytes": None,
        "credit_bytes": None,
        "checksums": False,
        "io_process": False,
        "local_group": None,
        "colocated": None,
        "colocated_host": None,
        "link": None,
        "trace": None,
        "report_s": 60.0,
        "elastic": False,
        "min_workers": 1,
        "notices": None,
        "tls_cert": None,
        "tls_key": None,
        "tls_ca": None,
        "token_file": None,
    }


def test_every_setting_can_come_from_the_environment():
    environ = {
        "REDUCTION_REDUCERS": "10.0.0.5:50051, dns:reducers:50051,",
        "REDUCTION_JOB": "night-run",
        "REDUCTION_RANK": "3",
        "REDUCTION_WORLD_SIZE": "4",
        "REDUCTION_TRANSPORT": "grpc",
        "REDUCTION_ON_REDUCER_LOSS": "wait",
        "REDUCTION_FALLBACK": "embedded",
        "REDUCTION_TIMEOUT_S": "1.5",
        "REDUCTION_STALL_WARN_S": "2",
        "REDUCTION_JOIN_TIMEOUT_S": "3",
        "REDUCTION_CLOSE_TIMEOUT_S": "4e-1",
        "REDUCTION_CHUNK_BYTES": "2048",
        "REDUCTION_CREDIT_BYTES": "4096",
        "REDUCTION_CHECKSUMS": "1",
        "REDUCTION_LOCAL_GROUP": "auto",
        "REDUCTION_TLS_CERT": "/run/worker.pem",
        "REDUCTION_TLS_KEY": "/run/worker.key",
        "REDUCTION_TLS_CA": "/run/ca.pem",
        "REDUCTION_TOKEN_FILE": "/run/tokens",
    }
    assert build({}, environ) == PluginConfig(
        reducers=("10.0.0.5:50051", "dns:reducers:50051"),
        job="night-run",
        rank=3,
        world_size=4,
        transport="grpc",
        on_reducer_loss="wait",
        fallback="embedded",
        timeout_s=1.5,
        stall_warn_s=2.0,
        join_timeout_s=3.0,
        close_timeout_s=0.4,
        chunk_bytes=2048,
        credit_bytes=4096,
        checksums=True,
        local_group="auto",
        tls_cert="/run/worker.pem",
        tls_key="/run/worker.key",
        tls_ca="/run/ca.pem",
        token_file="/run/tokens",
    )


def test_a_switch_is_0_or_1():
    assert build({}, {"REDUCTION_CHECKSUMS": "0"}) == PluginConfig()
    with pytest.raises(ConfigError, match="REDUCTION_CHECKSUMS is 'yes'; it must be 0 or 1"):
        build({}, {"REDUCTION_CHECKSUMS": "yes"})


def test_an_explicit_argument_wins_and_none_means_not_given():
    environ = {"REDUCTION_JOB": "theirs", "REDUCTION_TIMEOUT_S": "7", "REDUCTION_RANK": "1"}
    config = build({"job": "ours", "timeout_s": None, "rank": 0}, environ)
    assert (config.job, config.timeout_s, config.rank) == ("ours", 7.0, 0)


def test_an_empty_variable_counts_as_not_set():
    assert build({}, {"REDUCTION_RANK": "", "REDUCTION_TOKEN_FILE": ""}) == PluginConfig()
    # REDUCTION_REDUCERS is special: an unset shell variable makes it empty, and the job would use unwanted reducers.
    assert build({"reducers": "a:1"}, {"REDUCTION_REDUCERS": ""}).reducers == ("a:1",)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        (
            {"REDUCTION_REDUCERS": "slrum:1:50051"},
            "REDUCTION_REDUCERS: reducer 'slrum:1:50051': write",
        ),
        (
            {"REDUCTION_RANK": "two"},
            "REDUCTION_RANK is 'two', which is not a whole number; allowed: 0 to 4095",
        ),
        (
            {"REDUCTION_TIMEOUT_S": "10s"},
            "REDUCTION_TIMEOUT_S is '10s', which is not a number; allowed: more than 0 to 3e+06 seconds",
        ),
        (
            {"REDUCTION_CHUNK_BYTES": "4.5"},
            "REDUCTION_CHUNK_BYTES is '4.5', which is not a whole number; allowed: 1024 to 4194304 bytes, "
            "multiples of 1024",
        ),
        (
            {"REDUCTION_CREDIT_BYTES": "4MiB"},
            "REDUCTION_CREDIT_BYTES is '4MiB', which is not a whole number; allowed: 1024 to 1073741824 bytes",
        ),
        (
            {"REDUCTION_LOCAL_GROUP": "two"},
            "REDUCTION_LOCAL_GROUP is 'two'; it must be None, 'auto' or a number of ranks",
        ),
        (
            {"REDUCTION_REDUCERS": " , "},
            "REDUCTION_REDUCERS is ' , ', which names no reducer: give at least one HOST:PORT, or unset it, and rank 0 "
            "starts a private one on its host",
        ),
        ({"REDUCTION_REDUCERS": ""}, "REDUCTION_REDUCERS is '', which names no reducer"),
        ({"REDUCTION_WIRE_DTYPE": "bf17"}, "REDUCTION_WIRE_DTYPE is 'bf17'; this version knows None"),
        (
            {"REDUCTION_TRANSPORT": "carrier pigeon"},
            "REDUCTION_TRANSPORT is 'carrier pigeon'; this version knows 'auto'",
        ),
    ],
)
def test_wrong_variables_are_named(environ, text):
    with pytest.raises(ConfigError) as caught:
        build({}, environ)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"transport": "rdma"}, "transport is 'rdma'; this version knows 'auto', 'tcp', 'grpc'"),
        ({"wire_dtype": "int4"}, "wire_dtype is 'int4'; this version knows None"),
        (
            {"on_reducer_loss": "pray"},
            "on_reducer_loss is 'pray'; this version knows 'reshard', 'wait', 'raise'",
        ),
        ({"fallback": "nccl"}, "fallback is 'nccl'; this version knows None, 'embedded'"),
        ({"timeout_s": 0}, "timeout_s is 0; allowed: more than 0 to 3e+06 seconds"),
        ({"report_s": -1.0}, "report_s is -1.0; allowed: 0, or more than 0 to 3e+06 seconds"),
        ({"stall_warn_s": -1.0}, "stall_warn_s is -1.0; allowed: more than 0 to 3e+06 seconds"),
        ({"join_timeout_s": float("nan")}, "join_timeout_s is nan; allowed: more than 0 to 3e+06 seconds"),
        ({"close_timeout_s": 0.0}, "close_timeout_s is 0.0; allowed: more than 0 to 3e+06 seconds"),
        ({"world_size": 0}, "world_size is 0; allowed: 1 to 4096"),
        ({"world_size": 4097}, "world_size is 4097; allowed: 1 to 4096"),
        ({"local_group": 0}, "local_group is 0; it must be None, 'auto' or a number of ranks, 1 to 4096"),
        ({"local_group": 4097}, "local_group is 4097; it must be None, 'auto'"),
        ({"local_group": True}, "local_group is True; it must be None, 'auto'"),
        ({"local_group": "node"}, "local_group is 'node'; it must be None, 'auto'"),
        (
            {"local_group": 4, "world_size": 6},
            "local_group is 4, but the world size 6 is not a multiple of it",
        ),
        ({"local_group": 2, "fallback": "embedded"}, "fallback='embedded' needs all ranks on one host"),
        ({"local_group": 2, "job": "j" * 196}, f"job '{'j' * 196}' must have 1 to 195 bytes"),
        ({"job": "night@1"}, "job 'night@1' ends like the rail of a job (local_group): choose another name"),
        ({"rank": -1}, "rank is -1; allowed: 0 to 4095"),
        ({"rank": 4096}, "rank is 4096; allowed: 0 to 4095"),
        ({"rank": 4, "world_size": 4}, "rank is 4; it must be below the world size 4"),
        ({"job": ""}, "job '' must have 1 to 200 bytes"),
        ({"job": "ü" * 101}, f"job '{'ü' * 101}' must have 1 to 200 bytes"),
        ({"chunk_bytes": 512}, "chunk_bytes is 512; allowed: 1024 to 4194304"),
        ({"chunk_bytes": 8 << 20, "credit_bytes": 8 << 20}, "chunk_bytes is 8388608; allowed:"),
        ({"chunk_bytes": 1025}, "chunk_bytes is 1025; it must be a multiple of 1024"),
        ({"credit_bytes": 512}, "credit_bytes is 512; allowed: 1024 to 1073741824 bytes"),
        (
            {"chunk_bytes": 4096, "credit_bytes": 4095},
            "credit_bytes is 4095; it must be at least chunk_bytes, 4096",
        ),
        ({"credit_bytes": (1 << 30) + 1}, "credit_bytes is 1073741825; allowed:"),
        (
            {"tls_cert": "c"},
            "tls_key and tls_ca are missing: TLS needs tls_cert, tls_key, tls_ca, all three or none",
        ),
        ({"run": ""}, "run '' must have 1 to 200 bytes"),
        ({"run": "r" * 201}, f"run '{'r' * 201}' must have 1 to 200 bytes"),
        ({"run": "two\nlines"}, "run 'two\\nlines' has characters that cannot be printed"),
        ({"job": "two\nlines"}, "job 'two\\nlines' has characters that cannot be printed"),
        ({"reducers": ()}, "the list of reducers is empty: name at least one HOST:PORT"),
        ({"reducers": ("a:1", "a:1")}, "the list of reducers names an address twice: a:1, a:1"),
        ({"reducers": ("a" * 254 + ":1",)}, f"reducer '{'a' * 254}:1' is longer than 255 bytes"),
    ],
)
def test_wrong_values_are_named_with_their_limit(values, text):
    with pytest.raises(ConfigError) as caught:
        PluginConfig(**values)
    assert str(caught.value).startswith(text)


def test_local_group_may_be_a_number():
    assert build({}, {"REDUCTION_LOCAL_GROUP": "4"}).local_group == 4
    assert build({"local_group": 2}, {"REDUCTION_LOCAL_GROUP": "auto"}).local_group == 2


@pytest.mark.parametrize("transport", ["auto", "tcp", "grpc"])
def test_valid_transports(transport):
    assert build({}, {"REDUCTION_TRANSPORT": transport}).transport == transport
    assert PluginConfig(transport=transport).transport == transport


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_tls_over_grpc(transport):
    config = PluginConfig(tls_cert="c", tls_key="k", tls_ca="a", transport=transport)
    assert config.tls == TlsFiles("c", "k", "a")
    assert PluginConfig(transport=transport).tls is None


@pytest.mark.parametrize("variable", ["REDUCTION_JOB", "REDUCTION_RUN", "REDUCTION_REDUCERS"])
def test_undecodable_environment_variables_are_refused(variable):
    with pytest.raises(ConfigError):  # b"\xff" in the environment is "\udcff" here
        build({}, {variable: "\udcff:1"})


@pytest.mark.parametrize(
    "address",
    ["host", "host:", ":50051", "host:0", "host:65536", "host:-1", "host:http", "dns::50051", "dns:name", ""],
)
def test_invalid_addresses_are_refused(address):
    with pytest.raises(ConfigError, match="is not HOST:PORT or dns:NAME:PORT with a port of 1 to 65535"):
        PluginConfig(reducers=(address,))


def test_values_at_the_edge_pass():
    addresses = ("a:1", "a:65535", "[::1]:50051", "dns:reducers.default.svc:50051", "a" * 253 + ":1")
    config = PluginConfig(
        reducers=addresses,
        job="j" * 200,
        run="r" * 200,
        rank=limits.WORLD_SIZE_MAX - 1,
        world_size=limits.WORLD_SIZE_MAX,
        chunk_bytes=limits.CHUNK_BYTES_MIN,
        credit_bytes=limits.CHUNK_BYTES_MIN,
    )
    assert config.reducers == addresses
    assert PluginConfig(rank=7).world_size is None


@pytest.mark.parametrize(
    ("value", "addresses"),
    [
        ("a:1", ("a:1",)),
        ("a:1,b:2", ("a:1", "b:2")),
        (" a:1 , b:2 , ", ("a:1", "b:2")),
        (["a:1", " b:2"], ("a:1", "b:2")),
        (("a:1", ""), ("a:1",)),
        ((address for address in ("a:1", "b:2")), ("a:1", "b:2")),
    ],
)
def test_splitting_addresses(value, addresses):
    assert build({"reducers": value}, {}).reducers == addresses


@pytest.mark.parametrize("local_group", [4, "auto"])
def test_an_io_process_and_a_local_group_exclude_each_other(local_group):
    with pytest.raises(ConfigError, match=r"io_process is set, .* local_group="):
        build({"io_process": True, "local_group": local_group}, {})
    assert build({"local_group": 1}, {"REDUCTION_IO_PROCESS": "1"}).io_process


@pytest.mark.parametrize("wire", ["int8", "fp8", "topk:0.1"])
def test_an_elastic_job_refuses_formats_with_residuals(wire):
    with pytest.raises(ConfigError, match=rf"wire_dtype='{wire}' leaves something out, and elastic"):
        build({"wire_dtype": wire, "elastic": True, "job": "a", "rank": 0, "world_size": 2}, {})


def test_an_io_process_and_an_elastic_job_exclude_each_other():
    with pytest.raises(ConfigError, match=r"io_process is set, .* elastic"):
        build({"io_process": True, "elastic": True, "rank": 0, "world_size": 2}, {})


def test_an_io_process_is_refused_where_memory_cannot_be_shared(monkeypatch):
    monkeypatch.setattr(config, "is_possible", lambda: False)
    with pytest.raises(ConfigError, match="memfd_create"):
        build({"io_process": True}, {})
