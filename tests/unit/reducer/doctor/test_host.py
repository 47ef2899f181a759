"""The doctor's readings of a host, from files in the format of /proc and /sys, and of its own certificate."""

import os

import pytest
from reduction.errors import ConfigError
from reduction.model import DType

from reducer.doctor import host
from reducer.doctor.facts import from_json
from reducer.doctor.reach import interface_of, link_speed
from reducer.resources.host_limits import Periods, cpu_periods

MOUNT = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def container(tmp_path):
    """A host whose cgroup may use half a core, and has not been throttled yet."""
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/app\n",
            "proc/self/mountinfo": MOUNT,
            "proc/stat": "cpu  100 0 50 900 0 0 0 0 0 0\n",
            "proc/meminfo": "MemTotal: 8388608 kB\n",
            "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
            "proc/sys/net/ipv4/tcp_wmem": "4096\t16384\t4194304\n",
            "proc/sys/net/ipv4/tcp_congestion_control": "cubic\n",
            "proc/sys/net/core/somaxconn": "4096\n",
            "sys/fs/cgroup/pod/app/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/pod/app/cpu.stat": "usage_usec 5\nnr_periods 10\nnr_throttled 1\n",
            "sys/fs/cgroup/pod/cpu.stat": "usage_usec 5\nnr_periods 0\nnr_throttled 0\n",
        },
    )
    return tmp_path


def test_a_quota_and_how_often_it_bites(container, monkeypatch):
    monkeypatch.setattr(host, "WATCH_S", 0.01)
    monkeypatch.setattr(host, "SUMS_S", 0.001)
    probe = host.HostProbe(container)
    assert cpu_periods(container) == Periods(10, 1)
    write(container, {"sys/fs/cgroup/pod/app/cpu.stat": "nr_periods 110\nnr_throttled 81\n"})
    seen = probe.host()
    assert seen.cores == 0.5
    assert seen.affinity == len(os.sched_getaffinity(0))
    assert seen.throttled == pytest.approx(0.8)
    assert seen.busy_cores == 0.0
    assert seen.memory_bytes == 8 << 30
    assert (seen.receive_buffer, seen.send_buffer) == (6291456, 4194304)
    assert (seen.congestion, seen.backlog) == ("cubic", 4096)
    assert set(seen.sums) == {"float32", "bf16", "int8"}
    assert min(seen.sums.values()) > 0


def test_a_host_that_reveals_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "WATCH_S", 0.01)
    monkeypatch.setattr(host, "SUMS_S", 0.001)
    seen = host.HostProbe(tmp_path).host()
    assert (seen.throttled, seen.busy_cores, seen.receive_buffer, seen.congestion) == (0.0, 0.0, 0, "")


def test_sums_of_bfloat16_cost_more_than_those_of_float32():
    assert host.sum_rate(DType.FLOAT32) > host.sum_rate(DType.BFLOAT16)


def test_only_the_speed_of_a_real_card_counts(tmp_path):
    write(tmp_path, {"sys/class/net/eth0/speed": "25000\n", "sys/class/net/eth0/device/vendor": "x"})
    write(tmp_path, {"sys/class/net/veth0/speed": "10000\n", "sys/class/net/eth1/device/vendor": "x"})
    write(tmp_path, {"sys/class/net/eth1/speed": "-1\n"})
    assert [link_speed(name, tmp_path) for name in ("eth0", "veth0", "eth1", "eth2", "")] == [
        25000,
        0,
        0,
        0,
        0,
    ]


def test_the_interface_of_an_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == ""


@pytest.mark.parametrize(
    "document", [None, [], {"workers": 3}, {"workers": [{}]}, {"works": []}, {"workers": [], "failure": 1}]
)
def test_invalid_facts_are_refused(document):
    with pytest.raises(ConfigError, match="this is not the doctor's Facts"):
        from_json(document)
