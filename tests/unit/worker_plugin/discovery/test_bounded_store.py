"""A store answers within our limits, or an error names the one that does not."""

import re
import socket
import threading
from datetime import timedelta

import pytest
from reduction.errors import WorkerLost
from torch.distributed import DistStoreError, FileStore, HashStore, PrefixStore, TCPStore

from worker_plugin.config import PluginConfig
from worker_plugin.discovery.bounded_store import BoundedStore, check_alive, name_of

CONFIG = PluginConfig(join_timeout_s=0.3, stall_warn_s=0.1)
PATIENT = PluginConfig(join_timeout_s=60.0)


@pytest.fixture
def silence():
    """Return a stand-in for a call that never returns while the test runs."""
    is_over = threading.Event()
    yield lambda _: is_over.wait()
    is_over.set()


def test_it_asks_torchs_store():
    raw = HashStore()
    store = BoundedStore(raw, PATIENT).below("ours")
    store.set("key", "text")
    assert store.get("key") == PrefixStore("ours", raw).get("key").decode() == "text"
    assert store.ask(lambda raw: raw.add("count", 2)) == 2


def test_a_store_that_does_not_answer_is_named_and_not_asked_again(silence, caplog):
    store = BoundedStore(HashStore(), CONFIG)
    with pytest.raises(WorkerLost) as caught:
        store.ask(silence)
    assert str(caught.value) == (
        "the store of torch.distributed has not answered within 0.3 s (join_timeout_s): check the host and the process "
        "that serve it, rank 0's or torchrun's, and restart all ranks"
    )
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for the store of torch.distributed to answer; giving up in 0 s"
    ]
    with pytest.raises(WorkerLost) as again:
        store.get("key")
    assert again.value is caught.value


def test_waiting_for_ranks_has_its_own_limit(silence, caplog):
    with pytest.raises(WorkerLost, match=r"has not answered within 0\.1 s: check"):
        BoundedStore(HashStore(), PATIENT).run(silence, 0.1)
    assert caplog.records == []


def test_the_stores_own_error_comes_first():
    store = BoundedStore(HashStore(), CONFIG)
    with pytest.raises(DistStoreError):
        store.run(lambda raw: raw.wait(["key"], timedelta(seconds=0.1)), 60.0)
    with pytest.raises(WorkerLost, match="no longer answers: "):  # no one asks for a missing key
        store.ask(lambda raw: raw.wait(["key"], timedelta(seconds=0.1)))


@pytest.mark.parametrize("is_libuv", [True, False])
@pytest.mark.parametrize(
    "wrap", [lambda store: store, lambda store: PrefixStore("a", PrefixStore("b", store))]
)
def test_a_server_that_is_gone_is_not_waited_for(wrap, is_libuv):
    long = timedelta(minutes=30)
    server = TCPStore("127.0.0.1", 0, None, True, long, wait_for_workers=False, use_libuv=is_libuv)
    client = wrap(TCPStore("127.0.0.1", server.port, None, False, long, use_libuv=is_libuv))
    port = server.port
    check_alive(client, PATIENT)
    opened = BoundedStore.connect(client, PATIENT)
    opened.set("key", "text")
    assert opened.get("key") == "text"
    del server
    where = rf"^the store of torch\.distributed at 127\.0\.0\.1:{port} no longer answers: "
    with pytest.raises(WorkerLost, match=rf"{where}[^\n]+$"):
        opened.get("key")
    with pytest.raises(WorkerLost, match=f"{where}.*Connection refused"):
        check_alive(client, PATIENT)


def test_a_host_that_does_not_answer_is_not_waited_for():
    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, None, False)
    port = server.port
    del server
    with socket.create_server(("127.0.0.1", port)):  # it accepts, and sends nothing
        with pytest.raises(WorkerLost, match=re.escape(f"127.0.0.1:{port} has not answered within 0.3 s")):
            BoundedStore.connect(client, CONFIG)


def test_stores_without_a_host_are_assumed_alive(tmp_path):
    path = str(tmp_path / "store")
    store = FileStore(path)
    check_alive(PrefixStore("a", store), CONFIG)
    assert name_of(PrefixStore("a", store)) == f"the store of torch.distributed in {path}"
    BoundedStore.connect(store, PATIENT).set("key", "text")
    assert BoundedStore(store, PATIENT).get("key") == "text"
