"""TLS and tokens between real processes: who may join or query, the effect on others, and the contents of the log."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import torch
from reduction.errors import ConfigError, Unauthenticated
from reduction.security.tokens import to_metadata
from support.network.certificates import Authority
from support.network.channels import NO_PROXY
from support.network.raw import RawStream, join
from support.processes.children import environment
from support.processes.reducers import reducer_command, status_of
from support.processes.warm import warm
from support.training.checked import train_until_told

#: Longer than any test: a refused rank must fail without waiting for it.
JOIN_TIMEOUT_S = 600
OURS, THEIRS, ANYBODYS = "0urs" * 8, "the1rs" * 6, "anyb0dys" * 4
SECRETS = (OURS, THEIRS, ANYBODYS)


# ---- in the ranks ----


def one_round(rank, reducers, job, settings):
    with rank.state(reducers, job, **settings) as state:
        for step in range(3):
            rank.round(state, 100_000, step=step)


def refusal(rank, reducers, job, settings):
    """Return the error of a rank that may not join, and whether later collectives raise it too."""
    with rank.state(reducers, job, join_timeout_s=JOIN_TIMEOUT_S, **settings) as state:
        error = rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(10))))
        again = rank.error_of(lambda: state.all_reduce(torch.ones(10)))
        return error, type(again) is type(error) and type(state.error) is type(error)


def lend_embedded(rank, job):
    """Report the embedded reducer's address, token and command line, and continue once the test has checked them."""
    with rank.state(None, job) as state:
        rank.round(state)
        if rank.number == 0:
            embedded = state._communicator._meeting_points[0].embedded
            command = Path(f"/proc/{embedded._process.pid}/cmdline").read_bytes()
            rank.tell((embedded.address, embedded.token, command))
            rank.hear()
        rank.round(state, step=1)


# ---- credentials and attempts ----


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def options(files):
    return ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", files.ca]


def settings(files):
    return {"tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca}


@pytest.fixture
def token_file(tmp_path):
    def write(**lines):
        path = tmp_path / f"tokens-{len(list(tmp_path.glob('tokens-*')))}"
        path.touch(0o600)
        path.write_text("".join(f"{job}:{token}\n" for job, token in lines.items()))
        return str(path)

    return write


def status_command(*arguments):
    command = [warm("reducer"), "-m", "reducer", "status", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())


def check_secrets(*logs):
    for log in logs:
        assert not any(secret in log.text for secret in SECRETS), log.path.name


def attempt(address, job, token, credentials=None):
    """Try to join as a foreign rank; return the error, None without an Abort, and how the call ended."""
    stream = RawStream(address, credentials, to_metadata(token))
    with contextlib.closing(stream):
        stream.send(join(job, host="host-of-mallory", rank=1, world_size=2))
        return stream.error()


# ---- TLS ----


@pytest.mark.parametrize("transport", ["auto", "tcp", "grpc"])
def test_a_job_with_tls_uses_the_plane_that_it_asks_for(ranks, serve, authority, job, transport):
    reducer = serve(*options(authority.files("127.0.0.1")))
    shown = settings(authority.files()) | {"transport": transport}
    ranks.run(3, one_round, [reducer.address], job, shown)
    assert re.search(r" tls=on tokens=off", reducer.log.text)
    plane = "grpc" if transport == "grpc" else "tcp"
    assert f", {plane} with TLS\n" in ranks.processes[0].log.text


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (
            "in clear",
            "it requires TLS, but no certificate, private key and CA are set here (REDUCTION_TLS_*)",
        ),
        ("a certificate of another CA", "it does not accept the certificate "),
        ("a CA that is not the reducer's", "its certificate is not accepted here: "),
        ("another name", "its certificate is not accepted here: IP address mismatch"),
    ],
)
def test_tls_mismatches_are_refused(ranks, serve, authority, tmp_path, job, case, text):
    reducer = serve(*options(authority.files("else.example" if case == "another name" else "127.0.0.1")))
    ours, other = authority.files(), Authority(tmp_path, "other").files()
    shown = {
        "in clear": {},
        "a certificate of another CA": settings(other) | {"tls_ca": ours.ca},
        "a CA that is not the reducer's": settings(ours) | {"tls_ca": other.ca},
        "another name": settings(ours),
    }[case]
    [(error, is_final)] = ranks.run(1, refusal, [reducer.address], job, shown, group=False)
    assert type(error) is Unauthenticated
    assert f"{reducer.address}: {text}" in str(error)
    assert is_final


