"""Resolution of texts to a list of HOST:PORT, with retries for DNS names."""

import socket
import threading
from types import SimpleNamespace

import pytest
from reduction.discovery import resolve as resolving
from reduction.discovery.resolve import DNS_RETRY_S, Resolved, resolve
from reduction.errors import ReducerUnavailable


def answers(*hosts):
    """Return getaddrinfo's result for a name with these addresses."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 50051)) for host in hosts]


@pytest.fixture
def dns(monkeypatch):
    """A name server that answers one entry of `script` per question, and a clock that only sleep advances."""
    script, asked, clock = [], [], [100.0]

    def getaddrinfo(name, port, type):
        asked.append((clock[0], name, port))
        answer = script.pop(0) if script else socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(resolving.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(resolving, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    return SimpleNamespace(script=script, asked=asked)


def test_addresses_and_ranges_need_no_name_server(dns):
    listed = ("r-{0..2}.svc:50051", "r-1.svc:50051", "b:2", "a:1", "b:2")
    expected = ("r-0.svc:50051", "r-1.svc:50051", "r-2.svc:50051", "b:2", "a:1")
    assert resolve(listed, 1.0, 1000.0) == Resolved(expected, {})
    assert dns.asked == []


def test_a_name_becomes_all_its_addresses_sorted_and_without_duplicates(dns):
    dns.script += [answers("10.0.0.7", "10.0.0.5", "10.0.0.7", "fd00::1"), answers("10.0.0.7")]
    listed = ("10.0.0.7:50051", "dns:all.svc:50051", "dns:some:50051", "c:3")
    assert resolve(listed, 1.0, 1000.0) == Resolved(
        ("10.0.0.7:50051", "10.0.0.5:50051", "[fd00::1]:50051", "c:3"),
        {
            "dns:all.svc:50051": ("10.0.0.5:50051", "10.0.0.7:50051", "[fd00::1]:50051"),
            "dns:some:50051": ("10.0.0.7:50051",),
        },
    )
    assert dns.asked == [(100.0, "all.svc", 50051), (100.0, "some", 50051)]


def test_a_name_that_appears_later_is_waited_for(dns):
    dns.script += [socket.gaierror(socket.EAI_AGAIN, "later")] * 2 + [answers("10.0.0.5")]
    assert resolve(("dns:reducers:50051",), 60.0, 1000.0).addresses == ("10.0.0.5:50051",)
    assert [when - 100.0 for when, _, _ in dns.asked] == [0.0, DNS_RETRY_S, 2 * DNS_RETRY_S]


def test_a_name_is_waited_for_until_it_has_as_many_addresses_as_are_wanted(dns, caplog):
    dns.script += [answers("10.0.0.5")] * 12 + [answers("10.0.0.5", "10.0.0.6", "10.0.0.7")]
    found = resolve(("dns:reducers:50051?count=3",), 60.0, 5.0)
    assert found.addresses == ("10.0.0.5:50051", "10.0.0.6:50051", "10.0.0.7:50051")
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for dns:reducers:50051?count=3: 'reducers' has 1 of 3 addresses: too few addresses; "
        "giving up in 55 s"
    ]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ([], "dns:nowhere:50051?count=2: 'nowhere' has 0 of 2 addresses after 1.2 s: [Errno -2] Name or"),
        (
            [answers("10.0.0.5")] * 9,
            "dns:nowhere:50051?count=2: 'nowhere' has 1 of 2 addresses after 1.2 s: too",
        ),
    ],
)
def test_a_name_that_never_has_enough_is_named_with_the_time_waited(dns, script, text):
    dns.script += script
    with pytest.raises(ReducerUnavailable) as caught:
        resolve(("dns:nowhere:50051?count=2",), 1.2, 1000.0)
    assert str(caught.value).startswith(text)
    assert dns.asked[-1][0] == pytest.approx(100.0 + 3 * DNS_RETRY_S)


def test_only_some_schemes_may_stand_for_other_reducers_later(dns, tmp_path):
    (tmp_path / "list").write_text("a:1\nb:2\n")
    dns.script.append(answers("10.0.0.5"))
    texts = ("b:2", f"file:{tmp_path}/list", "slurm:0:3", "dns:n:4")
    found = resolve(texts, 1.0, 1000.0, {"SLURM_JOB_NODELIST_HET_GROUP_0": "c[1-2]"})
    assert found == Resolved(
        ("b:2", "a:1", "c1:3", "c2:3", "10.0.0.5:4"),
        {f"file:{tmp_path}/list": ("a:1", "b:2"), "dns:n:4": ("10.0.0.5:4",)},
    )


@pytest.fixture
def silence():
    """Return a stand-in for a call that never returns while the test runs."""
    is_over = threading.Event()
    yield lambda *_, **__: is_over.wait()
    is_over.set()


def test_a_silent_name_server_is_not_waited_for_beyond_the_timeout(monkeypatch, caplog, silence):
    monkeypatch.setattr(socket, "getaddrinfo", silence)
    monkeypatch.setattr(resolving, "DNS_RETRY_S", 0.01)
    with pytest.raises(ReducerUnavailable) as caught:
        resolve(("dns:reducers:1",), 0.5, 0.1)
    assert str(caught.value) == (
        "dns:reducers:1: 'reducers' has 0 of 1 addresses after 0.5 s: no name server has answered"
    )
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for dns:reducers:1: 'reducers' has 0 of 1 addresses: no name server has answered; giving up in 0 s"
    ]


def test_a_silent_cluster_is_not_waited_for_beyond_the_timeout(monkeypatch, silence):
    monkeypatch.setattr(resolving, "cluster_of", silence)
    with pytest.raises(ReducerUnavailable, match=r"^file:/gone: no answer within 0.1 s$"):
        resolve(("file:/gone",), 0.1, 1000.0)


def test_an_invalid_name_is_reported(dns):
    dns.script += [UnicodeError("label empty or too long")] * 9
    with pytest.raises(ReducerUnavailable, match=r"has 0 of 1 addresses after 1 s: it is not a host name"):
        resolve(("dns:a..b:1",), 1.0, 1000.0)
