"""A job restarted by torchrun after a crash resumes from its checkpoint, under its name on the same reducers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from faults.workers import resume_script
from support.processes.torchrun import Torchrun

RANKS = 2


def undisturbed() -> dict[str, torch.Tensor]:
    """Train like the script, but with all ranks here and without DDP: fold their gradients in each step."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = resume_script.model()
    optimizer = resume_script.optimizer_of(model)
    loaders = [resume_script.batches(rank, RANKS) for rank in range(RANKS)]
    for epoch in range(resume_script.EPOCHS):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
        for parts in zip(*loaders, strict=True):
            gradients = []
            for features, labels in parts:
                loss = torch.nn.functional.cross_entropy(model(features), labels)
                gradients.append(torch.autograd.grad(loss, list(model.parameters())))
            for parameter, column in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
                parameter.grad = (column[0] + column[1]) / RANKS
            optimizer.step()
    torch.set_num_threads(threads)
    return model.state_dict()


@pytest.mark.timeout(200)  # each of six processes imports torch; the run has its own time limit
def test_a_job_restarted_by_torchrun_resumes_from_its_checkpoint(reducers, tmp_path, job):
    script = Path(resume_script.__file__)
    more = {"REDUCTION_REDUCERS": ",".join(reducers(2)), "REDUCTION_JOB": job[:100]}
    run = Torchrun(tmp_path, RANKS, "--max-restarts", "2", str(script), str(tmp_path), **more)
    try:
        assert run.wait(150) == 0, run.log.read_text()[-5000:]
        saved = [torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(RANKS)]
    finally:
        run.kill()
    expected = undisturbed()
    for life, first, weights in saved:
        assert life == 1
        assert first == resume_script.LAST_WORDS[0]
        for name, value in expected.items():
            assert torch.equal(weights[name], value), name