def test_a_reducer_without_tls(ranks, reducer, authority, job):
    shown = settings(authority.files())
    [(error, is_final)] = ranks.run(1, refusal, [reducer.address], job, shown, group=False)
    assert type(error) is Unauthenticated
    assert f"{reducer.address}: it does not speak TLS the way we do" in str(error)
    assert is_final


def test_strangers_do_not_disturb_a_job_with_tls(ranks, serve, authority, tmp_path, job):
    reducer = serve(*options(authority.files("127.0.0.1")))
    ours, (other_key, other_cert, _) = authority.files(), Authority(tmp_path, "other").files().read()
    ca = Path(ours.ca).read_bytes()
    strangers = [
        None,
        grpc.ssl_channel_credentials(ca),
        grpc.ssl_channel_credentials(ca, other_key, other_cert),
    ]
    call = ranks.begin(2, train_until_told, [reducer.address], job, settings(ours))
    call.hear(0)
    for credentials in strangers:
        error, code, _ = attempt(reducer.address, job, None, credentials)
        assert (error, code) == (None, grpc.StatusCode.UNAVAILABLE)
        steps = call.hear(0)
        while call.hear(0) < steps + 20:
            pass
    call.tell(0, 1)
    zero, one = call.answers()
    assert zero == one
    assert "host-of-mallory" not in reducer.log.text


# ---- tokens ----


@pytest.mark.usefixtures("plane")
def test_a_job_with_its_token(ranks, serve, token_file, job):
    reducer = serve("--token-file", token_file(**{"other": THEIRS, f"team:{job}": OURS}))
    shown = {"token_file": token_file(**{f"team:{job}": OURS, "*": ANYBODYS})}
    ranks.run(3, one_round, [reducer.address], f"team:{job}", shown)
    assert "tls=off tokens=on" in reducer.log.text
    check_secrets(reducer.log, *(process.log for process in ranks.processes))


def test_a_job_whose_name_is_not_known_in_advance(ranks, serve, token_file):
    reducer = serve("--token-file", token_file(**{"*": ANYBODYS}))
    shown = {"token_file": token_file(**{"other": OURS, "*": ANYBODYS})}
    ranks.run(2, one_round, [reducer.address], None, shown)
    assert "join job=run-" in reducer.log.text


@pytest.mark.usefixtures("plane")
def test_a_rank_with_the_wrong_token(ranks, serve, token_file, job):
    reducer = serve("--token-file", token_file(**{job: OURS, "other": THEIRS, "*": ANYBODYS}))
    for token in (None, "wr0ng" * 8, THEIRS, ANYBODYS):  # the last is for jobs without their own line
        shown = {} if token is None else {"token_file": token_file(**{"*": token})}
        [(error, is_final)] = ranks.run(1, refusal, [reducer.address], job, shown, group=False)
        assert type(error) is Unauthenticated
        where = f" for job {job!r}" if token in (THEIRS, ANYBODYS) else ": its token_file"
        assert f"shows {'a wrong' if token else 'no'} token{where}" in str(error)
        assert is_final
        assert not any(secret in str(error) for secret in (*SECRETS, "wr0ng"))
    check_secrets(reducer.log, ranks.processes[0].log)


