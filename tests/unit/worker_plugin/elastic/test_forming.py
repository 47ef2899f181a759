"""A worker's part in forming generations, without a lobby."""

import threading
from types import SimpleNamespace

from worker_plugin.config import PluginConfig
from worker_plugin.elastic import forming
from worker_plugin.elastic.membership.entries import Said
from worker_plugin.elastic.membership.lineage import Worker


def heard(rank, settings, **changes):
    return Said(Worker(rank, f"nonce{rank}"), f"host{rank}", settings, **changes)


def test_a_newcomer_of_another_run_is_not_taken_in(monkeypatch):
    others = [
        heard(1, "run='x'", number=1),
        heard(2, "run='x'"),
        heard(3, "run='y'"),
        heard(4, "run='x'", is_gone=True),
    ]
    voices = {one.worker.nonce: one for one in others}
    monkeypatch.setattr(
        forming, "Voice", lambda config, own, on_news: SimpleNamespace(own=own, others=lambda: voices)
    )
    config = PluginConfig(job="job", rank=0, world_size=2)
    ours = forming.Forming(config, "run='x'", 1, threading.Condition(), lambda: None)
    assert ours.newcomers == [Worker(2, "nonce2")]
