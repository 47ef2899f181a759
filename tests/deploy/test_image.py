"""`deploy/docker/Dockerfile`: built by buildah, and run by the kernel like under a container runtime.

The base is a Debian built by mmdebstrap, without the parts that Debian's slim images omit. It is kept in buildah's
store, and so are the layers. Building takes minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.artefacts import DEPLOY, ROOT, serving, tool
from support.processes.children import environment
from support.processes.reducers import Reducer
from support.processes.summing import Summing

DOCKERFILE = DEPLOY / "docker/Dockerfile"
BASE, IMAGE = "localhost/reduction-server-base", "localhost/reduction-server-test"
TOOLS = ("buildah", "mmdebstrap", "unshare", "setpriv", "chroot")
BUILD_S = 900
#: More would mean that something was included by mistake, such as torch or pip's cache.
SIZE_MAX_MB = 350

absent = [name for name in TOOLS if shutil.which(name) is None]
needs_builder = pytest.mark.skipif(
    bool(absent) or os.geteuid() != 0, reason=f"{', '.join(absent) or 'root'} missing"
)

#: Runs "$@" as the only process of a container: $1 is the root, mounted read-only, and $2 the user.
CONTAINER = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && mount -t proc proc "$1/proc" &&
mount --bind /dev "$1/dev" && root=$1 user=$2 && shift 2 && exec chroot --userspec="$user" "$root" "$@"
"""


def buildah(*words: str, timeout_s: float = 100) -> str:
    """Run buildah, which needs neither a daemon nor a kernel's support for container storage."""
    environ = os.environ | {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
    done = subprocess.run(["buildah", *words], capture_output=True, text=True, timeout=timeout_s, env=environ)
    assert done.returncode == 0, f"buildah {words[0]}: {(done.stdout + done.stderr)[-5000:]}"
    return done.stdout.strip()


def has(image: str) -> bool:
    return image in buildah("images", "--format", "{{.Name}}").splitlines()


def make_base(folder: Path) -> None:
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
    command = ["mmdebstrap", "--variant=minbase", *left_out, "bookworm", str(folder / "base.tar")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
    assert done.returncode == 0, done.stderr[-5000:]
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(folder / "base.tar"), "/", timeout_s=BUILD_S)
    buildah("commit", "--quiet", "--rm", container, BASE, timeout_s=BUILD_S)


def pip_settings(folder: Path) -> list[str]:
    """Return the mounts that give the build's pip this machine's own certificate authority."""
    authority = Path(os.environ.get("PIP_CERT") or "/etc/ssl/certs/ca-certificates.crt")
    settings = folder / "pip.conf"
    settings.write_text("[global]\ncert = /run/authority.pem\n")
    return [f"--volume={settings}:/etc/pip.conf:ro", f"--volume={authority}:/run/authority.pem:ro"]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("image")
    if not has(BASE):
        make_base(folder)
    options = [
        f"--file={DOCKERFILE}",
        f"--ignorefile={DOCKERFILE}.dockerignore",
        f"--build-arg=BASE={BASE}",
        f"--tag={IMAGE}",
        "--layers",
    ]
    buildah("bud", *options, *pip_settings(folder), str(ROOT), timeout_s=BUILD_S)
    return IMAGE


@pytest.fixture(scope="module")
def config(image: str) -> dict[str, Any]:
    """The image's configuration."""
    inspected: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", image))
    return inspected["OCIv1"]["config"]


@pytest.fixture(scope="module")
def root(image: str) -> Iterator[Path]:
    """The image's file system."""
    container = buildah("from", image)
    try:
        yield Path(buildah("mount", container))
    finally:
        buildah("rm", container)


def command_of(config: dict[str, Any], root: Path, *words: str, **variables: str) -> list[str]:
    """Return the command that runs the image's entry point, with its user and variables, as process 1."""
    inside = ["env", "--ignore-environment", *config["Env"]]
    inside += [f"{name}={value}" for name, value in variables.items()]
    inside += config["Entrypoint"] + (list(words) or config["Cmd"])
    outside = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
    return [*outside, "sh", "-c", CONTAINER, "sh", str(root), config["User"], *inside]


def first_process(outer: subprocess.Popen[str]) -> int:
    """Return the process number, outside, of the container's process 1."""
    [child] = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    return int(child)


def test_all_parts_of_the_wheel_are_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    words = [line.split()[1:-1] for line in DOCKERFILE.read_text().splitlines() if line.startswith("COPY ")]
    assert parts <= {word for line in words for word in line}
    kept = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{part}" for part in parts} <= set(kept)


def test_lint() -> None:
    for path in (DOCKERFILE, DEPLOY / "vertex/Dockerfile"):
        done = subprocess.run(
            [tool("hadolint"), str(path)], capture_output=True, text=True, timeout=100, env=environment()
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.timeout(BUILD_S)
@needs_builder
def test_the_image_declares_how_it_runs(config: dict[str, Any]) -> None:
    assert config["Entrypoint"] == ["reducer"]
    assert config["Cmd"] == ["serve"]
    assert config["User"] == "65532:65532"
    assert config["StopSignal"] == "SIGTERM"


@pytest.mark.full
@pytest.mark.timeout(BUILD_S)
@needs_builder
def test_the_image_is_small(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        ["du", "--summarize", "--block-size=1MB", str(root)], capture_output=True, text=True
    )
    size_mb = int(done.stdout.split()[0])
    with capsys.disabled():
        print(f"\nthe image has {size_mb} MB")
    assert size_mb <= SIZE_MAX_MB
    assert not list(root.glob("opt/reducer/lib/python3*/site-packages/torch"))


@pytest.mark.full
@pytest.mark.timeout(BUILD_S)
@needs_builder
def test_the_container_sums_and_drains(config: dict[str, Any], root: Path, tmp_path: Path) -> None:
    """It runs as user 65532 on a read-only file system; SIGTERM moves the job to the other reducer."""
    log = tmp_path / "container.log"
    command = command_of(config, root, REDUCER_BIND="127.0.0.1:0", REDUCER_PROCESSES="1")
    other = Reducer(tmp_path)
    try:
        with serving(command, log, environment()) as (outer, address):
            inner = first_process(outer)
            status = Path(f"/proc/{inner}/status").read_text()
            assert "\nUid:\t65532\t65532\t65532\t65532\n" in status
            assert f"\nNSpid:\t{inner}\t1\n" in status
            assert subprocess.run(
                ["nsenter", f"--target={inner}", "--mount", "touch", f"{root}/x"]
            ).returncode
            with Summing(tmp_path, f"{address},{other.address}") as ranks:
                ranks.go_on()
                os.kill(inner, signal.SIGTERM)
                assert outer.wait(40) == 0, log.read_text()
                ranks.go_on()
                ranks.stop()
                assert f"2 reducers ({address}, {other.address}" in ranks.log
        assert "stopping drained" in log.read_text()
        assert "Traceback" not in log.read_text()
        assert other.stop()[0] == 0
    finally:
        other.kill()


@pytest.mark.full
@pytest.mark.timeout(BUILD_S)
@needs_builder
def test_the_container_refuses_to_serve_everybody_by_accident(
    config: dict[str, Any], root: Path, tmp_path: Path
) -> None:
    command = command_of(config, root, REDUCER_BIND="0.0.0.0:0")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == 2
    assert "--insecure" in done.stderr
