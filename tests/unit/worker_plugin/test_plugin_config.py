"""The worker's settings: explicit argument, else environment, else default; every wrong value is named."""

import dataclasses
import inspect
import os
import typing
from pathlib import Path

import numpy as np
import pytest
from reduction import limits
from reduction.errors import ConfigError
from reduction.process import launch
from reduction.security.tls import TlsFiles

from worker_plugin import ReductionState
from worker_plugin.config import AllSettings, PluginConfig, build, check_files
from worker_plugin.settings import environment
from worker_plugin.settings.table import rows


def test_defaults_are_the_documented_ones():
    assert dataclasses.asdict(build({}, {})) == {
        "reducers": None,
        "job": None,
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
        "local_group": None,
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
    # But for one, which an unset variable of a shell makes empty: the job would run on reducers that nobody wanted.
    assert build({"reducers": "a:1"}, {"REDUCTION_REDUCERS": ""}).reducers == ("a:1",)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        (
            {"REDUCTION_RANK": "two"},
            "REDUCTION_RANK is 'two', which is no whole number: allowed are 0 to 4095",
        ),
        (
            {"REDUCTION_TIMEOUT_S": "10s"},
            "REDUCTION_TIMEOUT_S is '10s', which is no number: allowed are more than 0 to 3e+06 seconds",
        ),
        (
            {"REDUCTION_CHUNK_BYTES": "4.5"},
            "REDUCTION_CHUNK_BYTES is '4.5', which is no whole number: allowed are 1024 to 4194304 bytes",
        ),
        (
            {"REDUCTION_CREDIT_BYTES": "4MiB"},
            "REDUCTION_CREDIT_BYTES is '4MiB', which is no whole number: allowed are 1024 to 1073741824 bytes",
        ),
        (
            {"REDUCTION_LOCAL_GROUP": "two"},
            "local_group is 'two'; it must be None, 'auto' or a number of ranks",
        ),
        (
            {"REDUCTION_REDUCERS": " , "},
            "REDUCTION_REDUCERS is ' , ', which names no reducer: give at least one HOST:PORT, or unset it, and rank 0 "
            "starts a private one on its host",
        ),
        ({"REDUCTION_REDUCERS": ""}, "REDUCTION_REDUCERS is '', which names no reducer"),
        (
            {"REDUCTION_TRANSPORT": "carrier pigeon"},
            "transport is 'carrier pigeon'; this version knows 'auto'",
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
        ({"timeout_s": 0}, "timeout_s is 0, allowed are more than 0 to 3e+06 seconds"),
        ({"stall_warn_s": -1.0}, "stall_warn_s is -1.0, allowed are more than 0 to 3e+06 seconds"),
        ({"join_timeout_s": float("nan")}, "join_timeout_s is nan, allowed are more than 0 to 3e+06 seconds"),
        ({"close_timeout_s": 0.0}, "close_timeout_s is 0.0, allowed are more than 0 to 3e+06 seconds"),
        ({"world_size": 0}, "world_size is 0, allowed are 1 to 4096"),
        ({"world_size": 4097}, "world_size is 4097, allowed are 1 to 4096"),
        ({"local_group": 0}, "local_group is 0; it must be None, 'auto' or a number of ranks, 1 to 4096"),
        ({"local_group": 4097}, "local_group is 4097; it must be None, 'auto'"),
        ({"local_group": True}, "local_group is True; it must be None, 'auto'"),
        ({"local_group": "node"}, "local_group is 'node'; it must be None, 'auto'"),
        ({"local_group": 4, "world_size": 6}, "local_group is 4, but the world size 6 is no multiple of it"),
        ({"local_group": 2, "fallback": "embedded"}, "fallback='embedded' needs all ranks on one host"),
        ({"local_group": 2, "job": "j" * 196}, f"job '{'j' * 196}' must have 1 to 195 bytes"),
        ({"job": "night@1"}, "job 'night@1' ends like the rail of a job (local_group): choose another name"),
        ({"rank": -1}, "rank is -1, allowed are 0 to 4095"),
        ({"rank": 4096}, "rank is 4096, allowed are 0 to 4095"),
        ({"rank": 4, "world_size": 4}, "rank is 4, it must be below the world size 4"),
        ({"job": ""}, "job '' must have 1 to 200 bytes"),
        ({"job": "ü" * 101}, f"job '{'ü' * 101}' must have 1 to 200 bytes"),
        ({"chunk_bytes": 512}, "chunk_bytes is 512, allowed are 1024 to 4194304"),
        ({"chunk_bytes": 8 << 20, "credit_bytes": 8 << 20}, "chunk_bytes is 8388608, allowed are"),
        ({"chunk_bytes": 1025}, "chunk_bytes is 1025, it must be a multiple of 1024"),
        ({"credit_bytes": 512}, "credit_bytes is 512, allowed are 1024 to 1073741824 bytes"),
        (
            {"chunk_bytes": 4096, "credit_bytes": 4095},
            "credit_bytes is 4095, it must be at least chunk_bytes, 4096",
        ),
        ({"credit_bytes": (1 << 30) + 1}, "credit_bytes is 1073741825, allowed are"),
        (
            {"tls_cert": "c"},
            "tls_key and tls_ca are missing: TLS needs tls_cert, tls_key, tls_ca, all three or none",
        ),
        (
            {"tls_cert": "c", "tls_key": "k", "tls_ca": "a", "transport": "tcp"},
            "transport is 'tcp', which TLS does not cover",
        ),
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


def test_a_number_of_local_ranks():
    assert build({}, {"REDUCTION_LOCAL_GROUP": "4"}).local_group == 4
    assert build({"local_group": 2}, {"REDUCTION_LOCAL_GROUP": "auto"}).local_group == 2


@pytest.mark.parametrize("transport", ["auto", "tcp", "grpc"])
def test_transports(transport):
    assert build({}, {"REDUCTION_TRANSPORT": transport}).transport == transport
    assert PluginConfig(transport=transport).transport == transport


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_tls_over_grpc(transport):
    config = PluginConfig(tls_cert="c", tls_key="k", tls_ca="a", transport=transport)
    assert config.tls == TlsFiles("c", "k", "a")
    assert PluginConfig(transport=transport).tls is None


@pytest.mark.parametrize("variable", ["REDUCTION_JOB", "REDUCTION_REDUCERS"])
def test_bytes_of_the_environment_that_are_no_text(variable):
    with pytest.raises(ConfigError):  # b"\xff" in the environment is "\udcff" here
        build({}, {variable: "\udcff:1"})


@pytest.mark.parametrize(
    "address",
    ["host", "host:", ":50051", "host:0", "host:65536", "host:-1", "host:http", "dns::50051", "dns:name", ""],
)
def test_what_is_no_address(address):
    with pytest.raises(ConfigError, match="is not HOST:PORT or dns:NAME:PORT with a port of 1 to 65535"):
        PluginConfig(reducers=(address,))


def test_values_at_the_edge_pass():
    addresses = ("a:1", "a:65535", "[::1]:50051", "dns:reducers.default.svc:50051", "a" * 253 + ":1")
    config = PluginConfig(
        reducers=addresses,
        job="j" * 200,
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


# ---- types ----


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("rank", "0", 0),
        ("rank", np.int64(3), 3),
        ("world_size", "4", 4),
        ("timeout_s", "30", 30.0),
        ("stall_warn_s", np.float32(0.5), 0.5),
        ("join_timeout_s", 3, 3.0),
        ("chunk_bytes", "65536", 65536),
        ("credit_bytes", "65536", 65536),
        ("local_group", "4", 4),
        ("local_group", np.int32(4), 4),
        ("local_group", "auto", "auto"),
        ("checksums", "1", True),
        ("checksums", 0, False),
        ("token_file", Path("/run/tokens"), "/run/tokens"),
    ],
)
def test_what_is_meant_is_taken(name, value, meant):
    taken = getattr(build({name: value}, {}), name)
    assert taken == meant
    assert type(taken) is type(meant)


SECONDS = "which is no number: allowed are more than 0 to 3e+06 seconds"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("timeout_s", "soon", f"timeout_s is 'soon', {SECONDS}"),
        ("timeout_s", [5], f"timeout_s is [5], {SECONDS}"),
        ("close_timeout_s", True, f"close_timeout_s is True, {SECONDS}"),
        ("join_timeout_s", 10**400, f"join_timeout_s is {10**400}, {SECONDS}"),
        ("rank", "first", "rank is 'first', which is no whole number: allowed are 0 to 4095"),
        ("rank", 1.0, "rank is 1.0, which is no whole number: allowed are 0 to 4095"),
        ("rank", False, "rank is False, which is no whole number: allowed are 0 to 4095"),
        ("world_size", "", "world_size is '', which is no whole number: allowed are 1 to 4096"),
        (
            "chunk_bytes",
            "64K",
            "chunk_bytes is '64K', which is no whole number: allowed are 1024 to 4194304 bytes",
        ),
        (
            "credit_bytes",
            (),
            "credit_bytes is (), which is no whole number: allowed are 1024 to 1073741824 bytes",
        ),
        (
            "reducers",
            5,
            "reducers is 5; it must be a list of HOST:PORT, or one string with commas between them",
        ),
        ("reducers", b"h:1", "reducers is b'h:1'; it must be a list of HOST:PORT"),
        ("reducers", {"h": 1}, "reducers is {'h': 1}; it must be a list of HOST:PORT"),
        ("reducers", [("h", 1)], "reducers[0] is ('h', 1); it must be a string, HOST:PORT"),
        (
            "reducers",
            [],
            "reducers is [], which names no reducer: give at least one HOST:PORT, or leave it out, and rank 0 starts "
            "a private one on its host",
        ),
        ("reducers", "", "reducers is '', which names no reducer"),
        ("job", 5, "job is 5; it must be a string of 1 to 200 bytes"),
        ("transport", 5, "transport is 5; it must be 'auto', 'tcp' or 'grpc'"),
        ("wire_dtype", 16, "wire_dtype is 16; it must be a string such as 'bf16'"),
        ("on_reducer_loss", ["wait"], "on_reducer_loss is ['wait']; it must be 'reshard', 'wait' or 'raise'"),
        ("fallback", True, "fallback is True; it must be None or 'embedded'"),
        ("checksums", "yes", "checksums is 'yes'; it must be True or False"),
        ("checksums", 2, "checksums is 2; it must be True or False"),
        ("checksums", 1.0, "checksums is 1.0; it must be True or False"),
        ("local_group", 2.0, "local_group is 2.0; it must be None, 'auto' or a number of ranks, 1 to 4096"),
        ("token_file", 5, "token_file is 5; it must be the path of a file"),
        ("tls_cert", b"/run/cert", "tls_cert is b'/run/cert'; it must be the path of a file"),
    ],
)
def test_a_wrong_type_is_named_with_what_is_allowed(name, value, text):
    with pytest.raises(ConfigError) as caught:
        build({name: value}, {})
    assert str(caught.value).startswith(text)


