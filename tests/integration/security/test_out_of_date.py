"""Certificates that are expired or not yet valid: each side reports it, with the date."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from reduction.errors import ConfigError, Unauthenticated
from support.network.certificates import Authority
from support.processes.children import environment

DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


def options(files):
    return ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", files.ca]


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "reducer", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )


def refusal(rank, reducers, job, files):
    """Return the error of a rank whose timeout is long."""
    settings = {"tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca, "join_timeout_s": 600}
    with rank.state(reducers, job, **settings) as state:
        return rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(10))))


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def test_a_worker_checks_its_own_certificate_before_dialing(ranks, authority, job):
    ours = authority.files(is_expired=True)
    [error] = ranks.run(1, refusal, ["127.0.0.1:1"], job, ours, group=False)
    assert type(error) is ConfigError
    assert re.match(rf"our certificate {re.escape(ours.cert)} expired on {DATE}: renew it", str(error))


def test_a_reducers_certificate_is_named_with_its_date(ranks, serve, authority, job):
    reducer = serve(*options(authority.files("127.0.0.1", is_expired=True)))
    [error] = ranks.run(1, refusal, [reducer.address], job, authority.files(), group=False)
    assert type(error) is Unauthenticated
    text = rf"{reducer.address}: its certificate is not accepted here: it expired on {DATE}"
    assert re.search(text, str(error))


def test_the_reducer_warns_on_startup(serve, authority):
    files = authority.files("127.0.0.1", is_expired=True)
    reducer = serve(*options(files))
    assert re.search(
        rf"level=WARNING .* {re.escape(files.cert)} expired on {DATE}: renew it", reducer.log.text
    )


@pytest.mark.parametrize(
    ("days", "text"),
    [((-3, -2), "expired on"), ((-3, 20), "expires on"), ((2, 90), "is not valid before"), ((-3, 90), "")],
)
def test_the_check_reports_the_dates(authority, days, text):
    files = authority.files("127.0.0.1", days=days)
    ended = command("serve", "--check", *options(files))
    assert ended.returncode == 0
    assert len(re.findall(rf"{re.escape(files.cert)} {text} {DATE}", ended.stderr)) == bool(text)
    assert ended.stderr.count("\n") == bool(text)


@pytest.mark.parametrize("whose", ["the reducer's", "ours"])
def test_the_status_command_reports_the_date(serve, authority, whose):
    served = authority.files("127.0.0.1", is_expired=whose == "the reducer's")
    ours = authority.files(is_expired=whose == "ours")
    ended = command("status", serve(*options(served)).address, *options(ours))
    assert ended.returncode == 4
    assert re.search(rf"expired on {DATE}", ended.stderr)
    assert ended.stderr.count("\n") == 1
