"""Cores and memory of machines and containers, in trees of files that look like /proc and /sys."""

import os

import pytest

from reducer.resources.allowance import (
    MEMORY_SHARE,
    MEMORY_UNKNOWN,
    PROCESSES_DEFAULT_MAX,
    cores,
    default_memory_limit,
    default_processes,
    memory,
)

GIB = 1 << 30
V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot"
V1 = (
    "33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 32 0:32 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory\n"
    "40 32 0:37 / /sys/fs/cgroup/systemd rw shared:12 - cgroup cgroup rw,xattr,name=systemd"
)
OTHERS = "22 28 0:21 / /proc rw - proc proc rw\n24 28 8:1 /a\\040b / rw - ext4 /dev/sda1 rw\n"
#: What cgroup v1 has where there is no limit.
NO_LIMIT = "9223372036854771712\n"


@pytest.fixture(autouse=True)
def affinity(monkeypatch):
    """Let the process run on 16 cores, until the test says otherwise."""

    def use(count):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)

    use(16)
    return use


@pytest.fixture
def machine(tmp_path):
    """Return a function that writes files below a root, and returns it; of 64 GiB unless a file says otherwise."""

    def make(files):
        for name, text in ({"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\n"} | files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


@pytest.fixture
def v2(machine):
    """Return a function that makes a machine with cgroup v2 from the files of its cgroups."""

    def make(files, path="/a/b", mounts=OTHERS + V2):
        there = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        return machine({"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": mounts} | there)

    return make


@pytest.fixture
def v1(machine):
    """Return a function that makes a machine with cgroup v1 from the files of its cgroups."""

    def make(files, path="/a/b", mounts=OTHERS + V1):
        lines = f"12:cpu,cpuacct:{path}\n11:memory:{path}\n1:name=systemd:/init\n"
        there = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        return machine({"proc/self/cgroup": lines, "proc/self/mountinfo": mounts} | there)

    return make


# ---- a machine ----


def test_a_machine_without_cgroups(machine):
    root = machine({})
    assert (cores(root), memory(root)) == (16, 64 * GIB)
    assert default_processes(root) == PROCESSES_DEFAULT_MAX == 8
    assert default_memory_limit(root) == int(64 * GIB * MEMORY_SHARE)


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (3, 3), (8, 8), (9, 8)])
def test_the_cores_that_the_process_may_run_on(machine, affinity, count, workers):
    affinity(count)
    root = machine({})
    assert (cores(root), default_processes(root)) == (count, workers)


def test_without_affinity_all_cores_count(machine, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    for count, expected in ((5, 5), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert cores(machine({})) == expected


def test_without_proc_the_memory_is_what_posix_says(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert memory(tmp_path) == 4 * GIB


@pytest.mark.parametrize("error", [ValueError, OSError])
def test_memory_that_nobody_knows(tmp_path, monkeypatch, error):
    def unknown(name):
        raise error(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert memory(tmp_path) is None
    assert default_memory_limit(tmp_path) == MEMORY_UNKNOWN


def test_this_machine(affinity):
    affinity(os.cpu_count())
    assert 0 < cores() <= os.cpu_count()
    assert default_processes() == max(1, min(8, int(cores())))
    assert memory() > 64 << 20


# ---- cgroup v2 ----


@pytest.mark.parametrize(
    ("quotas", "expected", "workers"),
    [
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "max 100000\n"}, 16, 8),
        ({"a/b/cpu.max": "250000 100000\n", "a/cpu.max": "max 100000\n"}, 2.5, 2),
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 50000\n"}, 3, 3),
        ({"a/b/cpu.max": "800000 100000\n", "a/cpu.max": "400000 100000\n"}, 4, 4),
        ({"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "800000 100000\n"}, 4, 4),
        ({"a/b/cpu.max": "50000 100000\n"}, 0.5, 1),
        ({"cpu.max": "200000 100000\n"}, 2, 2),
        ({"elsewhere/cpu.max": "100000 100000\n"}, 16, 8),
        ({"a/b/cpu.max": "", "a/cpu.max": "nonsense\n"}, 16, 8),
    ],
)
def test_the_tightest_quota_counts(v2, quotas, expected, workers):
    root = v2(quotas)
    assert (cores(root), default_processes(root)) == (expected, workers)


def test_affinity_counts_if_it_is_less_than_the_quota(v2, affinity):
    affinity(2)
    assert cores(v2({"a/b/cpu.max": "600000 100000\n"})) == 2


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"a/b/memory.max": "max\n", "a/memory.max": "max\n"}, 64 * GIB),
        ({"a/b/memory.max": f"{8 * GIB}\n", "a/memory.max": "max\n"}, 8 * GIB),
        ({"a/b/memory.max": f"{8 * GIB}\n", "a/memory.max": f"{4 * GIB}\n"}, 4 * GIB),
        ({"a/b/memory.max": f"{99 * GIB}\n"}, 64 * GIB),
    ],
)
def test_the_tightest_memory_limit_counts(v2, limits, expected):
    root = v2(limits)
    assert memory(root) == expected
    assert default_memory_limit(root) == int(expected * MEMORY_SHARE)