def test_a_file_must_be_there(tmp_path):
    there, secret = tmp_path / "tokens", tmp_path / "secret"
    there.write_text("*:0123456789abcdef")
    secret.write_text("")
    secret.chmod(0)
    check_files(build({"token_file": there}, {}))
    check_files(build({}, {}))
    expected = {tmp_path / "absent": "is not there", tmp_path: "is a directory"}
    if os.geteuid():  # root may read everything
        expected[secret] = "may not be read by this user"
    for path, why in expected.items():
        with pytest.raises(ConfigError) as caught:
            check_files(build({"token_file": path}, {}))
        assert str(caught.value) == f"token_file is {str(path)!r}, which {why}: give the path of a file"


def test_files_are_looked_for_when_a_state_is_made(tmp_path):
    files = {
        "tls_cert": there_is(tmp_path, "cert"),
        "tls_key": there_is(tmp_path, "key"),
        "tls_ca": "/absent/ca",
    }
    with pytest.raises(ConfigError, match="tls_ca is '/absent/ca', which is not there"):
        ReductionState("a:1", **files)


def there_is(directory, name):
    path = directory / name
    path.write_text("")
    return path


# ---- one table ----

ROWS = rows(PluginConfig)


def test_type_checkers_know_the_settings_of_the_table():
    """Whatever a setting can be may be given for it, and None."""
    given, understood = typing.get_type_hints(AllSettings), typing.get_type_hints(PluginConfig)
    assert {*given} == {*understood} == {row.name for row in ROWS}
    assert given["reducers"] == typing.get_type_hints(ReductionState.__init__)["reducers"]
    for name in {*given} - {"reducers"}:
        assert members(given[name]) >= members(understood[name]) | {type(None)}, name


