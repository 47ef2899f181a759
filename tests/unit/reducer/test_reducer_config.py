"""The reducer's settings, validated on construction."""

import json

import pytest
from reduction.errors import ConfigError
from reduction.limits import PROCESSES_MAX
from reduction.security.tls import TlsFiles
from reduction.values import from_json, to_json

from reducer.config import DRAIN_TIMEOUT_S, ReducerConfig, complete_address, split_address
from reducer.resources.host_limits import default_memory_limit, default_processes
from reducer.resources.ports import PortRange, Ports

TLS = {"tls_cert": "c", "tls_key": "k", "tls_ca": "a"}


def test_defaults():
    config = ReducerConfig(bind="127.0.0.1:0")
    assert config.host == "127.0.0.1"
    assert config.data_port == 0
    assert config.metrics_port is None
    assert config.processes == default_processes()
    assert config.memory_limit_bytes == default_memory_limit()
    assert config.drain_timeout_s == DRAIN_TIMEOUT_S
    assert (config.insecure, config.stop_with_stdin) == (False, False)
    assert (config.tls, config.token_file) == (None, None)


def test_processes_share_the_memory():
    for limit in (None, 1000):
        given = {} if limit is None else {"memory_limit_bytes": limit}
        config = ReducerConfig(bind="127.0.0.1:0", processes=3, **given)
        assert config.memory_limit_bytes_each == (limit or default_memory_limit()) // 3


def test_each_process_gets_its_own_part_of_the_settings():
    """Settings are passed in JSON, as the supervisor passes them."""
    config = ReducerConfig(
        **{"bind": "0.0.0.0:7000", "port_range": PortRange(7000, 7009), "metrics_port": 0, **TLS},
        **{"page": True, "page_hosts": ("a", "b"), "processes": 2, "memory_limit_bytes": 1001},
        **{"link_mbit": 100, "drain_timeout_s": 5, "exit_after_job_s": 1.5, "wait_for_job_s": 2.5},
        **{"token_file": "t", "insecure": True, "stop_with_stdin": True, "trace": "d", "log_format": "json"},
    )
    first, second = (config.of_process(number, 7000 + 2 * number, (number + 3,)) for number in range(2))
    for one in (first, second):
        assert from_json(ReducerConfig, json.loads(json.dumps(to_json(one)))) == one
        assert (one.processes, one.memory_limit_bytes, one.port_range) == (1, 500, None)
        assert (one.under_supervisor, one.ports_are_held, one.stop_with_stdin) == (True, True, False)
        same = ("tls", "token_file", "insecure", "link_mbit", "drain_timeout_s", "exit_after_job_s")
        same += ("wait_for_job_s", "trace", "log_level", "log_format")
        assert [getattr(one, name) for name in same] == [getattr(config, name) for name in same]
    assert (first.bind, first.data_port, first.metrics_port) == ("0.0.0.0:7000", 7001, 7009)
    assert (second.bind, second.data_port, second.metrics_port) == ("0.0.0.0:7002", 7003, None)
    assert (first.page, first.page_hosts) == (True, ("a", "b"))
    assert (second.page, second.page_hosts) == (False, ())
    assert (second.number, second.metrics_lines) == (1, (4,))


def test_processes_may_be_set_to_the_maximum():
    assert ReducerConfig(bind="127.0.0.1:0", processes=PROCESSES_MAX).processes == PROCESSES_MAX == 256


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:50051", ("127.0.0.1", 50051)),
        ("[::1]:50051", ("::1", 50051)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_splitting_an_address(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["", "50051", ":50051", "host", "host:", "host:http", "host:-1", "[]:1"])
def test_invalid_addresses_are_refused(address):
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        split_address(address)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("::1:50078", "write [::1]:50078"),
        ("fe80::1:0", "write [fe80::1]:0"),
        ("::1", "write [::1]:50051"),
        ("::", "write [::]:50051"),
    ],
)
def test_ipv6_needs_brackets(address, text):
    with pytest.raises(ConfigError) as caught:
        split_address(address)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("given", "address"),
    [("50052", "127.0.0.1:50052"), ("0", "127.0.0.1:0"), ("host:1", "host:1"), ("host", "host")],
)
def test_a_bare_port_is_on_the_loopback_address(given, address):
    assert complete_address(given) == address


def test_the_metrics_of_all_processes_have_one_url():
    config = ReducerConfig(bind="[::1]:0", metrics_port=65535, processes=2)
    assert config.metrics_url == "http://[::1]:65535/metrics"
    assert ReducerConfig(bind="127.0.0.1:0").metrics_url is None


