"""The exhausted resource that an error names, and claims that it does not make."""

from __future__ import annotations

import errno
import resource

import pytest
from reduction.errors import LocalProtocolError, OutOfOrder, ResourceExhausted
from reduction.shortage import DESCRIPTORS_SPARE, check_spare, failure_of, shortage


@pytest.fixture(autouse=True)
def _limits(monkeypatch):
    allowed = {resource.RLIMIT_NOFILE: 48, resource.RLIMIT_AS: 1 << 30}
    monkeypatch.setattr(
        resource,
        "getrlimit",
        lambda what: (allowed.get(what, resource.RLIM_INFINITY), resource.RLIM_INFINITY),
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EMFILE, "x"), "Too many open files, this process may have 48: raise ulimit -n"),
        (OSError(errno.EFBIG, "x"), "File too large: raise ulimit -f"),
        (MemoryError(), "Cannot allocate memory, this process may have 1073741824: raise ulimit -v"),
        (RuntimeError("can't start new thread"), "Resource temporarily unavailable: raise ulimit -u"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
            "Cannot allocate memory",
        ),
    ],
)
def test_it_names_the_limit_and_what_to_raise(error, text):
    assert shortage(error).startswith(text)


@pytest.mark.parametrize(
    "error", [OSError("x"), PermissionError(errno.EPERM, "x"), RuntimeError("a bug"), ValueError("memory")]
)
def test_other_errors_are_not_shortages(error):
    assert shortage(error) == ""


def test_a_shortage_may_be_retried_and_a_bug_may_not():
    short = failure_of("a copy failed", MemoryError())
    assert type(short) is ResourceExhausted
    assert str(short).startswith("a copy failed: Cannot allocate memory")
    bug = failure_of("a copy failed", KeyError("x"))
    assert type(bug) is LocalProtocolError
    assert str(bug) == "a copy failed: KeyError('x')"
    ours = OutOfOrder("not now")
    assert failure_of("a copy failed", ours) is ours


@pytest.mark.parametrize(
    ("descriptor", "is_spare"), [(48 - DESCRIPTORS_SPARE - 1, True), (48 - DESCRIPTORS_SPARE, False)]
)
def test_optional_uses_do_not_take_the_last_descriptors(descriptor, is_spare):
    if is_spare:
        check_spare(descriptor)
    else:
        with pytest.raises(OSError, match="are for connections") as caught:
            check_spare(descriptor)
        assert caught.value.errno == errno.EMFILE


def test_without_a_limit_every_descriptor_is_spare(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    check_spare(1 << 20)
