"""The worker memory that a reducer maps: bytes and regions, with a share for each job."""

import resource

import pytest
from reduction.limits import MAPPED_REGIONS_MAX
from reduction.transports.tcp import CannotShare

from reducer.core.fair_shares import Account
from reducer.resources.host_limits import machine_memory
from reducer.resources.mapped import Mapped

A, B = Account("a"), Account("b")


@pytest.fixture(autouse=True)
def many_descriptors(monkeypatch):
    limits = {resource.RLIMIT_NOFILE: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    return limits


def test_one_job_cannot_map_all_of_the_machines_memory():
    mapped = Mapped()
    [there] = machine_memory()
    assert mapped.memory.limit == there
    with pytest.raises(CannotShare, match=r"job a may map \d+ bytes"):
        mapped.charge(A, there * 4 // 5)
    assert (mapped.memory.taken, mapped.regions.taken) == (0, 0)
    mapped.charge(A, there * 7 // 10)
    with pytest.raises(CannotShare):
        mapped.charge(A, there // 10)
    mapped.charge(B, there // 10)
    mapped.charge(A, -(there * 7 // 10))
    mapped.charge(B, -(there // 10))
    assert (mapped.memory.taken, mapped.regions.taken) == (0, 0)


def test_one_job_cannot_have_all_regions(many_descriptors):
    mapped = Mapped()
    for _ in range(MAPPED_REGIONS_MAX * 3 // 4):
        mapped.charge(A, 1)
    with pytest.raises(CannotShare, match="job a may map 0 regions"):
        mapped.charge(A, 1)
    mapped.charge(B, 1)
    many_descriptors[resource.RLIMIT_NOFILE] = 1024, 4096
    with pytest.raises(CannotShare):
        mapped.charge(B, 1)


def test_half_of_the_descriptors_are_reserved_for_connections(many_descriptors):
    many_descriptors[resource.RLIMIT_NOFILE] = 100, 100
    mapped = Mapped()
    for account, count in ((A, 37), (B, 9)):
        for _ in range(count):
            mapped.charge(account, 1)
        with pytest.raises(CannotShare):
            mapped.charge(account, 1)
    assert mapped.regions.taken < 50