@pytest.mark.usefixtures("plane")
def test_strangers_do_not_disturb_a_job_with_a_token(ranks, serve, token_file, job):
    """A stranger learns nothing from the reducer. The log names strangers, but has no secret of either side."""
    reducer = serve("--token-file", token_file(**{job: OURS, "other": THEIRS}), "--log-level", "debug")
    call = ranks.begin(2, train_until_told, [reducer.address], job, {"token_file": token_file(**{job: OURS})})
    call.hear(0)
    for wanted, token in ((job, None), (job, "wr0ng" * 8), (job, THEIRS), ("unheard-of", OURS), ("*", OURS)):
        error, code, details = attempt(reducer.address, wanted, token)
        assert code is grpc.StatusCode.UNAUTHENTICATED
        line = reducer.log.text.splitlines()[-1]
        assert f"error=Unauthenticated reason={details}" in line
        if token in (OURS, THEIRS):  # a token of another job, which is only detected at the Join
            assert str(error) == details
            assert details.startswith("rank 1 (host-of-mallory, ipv4:127.0.0.1:")
            assert f"shows a wrong token for job {wanted!r}" in details
        else:
            assert error is None
            assert details.startswith("ipv4:127.0.0.1:")
            assert f"shows {'a wrong' if token else 'no'} token: its token_file" in details
        steps = call.hear(0)
        while call.hear(0) < steps + 20:
            pass
    assert [
        each["job"] for each in status_of(reducer.address, "--token-file", token_file(x=THEIRS))["jobs"]
    ] == [job]
    call.tell(0, 1)
    zero, one = call.answers()
    assert zero == one
    check_secrets(reducer.log)
    assert "wr0ng" not in reducer.log.text


def test_a_rank_without_a_line_for_its_job(ranks, reducer, token_file, job):
    shown = {"token_file": token_file(other=OURS)}
    [(error, is_final)] = ranks.run(1, refusal, [reducer.address], job, shown, group=False)
    assert type(error) is ConfigError
    assert f"has no line for job {job!r}, and none for '*'" in str(error)
    assert is_final


def test_a_reducer_without_tokens_accepts_any_token(ranks, reducer, token_file, job):
    ranks.run(2, one_round, [reducer.address], job, {"token_file": token_file(**{job: OURS})})


def test_other_users_of_the_host_cannot_join_the_embedded_reducer(ranks, job):
    call = ranks.begin(2, lend_embedded, job)
    address, token, command = call.hear(0)
    assert b"--token-file" in command
    assert token.encode() not in command
    for shown in (None, OURS):
        assert attempt(address, job, shown)[1] is grpc.StatusCode.UNAUTHENTICATED
    call.tell(0, "go on")
    call.answers()
    assert all(token not in process.log.text for process in ranks.processes)


# ---- siblings and status ----


def test_siblings_require_the_same_credentials(ranks, serve, authority, token_file, job):
    ours, tokens = authority.files(), token_file(**{job: OURS})
    shown = [*options(ours), "--token-file", tokens]
    three = serve("--workers", "3", *options(authority.files("127.0.0.1")), "--token-file", tokens)
    siblings = status_of(three.address, *shown)["siblings"]
    addresses = [three.address, *(f"127.0.0.1:{port}" for port in siblings)]
    assert len(addresses) == 3
    call = ranks.begin(
        3,
        train_until_told,
        [three.address],
        job,
        settings(ours) | {"token_file": tokens, "chunk_bytes": 4096},
    )
    call.hear(0)
    call.hear(0)
    for address in addresses:
        [served] = status_of(address, *shown)["jobs"]
        assert served["received_bytes"] > 0
        key, cert, ca = ours.read()
        refused = attempt(address, job, None, grpc.ssl_channel_credentials(ca, key, cert))
        assert refused[1] is grpc.StatusCode.UNAUTHENTICATED
        assert attempt(address, job, OURS)[1] is grpc.StatusCode.UNAVAILABLE
    table = reducer_command("status", three.address, *shown)
    assert all(re.search(rf"{address} +serving ", table) for address in addresses)
    call.tell(0, 1)
    answers = call.answers()
    assert answers[0] == answers[1] == answers[2]
    check_secrets(three.log)