def members(union):
    """Return the types of a union, or the one type."""
    return {*(typing.get_args(union) or (union,))}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.usefixtures("nobody_warned")
def test_each_row_is_an_argument_a_variable_and_a_line_of_the_help(row, caplog):
    assert row.variable == f"REDUCTION_{row.name.upper()}"
    assert getattr(PluginConfig(), row.name) == row.default
    assert f"    {row.name}: {row.doc.split()[0]}" in inspect.getdoc(ReductionState)
    for arguments, environ in ({row.name: "?"}, {}), ({}, {row.variable: "?"}):
        text = outcome(row.name, arguments, environ)
        assert "?" in text or row.name in text
    assert caplog.records == []


def outcome(name, arguments, environ):
    """Return the value of a setting as a text, or the error."""
    try:
        return str(getattr(build(arguments, environ), name))
    except ConfigError as error:
        return str(error)


def test_an_unknown_argument_is_named_with_the_nearest_one():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'timeout'; did you mean 'timeout_s'\?"):
        ReductionState("a:1", timeout=5)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'colour'$"):
        ReductionState("a:1", colour="red")


# ---- variables that are none of ours ----


@pytest.fixture
def nobody_warned(monkeypatch):
    monkeypatch.setattr(environment, "_warned", set())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("REDUCTION_REDUCER", "REDUCTION_REDUCER is no setting; did you mean REDUCTION_REDUCERS?"),
        ("REDUCTION_TIMEOUT", "REDUCTION_TIMEOUT is no setting; did you mean REDUCTION_TIMEOUT_S?"),
        ("REDUCTION_LOGS", "REDUCTION_LOGS is no setting; did you mean REDUCTION_LOG?"),
        ("REDUCTION_FACTOR_OF_X", "REDUCTION_FACTOR_OF_X is no setting, and changes nothing"),
    ],
)
@pytest.mark.usefixtures("nobody_warned")
def test_a_variable_that_is_no_setting_is_warned_of_once(name, text, caplog):
    for _ in range(2):
        assert build({}, {name: "1", "HOME": "/"}) == PluginConfig()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", text)]


@pytest.mark.usefixtures("nobody_warned")
def test_what_others_of_our_processes_read_is_no_typo(caplog):
    build(
        {}, {"REDUCTION_START_PATH": "/a", "REDUCTION_LOG": "info", "REDUCTION_JOB": "x", "REDUCTIONS": "1"}
    )
    assert caplog.records == []
    assert launch.VARIABLE in environment.OTHERS
