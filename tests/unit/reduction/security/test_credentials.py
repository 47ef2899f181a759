"""The files of mutual TLS: all or none, readable, PEM, and matching."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from reduction.errors import ConfigError
from reduction.security.tls import TlsFiles, tls_files
from support.network.certificates import Authority

NAMES = ("--tls-cert", "--tls-key", "--tls-ca")


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def test_all_or_none():
    assert tls_files(None, None, None, NAMES) is None
    assert tls_files("c", "k", "a", NAMES) == TlsFiles("c", "k", "a")


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (("c", None, None), "--tls-key and --tls-ca"),
        ((None, "k", None), "--tls-cert and --tls-ca"),
        ((None, None, "a"), "--tls-cert and --tls-key"),
        (("c", "k", None), "--tls-ca"),
        (("c", None, "a"), "--tls-key"),
        ((None, "k", "a"), "--tls-cert"),
    ],
)
def test_some_are_not_enough(given, missing):
    with pytest.raises(ConfigError) as caught:
        tls_files(*given, NAMES)
    verb = "are" if " and " in missing else "is"
    text = f"{missing} {verb} missing: TLS needs --tls-cert, --tls-key, --tls-ca, all three or none"
    assert str(caught.value) == text


def test_the_files_are_read_in_the_order_grpc_expects(authority):
    files = authority.files("127.0.0.1")
    key, cert, ca = files.read()
    assert [key, cert, ca] == [Path(path).read_bytes() for path in (files.key, files.cert, files.ca)]
    assert b"PRIVATE KEY" in key


def test_a_context_checks_the_peer(authority):
    context = authority.files().client_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_server_speaks_no_tls_before_1_3(authority):
    old = authority.files().client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = old.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = authority.files("127.0.0.1").server_context().wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        server.do_handshake()


@pytest.mark.parametrize("field", ["cert", "key", "ca"])
@pytest.mark.parametrize("content", [None, b"", b"no PEM"])
def test_a_file_that_is_missing_or_not_pem_is_named(authority, tmp_path, field, content):
    path = tmp_path / "bad"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        replace(authority.files(), **{field: str(path)}).read()
    assert str(path) in str(caught.value)


def test_a_key_of_another_certificate(authority):
    ours, theirs = authority.files(), authority.files("else.example")
    with pytest.raises(
        ConfigError, match=r"cannot be used as certificate and private key: .*KEY_VALUES_MISMATCH"
    ):
        replace(ours, key=theirs.key).read()


def test_encrypted_keys_fail_without_a_prompt(authority, tmp_path):
    files = authority.files()
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    encrypted.chmod(0o600)
    with pytest.raises(ConfigError, match=r"encrypted\.key is encrypted: store it without a passphrase"):
        replace(files, key=str(encrypted)).read()


def test_a_world_readable_key_is_warned_about(authority, caplog):
    files = authority.files()
    files.read()
    assert caplog.messages == []
    Path(files.key).chmod(0o604)
    files.read()
    assert caplog.messages == [
        f"the private key {files.key} can be read by every user of this machine: chmod o-r it"
    ]


def test_the_repr_of_files_shows_only_paths(authority):
    files = authority.files()
    assert repr(files) == f"TlsFiles(cert={files.cert!r}, key={files.key!r}, ca={files.ca!r})"
