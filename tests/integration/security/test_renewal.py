"""Certificates and tokens are renewed under a running job, in all processes of a reducer."""

from __future__ import annotations

import shutil
import subprocess

from support.network.certificates import Authority
from support.processes.children import environment
from support.processes.warm import warm
from support.training.checked import train_until_told

A, B = "0urs" * 8, "the1rs" * 6


def accepts(address: str, *options: str) -> bool:
    """Return whether the process at an address accepts these credentials."""
    command = [warm("reducer"), "-m", "reducer", "status", "--json", address, *options]
    return subprocess.run(command, capture_output=True, timeout=60, env=environment()).returncode == 0


def options(files):
    return ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", files.ca]


def go_on(call):
    steps = call.hear(0)
    while call.hear(0) < steps + 20:
        pass


def test_a_new_authority(ranks, serve, tmp_path, job, until):
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    served, worker = old.files("127.0.0.1"), old.files()
    reducer = serve(*options(served), "--processes", "2")
    shown = {
        "tls_cert": worker.cert,
        "tls_key": worker.key,
        "tls_ca": str(shutil.copy(old.ca, tmp_path / "c")),
    }
    call = ranks.begin(2, train_until_told, [reducer.address], job, shown)
    go_on(call)
    renewed, other = new.files("127.0.0.1"), new.files("status.example")
    assert not accepts(reducer.address, *options(other))
    for source, target in ((renewed.cert, served.cert), (renewed.key, served.key), (renewed.ca, served.ca)):
        shutil.copy(source, target)
    until(lambda: reducer.log.text.count("read again, because changed") == 2, "both processes")
    assert accepts(reducer.address, *options(other))
    go_on(call)
    call.tell(0, 1)
    zero, one = call.answers()
    assert zero == one


def test_a_new_token(ranks, serve, tmp_path, job, until):
    tokens, ours, others = (tmp_path / name for name in ("tokens", "ours", "others"))
    for path in (tokens, ours, others):
        path.touch(0o600)
    tokens.write_text(f"{job}:{A}\n")
    ours.write_text(f"{job}:{A}\n")
    others.write_text(f"*:{B}\n")
    reducer = serve("--token-file", str(tokens), "--processes", "2")
    call = ranks.begin(2, train_until_told, [reducer.address], job, {"token_file": str(ours)})
    go_on(call)
    assert not accepts(reducer.address, "--token-file", str(others))
    tokens.write_text(f"{job}:{A}\n*:{B}\n")
    until(lambda: reducer.log.text.count("read again, because changed") == 2, "both processes")
    assert accepts(reducer.address, "--token-file", str(others))
    go_on(call)
    call.tell(0, 1)
    zero, one = call.answers()
    assert zero == one
    assert not {A, B} & set(reducer.log.text.split())
