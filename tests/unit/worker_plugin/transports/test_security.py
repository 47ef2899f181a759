"""Access to joining and to the status, and a rank's credentials; no secret is in an error or a repr."""

import pickle

import pytest
from reduction.client.access import OPEN
from reduction.errors import ConfigError, Unauthenticated
from reduction.model import PROTOCOL_VERSION, Goodbye, Join
from reduction.security.tokens import TokenTable, to_metadata
from support.network.certificates import Authority

from reducer.credentials import Certificates
from reducer.security import check_join, check_status
from worker_plugin.config import PluginConfig
from worker_plugin.transports.security import access_of, private_access

A, B = "a" * 32, "b" * 32
TOKENS = TokenTable({"one": A, "two": B})
PEER = "ipv4:10.0.0.7:41000"


def join(job="one", protocol=PROTOCOL_VERSION):
    return Join(job, b"", 1, 2, bytes(16), "host-7", 0, 4096, protocol)


def test_a_join_with_its_jobs_token_is_accepted():
    check_join(TOKENS, join(), to_metadata(A), PEER)
    check_join(TOKENS, join("two"), to_metadata(B), PEER)


@pytest.mark.parametrize(
    ("shown", "what"), [(None, "no"), (B, "a wrong"), ("nonsense", "a wrong"), (A + "a", "a wrong")]
)
@pytest.mark.parametrize("job", ["one", "three"])
def test_a_join_without_it_is_refused(shown, what, job):
    with pytest.raises(Unauthenticated) as caught:
        check_join(TOKENS, join(job), to_metadata(shown), PEER)
    assert str(caught.value).startswith(f"rank 1 (host-7, {PEER}) shows {what} token for job {job!r}: ")
    assert not any(secret in str(caught.value) for secret in (A, B, "nonsense"))


@pytest.mark.parametrize("frame", [join(protocol=PROTOCOL_VERSION + 1), Goodbye(0, 0)])
def test_frames_the_core_refuses_are_not_checked(frame):
    check_join(TOKENS, frame, (), PEER)


def test_without_tokens_none_is_required_and_none_is_shown():
    check_join(None, join(), (), PEER)
    check_status(None, (), PEER)
    assert access_of(PluginConfig(), "one") == OPEN
    assert (OPEN.tls, OPEN.credentials, OPEN.metadata) == (None, None, ())


def test_any_token_may_ask_for_the_status():
    for token in (A, B):
        check_status(TOKENS, to_metadata(token), PEER)


@pytest.mark.parametrize(
    ("shown", "what", "advice"),
    [
        (None, "no", "pass --token-file"),
        ("nonsense", "a wrong", "pass a --token-file with a line of this reducer's"),
    ],
)
def test_other_status_requests_fail(shown, what, advice):
    with pytest.raises(Unauthenticated, match=f"{PEER} shows {what} token for the status: {advice}$"):
        check_status(TOKENS, to_metadata(shown), PEER)


# ---- the worker's side ----


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"one:{A}\n")
    return str(path)


def test_the_jobs_token_is_required_and_used(token_file):
    config = PluginConfig(token_file=token_file)
    assert access_of(config, "one").metadata == to_metadata(A)
    with pytest.raises(ConfigError, match=f"{token_file} has no line for job 'two'"):
        access_of(config, "two")


def test_certificates(tmp_path):
    files = Authority(tmp_path).files("127.0.0.1")
    config = PluginConfig(tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca)
    access = access_of(config, "one")
    assert access.tls == files
    assert access.credentials is not None
    assert access.metadata == ()
    assert Certificates(files).credentials is not None


def test_tokens_are_not_printed_or_pickled(token_file):
    config = PluginConfig(token_file=token_file)
    for value in (access_of(config, "one"), private_access(A)):
        assert A not in repr(value)
    assert A.encode() not in pickle.dumps(config)


@pytest.mark.parametrize(("days", "what"), [((-3, -2), "expired on "), ((2, 3), "is not valid before ")])
def test_a_certificate_out_of_date_is_not_shown(tmp_path, days, what):
    files = Authority(tmp_path).files(days=days)
    config = PluginConfig(reducers=("a:1",), tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca)
    with pytest.raises(ConfigError) as caught:
        access_of(config, "one")
    assert str(caught.value).startswith(f"our certificate {files.cert} {what}")