def test_status_needs_the_credentials_the_server_requires(serve, authority, token_file):
    ours = authority.files()
    reducer = serve(
        *options(authority.files("127.0.0.1")), "--token-file", token_file(job=OURS, other=THEIRS)
    )
    for known in (token_file(job=OURS), token_file(other=THEIRS), token_file(**{"*": OURS})):
        assert status_of(reducer.address, *options(ours), "--token-file", known)["jobs"] == []
    cases = [
        (options(ours), "shows no token for the status: pass --token-file"),
        ([*options(ours), "--token-file", token_file(job=ANYBODYS)], "shows a wrong token for the status"),
        (["--token-file", token_file(job=OURS)], "it requires TLS"),
        ([], "it requires TLS"),
    ]
    for shown, text in cases:
        ended = status_command(reducer.address, *shown)
        assert (ended.returncode, ended.stdout) == (4, "")
        assert text in ended.stderr
        assert ended.stderr.count("\n") == 1, "nothing of gRPC's own"
    assert reducer.log.text.count("refused a call error=Unauthenticated reason=ipv4:127.0.0.1:") == 2
    check_secrets(reducer.log)


def test_health_and_reflection_are_open(serve, token_file):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    reducer = serve("--token-file", token_file(job=OURS))
    with grpc.insecure_channel(reducer.address, NO_PROXY) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert "reduction.v1.Reduction" in ProtoReflectionDescriptorDatabase(channel).get_services()
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


# ---- settings ----


@pytest.mark.parametrize("guard", ["tls", "tokens"])
def test_tls_or_tokens_allow_any_address(ranks, serve, authority, token_file, job, guard):
    tokens = token_file(**{job: OURS})
    if guard == "tls":
        reducer = serve(*options(authority.files("127.0.0.1")), bind="0.0.0.0:0")
        shown = settings(authority.files())
    else:
        reducer = serve("--token-file", tokens, bind="0.0.0.0:0")
        shown = {"token_file": tokens}
    ranks.run(2, one_round, [f"127.0.0.1:{reducer.port}"], job, shown, group=False)


def test_files_that_cannot_be_used(authority, tmp_path):
    files = authority.files("127.0.0.1")
    bad = tmp_path / "bad"
    bad.write_text(f"{OURS}\n")
    cases = [
        (["--tls-cert", files.cert], "--tls-key and --tls-ca are missing"),
        (
            ["--tls-cert", files.cert, "--tls-key", "/nowhere", "--tls-ca", files.ca],
            "/nowhere cannot be read",
        ),
        (
            ["--tls-cert", files.ca, "--tls-key", files.key, "--tls-ca", files.ca],
            "cannot be used as certificate",
        ),
        (["--token-file", "/nowhere"], "the token file /nowhere cannot be read"),
        (["--token-file", str(bad)], "line 1 of the token file"),
        (["--token-file", os.devnull], "has no line JOB:TOKEN"),
    ]
    for arguments, text in cases:
        command = [
            sys.executable,
            "-m",
            "reducer",
            "serve",
            "--bind",
            "127.0.0.1:0",
            "--workers",
            "1",
            *arguments,
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
        assert (ended.returncode, ended.stdout) == (2, ""), arguments
        assert text in ended.stderr
        assert OURS not in ended.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")
def test_the_certificates_of_the_manual(ranks, serve, tmp_path):
    manual = (Path(__file__).parents[3] / "SECURITY.md").read_text()
    make = manual.split("```sh\n")[1].split("```")[0]
    subprocess.run(["sh", "-ec", make], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*tmp_path.glob("*.key"), tmp_path / "tokens"])
    files = {name: str(tmp_path / name) for name in ("ca.pem", "reducer.pem", "reducer.key", "tokens")}
    reducer = serve(
        *("--tls-cert", files["reducer.pem"], "--tls-key", files["reducer.key"], "--tls-ca", files["ca.pem"]),
        *("--token-file", files["tokens"]),
    )
    shown = {"tls_cert": str(tmp_path / "worker.pem"), "tls_key": str(tmp_path / "worker.key")}
    shown |= {"tls_ca": files["ca.pem"], "token_file": files["tokens"]}
    for host in ("127.0.0.1", "localhost"):
        ranks.run(2, one_round, [f"{host}:{reducer.port}"], "my-job", shown, group=False)
