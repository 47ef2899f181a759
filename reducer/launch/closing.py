"""The closing line of `reducer run`: a summary of its reducers' jobs, or why there was no job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from reduction.security.tls import tls_files
from reduction.security.tokens import ANY, TokenTable

from reducer.config import TOKEN_FILE_VARIABLE, WORKERS_TLS_VARIABLES
from reducer.observe import ended
from reducer.observe.status import StatusAccess, look

#: Timeout for a reducer to answer, and to notice that the ranks have ended, in seconds.
_ANSWER_S = 2.0
_PAUSE_S = 0.05
#: Possible reasons why no job came, by the value of --auto.
_WHY = {
    None: "with --no-auto the script itself has to use them",
    "ddp": "a warning above says why if the script had a process group; with --auto group all of its all-reduces go "
    "there",
    "group": "a warning above says why if the script had a process group",
}


def own_access(token: str) -> StatusAccess:
    """Return the credentials for reducers that we have started ourselves."""
    return StatusAccess(tokens=TokenTable({ANY: token}))


def workers_access(environ: Mapping[str, str]) -> StatusAccess:
    """Return the credentials that the ranks of this host use.

    Raises:
        ConfigError: a file cannot be used.
    """
    cert, key, ca = map(environ.get, WORKERS_TLS_VARIABLES)
    return StatusAccess.of(tls_files(cert, key, ca, WORKERS_TLS_VARIABLES), environ.get(TOKEN_FILE_VARIABLE))


def closing_line(addresses: Sequence[str], access: StatusAccess, auto: str | None, code: int) -> str:
    """Return the line, after a short wait for jobs whose ranks have just ended.

    Args:
        addresses: addresses of reducers that served no other command.
        access: credentials for the reducers.
        auto: the value of --auto; None for --no-auto.
        code: the command's exit code.
    """
    deadline = time.monotonic() + _ANSWER_S
    while True:
        processes = look(addresses, _ANSWER_S, access)
        answers = [process.status for process in processes if process.status is not None]
        if not any(answer.jobs for answer in answers) or time.monotonic() > deadline:
            break
        time.sleep(_PAUSE_S)
    if jobs := ended.ended_jobs(answers):
        return ended.line(jobs)
    if any(answer.jobs for answer in answers):
        return "a job is still connected to the reducers, although the command has ended"
    if not answers:
        return f"its reducers do not report what they have done: {processes[0].reason}"
    if code:
        return f"no job joined the reducers before the command ended with exit code {code}"
    return f"no job joined the reducers, so nothing was summed there: {_WHY[auto]}"
