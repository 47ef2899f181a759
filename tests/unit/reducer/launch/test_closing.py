"""The output of `reducer run` after its command has ended."""

import pytest
from reduction.errors import ConfigError
from reduction.model import EndedJob, Outcome
from support.scenes.looks import job, process, silent

from reducer.launch import closing

SAW = {"collectives": 3, "received_bytes": 8, "sent_bytes": 8, "seconds": 1.0}
ENDED = EndedJob(job="job", world_size=2, id=b"i", outcome=Outcome.ENDED, **SAW)


@pytest.mark.parametrize(
    ("answer", "auto", "code", "text"),
    [
        (process(ended=(ENDED,)), "ddp", 1, "1 job of 2 ranks, 3 collectives, 8 B in, 8 B out"),
        (
            process(),
            "ddp",
            0,
            "no job joined the reducers, so nothing was summed there: a warning above says why",
        ),
        (process(), "ddp", 127, "no job joined the reducers before the command ended with exit code 127"),
        (process(), None, 0, "nothing was summed there: with --no-auto the script itself has to use them"),
        (process(job()), "group", 0, "a job is still connected to the reducers"),
        (silent("a:1"), "ddp", 0, "its reducers do not report what they have done: refused"),
    ],
)
def test_the_closing_line(monkeypatch, answer, auto, code, text):
    times = iter([0.0, 1.0, 9.0])
    monkeypatch.setattr(closing.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(closing.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(closing, "look", lambda *_: [answer])
    assert text in closing.closing_line(["a:1"], closing.own_access("token"), auto, code)


def test_workers_show_their_token(tmp_path):
    (tmp_path / "tokens").write_text("*:" + "t" * 32)
    access = closing.workers_access({"REDUCTION_TOKEN_FILE": str(tmp_path / "tokens")})
    assert access.tokens.of_any_job() == "t" * 32
    with pytest.raises(ConfigError, match="REDUCTION_TLS_KEY and REDUCTION_TLS_CA are missing"):
        closing.workers_access({"REDUCTION_TLS_CERT": "cert"})
