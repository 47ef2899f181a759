"""Certificates and tokens that follow changes of their files."""

import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from reduction.errors import ConfigError
from reduction.security.certificate_dates import date
from support.network.certificates import Authority

from reducer.credentials import DAY_S, Certificates, Tokens, _Watch

A, B = "a" * 20, "b" * 20


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"cnn:{A}\n")
    return path


def test_a_new_token_counts_and_the_old_one_does_not(token_file):
    tokens = Tokens(str(token_file))
    tokens.look()
    assert tokens.table.admits("cnn", A)
    token_file.write_text(f"cnn:{B}\nother:{A}\n")
    assert tokens.table.admits("cnn", A)
    tokens.look()
    assert tokens.table.admits("cnn", B)
    assert not tokens.table.admits("cnn", A)
    assert tokens.table.admits("other", A)


@pytest.mark.parametrize("text", [None, "", "no token at all"])
def test_an_unusable_file_changes_nothing_and_is_warned_about_once(token_file, caplog, text):
    tokens = Tokens(str(token_file))
    if text is None:
        token_file.unlink()
    else:
        token_file.write_text(text)
    with caplog.at_level(logging.WARNING):
        tokens.look()
        tokens.look()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "still using what was read before"
    ]
    assert tokens.table.admits("cnn", A)
    token_file.write_text(f"cnn:{B}\n")
    tokens.look()
    assert tokens.table.admits("cnn", B)


def test_a_pipe_is_read_once(caplog):
    reading, writing = os.pipe()
    os.write(writing, f"*:{A}\n".encode())
    os.close(writing)
    try:
        tokens = Tokens(f"/dev/fd/{reading}")
        tokens.look()
    finally:
        os.close(reading)
    assert tokens.table.admits("any", A)
    assert caplog.records == []


def test_certificates_wait_until_all_their_files_are_new(tmp_path, caplog):
    files = Authority(tmp_path).files("127.0.0.1")
    new = Authority(tmp_path, "new").files("127.0.0.1")
    certificates = Certificates(files)
    before = certificates.context()
    certificates.look()
    for name, is_taken in (("cert", False), ("key", True)):
        put(new, files, name)
        certificates.look()
        assert (certificates.context() is not before) == is_taken
        assert (certificates._take_renewed() is not None) == is_taken
    assert "cannot be used as certificate and private key" in caplog.text
    assert certificates._take_renewed() is None, "gRPC has it"


def put(source, target, *names):
    for name in names or ("cert", "key"):
        Path(getattr(target, name)).write_bytes(Path(getattr(source, name)).read_bytes())


def test_the_files_must_be_valid_at_the_start(tmp_path):
    with pytest.raises(ConfigError):
        Tokens(str(tmp_path / "none"))


def test_expiry_times_follow_the_certificate_files(tmp_path):
    files = Authority(tmp_path).files("localhost")
    certificates = Certificates(files)
    before = dict(certificates.expiry)
    assert set(before) == {"own", "ca"}
    of_2030 = trustme.CA().issue_cert("h", not_after=datetime.fromtimestamp(1_900_000_000, UTC))
    Path(files.ca).write_bytes(Path(files.ca).read_bytes() + of_2030.cert_chain_pems[0].bytes())
    certificates.look()
    assert certificates.expiry == {"own": before["own"], "ca": 1_900_000_000.0}


@pytest.mark.parametrize(
    ("days", "what"), [((-3.0, -2.0), " expired on "), ((2.0, 3.0), " is not valid before ")]
)
def test_an_out_of_date_pair_is_not_taken(tmp_path, caplog, days, what):
    authority = Authority(tmp_path)
    files, new = authority.files("127.0.0.1"), authority.files("127.0.0.1", days=days)
    certificates = Certificates(files)
    before = certificates.context(), certificates.expiry
    put(new, files)
    certificates.look()
    assert f"still using what was read before: the new {files.cert}{what}" in caplog.text
    assert (certificates.context(), certificates.expiry) == before
    put(authority.files("127.0.0.1", days=(-1.0, 50.0)), files)
    certificates.look()
    assert certificates.context() is not before[0]


def test_a_pair_is_taken_once_it_becomes_valid(tmp_path):
    authority = Authority(tmp_path)
    files = authority.files("127.0.0.1")
    now = time.time()
    certificates = Certificates(files, lambda: now)
    before = certificates.context()
    put(authority.files("127.0.0.1", days=(1.0, 90.0)), files)
    certificates.look()
    assert certificates.context() is before
    now += 2 * DAY_S
    certificates.look()
    assert certificates.context() is not before


def test_files_that_change_while_they_are_read_are_read_again(token_file):
    taken = []

    def renew():
        text = token_file.read_text()
        if text == "1":
            token_file.write_text("22")
        return lambda: taken.append(text)

    watch = _Watch((str(token_file),), renew)
    token_file.write_text("1")
    watch.look()
    assert taken == []
    watch.look()
    assert taken == ["22"]


def test_warnings_come_a_month_a_week_and_a_day_before_expiry_and_upon_it(tmp_path, caplog):
    files = Authority(tmp_path).files("127.0.0.1", days=(-1.0, 100.0))
    end = Certificates(files).expiry["own"]
    seen = []
    now = end - 40 * DAY_S
    certificates = Certificates(files, lambda: now)
    for hours in range(24 * 45):
        now = end - 40 * DAY_S + hours * 3600
        certificates.look()
        seen += [(hours / 24 - 40, record.getMessage()) for record in caplog.records]
        caplog.clear()
    assert [days for days, _ in seen] == [-30, -7, -1, 0]
    assert [text for _, text in seen] == [f"{files.cert} expires on {date(end)}: renew it"] * 3 + [
        f"{files.cert} expired on {date(end)}: renew it"
    ]


@pytest.mark.parametrize(
    ("days", "what"),
    [
        ((-3.0, -2.0), "expired on "),
        ((-3.0, 5.0), "expires on "),
        ((1.0, 90.0), "is not valid before "),
        ((-1.0, 90.0), ""),
    ],
)
def test_certificate_trouble_at_the_start_is_logged(tmp_path, caplog, days, what):
    files = Authority(tmp_path).files("127.0.0.1", days=days)
    Certificates(files)
    said = [record.getMessage() for record in caplog.records]
    assert [text.startswith(f"{files.cert} {what}") for text in said] == ([True] if what else [])


def test_a_renewed_certificate_is_warned_about_again(tmp_path, caplog):
    authority = Authority(tmp_path)
    files = authority.files("127.0.0.1", days=(-1.0, 5.0))
    certificates = Certificates(files)
    put(authority.files("127.0.0.1", days=(-1.0, 6.0)), files)
    certificates.look()
    assert caplog.text.count(" expires on ") == 2