def test_a_container_that_sees_its_own_cgroup_as_the_root(v2):
    root = v2({"cpu.max": "200000 100000\n", "memory.max": f"{GIB}\n"}, path="/")
    assert (cores(root), memory(root)) == (2, GIB)


def test_a_container_that_sees_the_names_of_its_host(v2):
    mounts = V2.replace(" / /sys/fs/cgroup", " /docker/c0ffee /sys/fs/cgroup")
    files = {"cpu.max": "300000 100000\n", "inner/cpu.max": "200000 100000\n"}
    assert cores(v2(files, path="/docker/c0ffee", mounts=mounts)) == 3
    assert cores(v2(files, path="/docker/c0ffee/inner", mounts=mounts)) == 2
    assert cores(v2(files, path="/another/name", mounts=mounts)) == 3


def test_a_file_that_cannot_be_read_limits_nothing(v2, tmp_path):
    (tmp_path / "sys/fs/cgroup/a/b/cpu.max").mkdir(parents=True)
    assert cores(v2({"a/cpu.max": "200000 100000\n"})) == 2


# ---- cgroup v1 ----


def test_quotas_of_v1(v1):
    files = {
        "cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/a/cpu.cfs_quota_us": "350000\n",
        "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
        "memory/a/cpu.cfs_quota_us": "100000\n",
        "memory/a/cpu.cfs_period_us": "100000\n",
    }
    root = v1(files)
    assert (cores(root), default_processes(root)) == (3.5, 3)


def test_memory_limits_of_v1(v1):
    files = {
        "memory/memory.limit_in_bytes": NO_LIMIT,
        "memory/a/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/a/b/memory.limit_in_bytes": f"{3 * GIB}\n",
        "cpu,cpuacct/a/memory.limit_in_bytes": f"{GIB}\n",
    }
    assert memory(v1(files)) == 2 * GIB


def test_no_limits_of_v1(v1):
    root = v1({"memory/a/b/memory.limit_in_bytes": NO_LIMIT, "cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1\n"})
    assert (cores(root), memory(root)) == (16, 64 * GIB)


def test_a_container_of_v1(v1):
    """Docker shows the names of the host, and mounts the container's own cgroups."""
    mounts = V1.replace(" / /sys", " /docker/c0ffee /sys")
    files = {"memory/memory.limit_in_bytes": f"{GIB}\n"}
    files |= {"cpu,cpuacct/cpu.cfs_quota_us": "100000\n", "cpu,cpuacct/cpu.cfs_period_us": "50000\n"}
    root = v1(files, path="/docker/c0ffee", mounts=mounts)
    assert (cores(root), memory(root)) == (2, GIB)


def test_both_versions_at_once(machine):
    """As systemd calls it, hybrid: v1 has the controllers, v2 only names."""
    root = machine(
        {
            "proc/self/cgroup": "12:cpu,cpuacct:/a\n11:memory:/a\n0::/b\n",
            "proc/self/mountinfo": f"{OTHERS}{V1}\n{V2.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')}\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/unified/b/cgroup.procs": "1\n",
        }
    )
    assert (cores(root), memory(root)) == (3, GIB)
