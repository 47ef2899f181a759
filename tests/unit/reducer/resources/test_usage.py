"""The resource usage that a process reports."""

import time

from reducer.resources import usage


def test_processor_time_grows_while_the_process_works():
    before = usage.cpu_seconds()
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass
    assert usage.cpu_seconds() >= before + 0.02


def test_resident_memory_is_read_from_statm(tmp_path):
    assert 1 << 20 < usage.resident_bytes() < 1 << 40
    statm = tmp_path / "statm"
    assert usage.resident_bytes(statm) == 0
    statm.write_text("nonsense")
    assert usage.resident_bytes(statm) == 0
