"""`reducer drain`: all processes of the reducers drain and end, and it reports what each one waits for."""

from __future__ import annotations

import re
import subprocess
import time

import pytest
from support.planes import ANY_PLANE
from support.processes.children import children_of, is_gone
from support.processes.reducers import status_of
from support.processes.warm import warm
from support.training.checked import train_until_told

OPERATOR, OURS = "0perator" * 6, "0urs" * 12


def hold(rank, reducers, job, settings):
    """Keep a job alive until the test releases it."""
    with rank.state(reducers, job, **settings) as state:
        rank.round(state, 5_000)
        rank.tell("there")
        rank.hear()


def drain(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [warm("reducer"), "-m", "reducer", "drain", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def is_draining(address: str, *options: str) -> bool:
    return status_of(address, *options)["draining"]


def test_all_processes_of_all_reducers_end(serve):
    reducers = [serve("--processes", "3", leash=False), serve(leash=False)]
    children = children_of(reducers[0].pid)
    for reducer in reducers:
        reducer.is_over = True
    ended = drain(*(reducer.address for reducer in reducers))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert [reducer.end() for reducer in reducers] == [(0, ""), (0, "")]
    assert all(is_gone(pid) for pid in children)


def test_the_address_of_any_process_will_do(serve):
    three = serve("--processes", "3", leash=False)
    three.is_over = True
    sibling = status_of(three.address)["siblings"][1]
    assert drain(f"127.0.0.1:{sibling}").returncode == 0
    assert three.end() == (0, "")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_drain_reports_what_a_reducer_waits_for(ranks, serve, job, processes):
    reducer = serve("--processes", processes, leash=False)
    call = ranks.begin(2, hold, [reducer.address], job, {}, group=False)
    assert [call.hear(0), call.hear(1)] == ["there", "there"]
    reducer.is_over = True
    before = time.monotonic()
    ended = drain(reducer.address, "--timeout", "1.5")
    assert ended.returncode == 5
    assert time.monotonic() - before < 20
    # The job may use only one of two processes.
    waits = re.search(
        rf"draining: (\S+) waits for job {re.escape(job)} \(2 of 2 ranks\)$", ended.stderr, re.MULTILINE
    )
    assert waits
    assert re.search(rf"^reducer: not ended after 1.5 s: .*{waits[1]}", ended.stderr, re.MULTILINE)
    assert is_draining(waits[1])
    assert reducer.process.poll() is None
    call.tell(0, "done")
    call.tell(1, "done")
    call.answers()
    # Sibling processes drain one after another, and the job may have used either.
    told = (
        rf"WARNING .*: job {re.escape(job)} rank 0: \S+ is draining and asks its jobs to leave, but no other"
    )
    assert re.search(told, ranks.processes[0].log.text)
    assert drain(reducer.address).returncode in (0, 4)  # it may have ended before the second request
    assert reducer.end() == (0, "")


@pytest.mark.usefixtures("plane")
@ANY_PLANE
def test_training_goes_on_without_the_reducer_that_drains(ranks, serve, job):
    stays, goes = serve(), serve("--processes", "2")
    call = ranks.begin(2, train_until_told, [stays.address, goes.address], job, {"chunk_bytes": 4096})
    call.hear(0)
    goes.is_over = True
    ended = drain(goes.address)
    assert ended.returncode == 0, ended.stderr
    assert goes.end() == (0, "")
    steps = call.hear(0)
    while call.hear(0) < steps + 20:
        pass
    call.tell(0, 1)
    zero, one = call.answers()
    assert zero == one


@pytest.fixture
def token_file(tmp_path):
    def write(name: str, **tokens: str) -> str:
        path = tmp_path / name
        path.touch(0o600)
        path.write_text("".join(f"{job}:{token}\n" for job, token in tokens.items()))
        return str(path)

    return write


def test_it_is_refused_without_the_token(serve, token_file):
    """A job's token allows the status, but not to end a reducer that other jobs use."""
    everybody = token_file("everybody", **{"one": OURS, "*": OPERATOR})
    job, wrong, operator = (
        token_file("job", one=OURS),
        token_file("wrong", **{"*": OURS + "x"}),
        token_file("operator", **{"*": OPERATOR}),
    )
    reducer = serve("--token-file", everybody, "--processes", "2", leash=False)
    for shown, what in (((), "no"), (("--token-file", wrong), "a wrong"), (("--token-file", job), "a wrong")):
        ended = drain(reducer.address, *shown)
        assert (ended.returncode, ended.stdout) == (4, "")
        assert f"reducer: no answer from {reducer.address}: ipv4:127.0.0.1:" in ended.stderr
        assert f"shows {what} token for draining: pass --token-file with the line of `*`" in ended.stderr
        assert OURS not in ended.stderr
    assert not is_draining(reducer.address, "--token-file", job)
    reducer.is_over = True
    assert drain(reducer.address, "--token-file", operator).returncode == 0
    assert reducer.end() == (0, "")
    assert not {OURS, OPERATOR} & set(reducer.log.text.split())


def test_one_address_is_silent(serve, free_port):
    """The other reducers drain even if one address does not answer."""
    reducer = serve(leash=False)
    reducer.is_over = True
    nobody = f"127.0.0.1:{free_port()}"
    ended = drain(nobody, reducer.address)
    assert ended.returncode == 4
    assert f"reducer: no answer from {nobody}: " in ended.stderr
    assert reducer.end() == (0, "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "Missing argument 'ADDRESS...'"),
        (("nonsense:x",), "reducer 'nonsense:x' is not HOST:PORT"),
        (("127.0.0.1:1", "--timeout", "-1"), "-1.0 is not in the range x>=0"),
        (("127.0.0.1:1", "--token-file", "/nowhere"), "the token file /nowhere cannot be read"),
        (("127.0.0.1:1", "--tls-cert", "x"), "--tls-key and --tls-ca are missing"),
    ],
)
def test_wrong_usage(arguments, text):
    ended = drain(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert text in " ".join(ended.stderr.split())
