"""Values that users may pass for a setting: of the right type, or convertible to it."""

import os
from pathlib import Path

import numpy as np
import pytest
from reduction.errors import ConfigError

from worker_plugin import ReductionState
from worker_plugin.config import build, check_files


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
def test_values_are_converted_to_their_type(name, value, meant):
    taken = getattr(build({name: value}, {}), name)
    assert taken == meant
    assert type(taken) is type(meant)


SECONDS = "which is not a number; allowed: more than 0 to 3e+06 seconds"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("timeout_s", "soon", f"timeout_s is 'soon', {SECONDS}"),
        ("timeout_s", [5], f"timeout_s is [5], {SECONDS}"),
        ("close_timeout_s", True, f"close_timeout_s is True, {SECONDS}"),
        ("join_timeout_s", 10**400, f"join_timeout_s is {10**400}, {SECONDS}"),
        ("rank", "first", "rank is 'first', which is not a whole number; allowed: 0 to 4095"),
        ("rank", 1.0, "rank is 1.0, which is not a whole number; allowed: 0 to 4095"),
        ("rank", False, "rank is False, which is not a whole number; allowed: 0 to 4095"),
        ("world_size", "", "world_size is '', which is not a whole number; allowed: 1 to 4096"),
        (
            "chunk_bytes",
            "64K",
            "chunk_bytes is '64K', which is not a whole number; allowed: 1024 to 4194304 bytes, multiples of 1024",
        ),
        (
            "credit_bytes",
            (),
            "credit_bytes is (), which is not a whole number; allowed: 1024 to 1073741824 bytes",
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


def test_a_file_must_exist(tmp_path):
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


def test_files_are_checked_when_a_state_is_made(tmp_path):
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
