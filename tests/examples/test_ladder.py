"""The ladder: every rung trains on real shards, reducers change no bit, and a checkpoint works for all rungs.

Needs the dependencies of examples/ladder; `make test-integrations` installs them into a separate environment.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from support.processes.children import environment
from support.processes.warm import warm

LADDER = Path(__file__).parents[2] / "examples" / "ladder"
MISSING = [name for name in ("PIL", "tensorboard", "webdataset") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} not installed: make test-integrations"
)

RANKS = {"one": 1, "dataparallel": 1, "ddp": 2, "reducers": 2, "hsdp": 4}
SHARDS, IMAGES, BATCH, EPOCHS = 4, 16, 16, 3
#: Prints a digest of each image that one of two ranks reads in an epoch.
READ = """
import hashlib, sys
from shards import batches
for images, classes in batches(sys.argv[2:], int(sys.argv[1]), 5):
    for image in images:
        print(hashlib.sha256(image.numpy()).hexdigest())
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    sizes = "--shards", str(SHARDS), "--images", str(IMAGES), "--side", "16"
    run(str(LADDER / "shards.py"), str(folder), *sizes)
    return folder


def run(*words, **variables):
    done = subprocess.run(
        [warm(), *words], capture_output=True, text=True, timeout=110, env=environment(**variables)
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout, done.stderr


def train(shards, out, rung, epochs=EPOCHS, *more):
    """Return rank 0's loss of each step, from the first epoch on, and the log."""
    launcher = "-m torch.distributed.run --standalone --nproc-per-node".split()
    words = [] if RANKS[rung] == 1 else [*launcher, str(RANKS[rung])]
    words += [str(LADDER / "train.py"), str(shards), "--rung", rung, "--out", str(out), *more]
    said, log = run(*words, "--width", "8", "--batch", str(BATCH), "--epochs", str(epochs))
    assert said.count(f", {SHARDS * IMAGES} images, ") == epochs - ("--resume" in more)
    return losses_in(out, epochs), log


def losses_in(out, epochs):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(out)).Reload()
    steps = SHARDS * IMAGES // BATCH
    losses, seconds, speeds = (board.Scalars(tag) for tag in ("loss", "epoch/seconds", "epoch/images_per_s"))
    assert [event.step for event in losses] == list(range(1, epochs * steps + 1))
    for time, speed in zip(seconds, speeds, strict=True):
        assert time.value * speed.value == pytest.approx(SHARDS * IMAGES)
    assert [event.step for event in seconds] == list(range(steps, epochs * steps + 1, steps))
    return [event.value for event in losses]


@pytest.fixture(scope="module")
def unbroken(shards, tmp_path_factory):
    """Return a function that returns the losses of a rung without interruption, and its log."""
    return functools.cache(lambda rung: train(shards, tmp_path_factory.mktemp(rung), rung))


def test_shards_have_real_images(shards):
    from PIL import Image

    paths = sorted(shards.glob("*.tar"))
    assert len(paths) == SHARDS
    kinds = set()
    for path in paths:
        with tarfile.open(path) as tar:
            parts = {member.name: tar.extractfile(member).read() for member in tar}
        assert len(parts) == 2 * IMAGES
        for name, part in parts.items():
            if name.endswith(".cls"):
                kinds.add(int(part))
            else:
                image = Image.open(io.BytesIO(part))
                assert (image.format, image.size) == ("JPEG", (16, 16))
    assert kinds == set(range(10))


def test_every_rank_has_images_of_its_own(shards):
    paths = sorted(map(str, shards.glob("*.tar")))
    seen = []
    for epoch in ("1", "2"):
        parts = [
            run("-c", READ, epoch, *paths, PYTHONPATH=str(LADDER), RANK=rank, WORLD_SIZE="2")[0].split()
            for rank in "01"
        ]
        assert len(parts[0]) == len(parts[1]) == SHARDS * IMAGES // 2
        assert len(set(parts[0] + parts[1])) == SHARDS * IMAGES
        seen.append(parts[0] + parts[1])
    assert seen[0] != seen[1]
    assert set(seen[0]) == set(seen[1])


@pytest.mark.parametrize("rung", RANKS)
def test_a_rung_learns(rung, unbroken):
    losses, log = unbroken(rung)
    steps = len(losses) // EPOCHS
    assert sum(losses[-steps:]) < sum(losses[:steps])
    jobs = {"reducers": 1, "hsdp": 2}
    assert log.count("reduction-server: job ") == jobs.get(rung, 0)


def test_reducers_change_no_bit(unbroken):
    assert unbroken("reducers")[0] == unbroken("ddp")[0]
    assert unbroken("dataparallel")[0] == unbroken("one")[0]


@pytest.mark.parametrize("rung", ["one", "hsdp"])
def test_a_resumed_run_has_the_same_losses(rung, shards, unbroken, tmp_path):
    train(shards, tmp_path, rung, 1)
    assert train(shards, tmp_path, rung, EPOCHS, "--resume")[0] == unbroken(rung)[0]


def test_a_checkpoint_climbs_the_ladder(shards, unbroken, tmp_path):
    train(shards, tmp_path, "ddp", 1)
    assert train(shards, tmp_path, "reducers", EPOCHS, "--resume")[0] == unbroken("reducers")[0]
