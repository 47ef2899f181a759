"""Cores and memory of machines and containers, in file trees like /proc and /sys."""

import os

import pytest

from reducer.resources.host_limits import (
    MEMORY_SHARE,
    MEMORY_UNKNOWN,
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
#: cgroup v1's value for no limit.
NO_LIMIT = "9223372036854771712\n"


@pytest.fixture(autouse=True)
def affinity(monkeypatch):
    """Let the process run on 16 cores, until the test changes that."""

    def use(count):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)

    use(16)
    return use


@pytest.fixture
def machine(tmp_path):
    """Return a function that writes files below a root and returns it. Memory is 64 GiB unless a file differs."""

    def make(files):
        for name, text in ({"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\n"} | files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def grouped(cgroup, mounts, files):
    there = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return {"proc/self/cgroup": cgroup, "proc/self/mountinfo": OTHERS + mounts} | there


def v2(files, path="/a/b", mounts=V2):
    """Return the files of a machine with cgroup v2 from those of its cgroups."""
    return grouped(f"0::{path}\n", mounts, files)


def v1(files, path="/a/b", mounts=V1):
    """Return the files of a machine with cgroup v1 from those of its cgroups."""
    return grouped(f"12:cpu,cpuacct:{path}\n11:memory:{path}\n1:name=systemd:/init\n", mounts, files)


def cpu(folder, quota, period=100_000):
    """Return the files of v1 for a quota."""
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


HOST_V2 = V2.replace(" / /sys/fs/cgroup", " /docker/c0ffee /sys/fs/cgroup")
HOST_V1 = V1.replace(" / /sys", " /docker/c0ffee /sys")
HOST_FILES = {"cpu.max": "300000 100000\n", "inner/cpu.max": "200000 100000\n"}


@pytest.mark.parametrize(
    ("files", "core_count", "gib"),
    [
        ({}, 16, 64),
        # The tightest quota counts.
        (v2({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "max 100000\n"}), 16, 64),
        (v2({"a/b/cpu.max": "250000 100000\n", "a/cpu.max": "max 100000\n"}), 2.5, 64),
        (v2({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 50000\n"}), 3, 64),
        (v2({"a/b/cpu.max": "800000 100000\n", "a/cpu.max": "400000 100000\n"}), 4, 64),
        (v2({"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "800000 100000\n"}), 4, 64),
        (v2({"cpu.max": "200000 100000\n"}), 2, 64),
        (v2({"elsewhere/cpu.max": "100000 100000\n"}), 16, 64),
        (v2({"a/b/cpu.max": "", "a/cpu.max": "nonsense\n"}), 16, 64),
        # The tightest memory limit counts.
        (v2({"a/b/memory.max": "max\n", "a/memory.max": "max\n"}), 16, 64),
        (v2({"a/b/memory.max": f"{8 * GIB}\n", "a/memory.max": "max\n"}), 16, 8),
        (v2({"a/b/memory.max": f"{8 * GIB}\n", "a/memory.max": f"{4 * GIB}\n"}), 16, 4),
        (v2({"a/b/memory.max": f"{99 * GIB}\n"}), 16, 64),
        # A container that sees its own cgroup as the root, and some that see their host's names.
        (v2({"cpu.max": "200000 100000\n", "memory.max": f"{GIB}\n"}, "/"), 2, 1),
        (v2(HOST_FILES, "/docker/c0ffee", HOST_V2), 3, 64),
        (v2(HOST_FILES, "/docker/c0ffee/inner", HOST_V2), 2, 64),
        (v2(HOST_FILES, "/another/name", HOST_V2), 3, 64),
        # v1 has a folder for each controller.
        (v1(cpu("cpu,cpuacct/a/b", -1) | cpu("cpu,cpuacct/a", 350_000) | cpu("memory/a", 100_000)), 3.5, 64),
        (
            v1(
                {
                    "memory/memory.limit_in_bytes": NO_LIMIT,
                    "memory/a/memory.limit_in_bytes": f"{2 * GIB}\n",
                    "memory/a/b/memory.limit_in_bytes": f"{3 * GIB}\n",
                    "cpu,cpuacct/a/memory.limit_in_bytes": f"{GIB}\n",
                }
            ),
            16,
            2,
        ),
        (
            v1({"memory/a/b/memory.limit_in_bytes": NO_LIMIT, "cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1\n"}),
            16,
            64,
        ),
        # Docker shows the host's names, and mounts the container's own cgroups.
        (
            v1(
                {"memory/memory.limit_in_bytes": f"{GIB}\n"} | cpu("cpu,cpuacct", 100_000, 50_000),
                "/docker/c0ffee",
                HOST_V1,
            ),
            2,
            1,
        ),
        # Both versions together, which systemd calls hybrid: v1 has the controllers, v2 only names.
        (
            grouped(
                "12:cpu,cpuacct:/a\n11:memory:/a\n0::/b\n",
                f"{V1}\n{V2.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')}\n",
                {"memory/a/memory.limit_in_bytes": f"{GIB}\n", "unified/b/cgroup.procs": "1\n"}
                | cpu("cpu,cpuacct/a", 300_000),
            ),
            3,
            1,
        ),
    ],
)
def test_cores_and_memory(machine, files, core_count, gib):
    root = machine(files)
    assert (cores(root), memory(root)) == (core_count, gib * GIB)
    assert default_memory_limit(root) == int(gib * GIB * MEMORY_SHARE)


@pytest.mark.parametrize(
    ("quota", "processes"),
    [(50_000, 1), (100_000, 1), (250_000, 2), (300_000, 3), (800_000, 8), (900_000, 8)],
)
def test_there_is_a_process_for_each_whole_core_up_to_eight(machine, quota, processes):
    root = machine(v2({"a/b/cpu.max": f"{quota} 100000\n"}))
    assert (cores(root), default_processes(root)) == (quota / 100_000, processes)


def test_affinity_counts_if_it_is_less_than_the_quota(machine, affinity):
    affinity(2)
    assert cores(machine(v2({"a/b/cpu.max": "600000 100000\n"}))) == 2


def test_a_file_that_cannot_be_read_limits_nothing(machine, tmp_path):
    (tmp_path / "sys/fs/cgroup/a/b/cpu.max").mkdir(parents=True)
    assert cores(machine(v2({"a/cpu.max": "200000 100000\n"}))) == 2


def test_without_affinity_all_cores_count(machine, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    for count, expected in ((5, 5), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert cores(machine({})) == expected


def test_without_proc_the_memory_size_comes_from_posix(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert memory(tmp_path) == 4 * GIB


@pytest.mark.parametrize("error", [ValueError, OSError])
def test_unknown_memory_has_a_default(tmp_path, monkeypatch, error):
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