def test_the_ports_of_all_processes_must_be_in_range():
    ReducerConfig(bind="127.0.0.1:0", processes=4, data_port=65532)
    with pytest.raises(ConfigError, match="--data-port 65533: 4 processes take the ports up to 65536"):
        ReducerConfig(bind="127.0.0.1:0", processes=4, data_port=65533)


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "127.9.9.9:65535", "localhost:1", "[::1]:0"])
def test_loopback_needs_no_flag(bind):
    assert ReducerConfig(bind=bind).bind == bind


@pytest.mark.parametrize("port", [0, 1, 50052, 65535])
def test_valid_data_ports(port):
    assert ReducerConfig(bind="127.0.0.1:0", data_port=port, processes=1).data_port == port


@pytest.mark.parametrize("bind", ["0.0.0.0:50051", "10.0.0.5:50051", "[::]:50051", "reducer-0.example:50051"])
def test_other_addresses_need_tls_or_token_or_insecure(bind):
    with pytest.raises(ConfigError) as caught:
        ReducerConfig(bind=bind)
    text = (
        "add --tls-cert, --tls-key and --tls-ca, or --token-file, or --insecure (REDUCER_INSECURE=1) if everybody on "
        "that network may be trusted"
    )
    assert text in str(caught.value)
    for allowed in (TLS, {"token_file": "t"}, {"insecure": True}):
        assert ReducerConfig(bind=bind, **allowed).bind == bind


def test_tls():
    config = ReducerConfig(bind="127.0.0.1:0", **TLS)
    assert config.tls == TlsFiles("c", "k", "a")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"bind": "nonsense"}, "'nonsense' is not HOST:PORT, such as 10.0.0.5:50051"),
        ({"bind": "127.0.0.1:65536"}, "--bind 127.0.0.1:65536: the port must be 0 to 65535"),
        ({"data_port": -1}, "--data-port -1: must be 0 to 65535"),
        ({"data_port": 65536}, "--data-port 65536: must be 0 to 65535"),
        (
            TLS | {"tls_key": None},
            "--tls-key is missing: TLS needs --tls-cert, --tls-key, --tls-ca, all three or none",
        ),
        ({"metrics_port": 0}, "--metrics-port 0: must be 1 to 65535, or 0 with --port-range"),
        ({"metrics_port": 65536}, "--metrics-port 65536: must be 1 to 65535"),
        ({"drain_timeout_s": -1.0}, "--drain-timeout -1: must be 0 to 604800 seconds"),
        ({"drain_timeout_s": float("nan")}, "--drain-timeout nan: must be 0 to 604800 seconds"),
        (
            {"port_range": PortRange(7000, 7009), "bind": "127.0.0.1:7000", "data_port": 8000},
            "--data-port 8000: --port-range 7000-7009 has the data ports: leave one out",
        ),
        (
            {"port_range": PortRange(7000, 7009), "bind": "127.0.0.1:50051"},
            "--bind 127.0.0.1:50051: --port-range 7000-7009 begins with another port; give port 0 to take that",
        ),
        (
            {"port_range": PortRange(7000, 7002), "bind": "127.0.0.1:7000", "processes": 2},
            "--port-range 7000-7002: 2 processes take 4 ports, and it has 3: let it have 4, or set --processes to 1 or "
            "less",
        ),
        (
            {"memory_limit_bytes": 2, "processes": 3},
            "--memory-limit 2: must be at least 3, a byte for each process",
        ),
        (
            {"memory_limit_bytes": -1, "processes": 1},
            "--memory-limit -1: must be at least 1, a byte for each process",
        ),
    ],
)
def test_wrong_values_are_named_with_their_option(values, text):
    with pytest.raises(ConfigError) as caught:
        ReducerConfig(**{"bind": "127.0.0.1:0"} | values)
    assert str(caught.value) == text


def in_range(**more):
    return ReducerConfig(bind="127.0.0.1:7000", port_range=PortRange(7000, 7019), processes=3, **more)


def test_ports_of_a_range():
    config = in_range(metrics_port=0)
    assert [config.ports(number) for number in range(3)] == [
        Ports(7000, 7001, 7019),
        Ports(7002, 7003, None),
        Ports(7004, 7005, None),
    ]
    assert config.metrics_url == "http://127.0.0.1:7019/metrics"


def test_metrics_port_outside_a_range_or_unset():
    assert in_range(metrics_port=9102).ports(0) == Ports(7000, 7001, 9102)
    assert in_range().ports(2) == Ports(7004, 7005, None)


def test_ports_without_a_range():
    config = ReducerConfig(bind="127.0.0.1:7000", data_port=8000, metrics_port=9000, processes=2)
    assert [config.ports(number) for number in range(2)] == [Ports(7000, 8000, 9000), Ports(0, 8001, None)]
    free = ReducerConfig(bind="127.0.0.1:0", processes=2)
    assert [free.ports(number) for number in range(2)] == [Ports(0, 0, None)] * 2
