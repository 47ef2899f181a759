"""Forms of texts that name reducers, including files, Ray pools, and schemes of other packages."""

import contextlib
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction.discovery import file, schemes
from reduction.discovery.cluster import Cluster
from reduction.discovery.schemes import check_texts, cluster_of, scheme_of, split
from reduction.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a:1, b:2 ,,", ["a:1", "b:2"]),
        ("r{0..3}:1,dns:n:1?count=2", ["r{0..3}:1", "dns:n:1?count=2"]),
        (
            "a:1, slurm:nodes=n[1-2,4],m:50051, slurm:nodes=x,y:2,b:2",
            ["a:1", "slurm:nodes=n[1-2,4],m:50051", "slurm:nodes=x,y:2", "b:2"],
        ),
        ("", []),
    ],
)
def test_split_at_commas(text, entries):
    assert split(text) == entries


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("vertex:", "vertex"),
        ("sagemaker:reducers:1", "sagemaker"),
        ("slurm:1:50051", "slurm"),
        ("ray:pool", "ray"),
        ("file:/tmp/x", "file"),
        ("slurm:50051", None),
        ("a:1", None),
        ("[::1]:1", None),
        ("dns:a:1", None),
        ("slrum:1:50051", None),
        ("file://x", None),
    ],
)
def test_schemes_are_recognized(text, scheme):
    assert scheme_of(text) == scheme


def test_schemes_are_checked_without_being_resolved():
    check_texts(["slurm:1:50051", "file:/nowhere", "vertex:", "ray:pool", "sagemaker:", "a:1", "ray:1"])


KNOWN = "is not a scheme either; known schemes are dns, vertex, sagemaker, slurm, ray, file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slrum:1:50051", f"'slrum' {KNOWN}; did you mean 'slurm'?"),
        (
            "vertx:",
            f"reducer 'vertx:' is not HOST:PORT or dns:NAME:PORT with a port of 1 to 65535; 'vertx' {KNOWN}",
        ),
        ("consul:service:web", f"'consul' {KNOWN}"),
        # Other mistakes are not reported as unknown schemes.
        ("slurm:0", None),
        ("fe80::1:50051", None),
        ("dns:a", None),
        ("http://x:1", None),
        ("a:1;b:2", None),
        ("a:1\nb:2", None),
    ],
)
def test_an_unknown_scheme(text, message):
    with pytest.raises(ConfigError) as caught:
        check_texts([text])
    assert ("scheme" in str(caught.value)) == (message is not None)
    assert (message or "") in str(caught.value)


def test_empty_lists_and_duplicates_are_refused():
    with pytest.raises(ConfigError, match="the list of reducers is empty"):
        check_texts([])
    with pytest.raises(ConfigError, match="names an address twice: vertex:, vertex:"):
        check_texts(["vertex:", "vertex:"])


@given(st.text() | st.text("ab:01[]{}.,-/?=#\n", max_size=30))
def test_rubbish_is_a_config_error(text):
    for parse in (lambda text: check_texts(split(text)), lambda text: file.parse("file:x", text)):
        with contextlib.suppress(ConfigError):
            parse(text)


# ---- files ----


def test_reading_a_file(tmp_path):
    path = tmp_path / "reducers"
    path.write_text("# ours\n a:1\n\nb-{08..10}:2  # a range\r\n[::1]:3\na:1\n")
    assert cluster_of(f"file:{path}") == Cluster("file", ("a:1", "b-08:2", "b-09:2", "b-10:2", "[::1]:3"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file names no reducer"),
        ("# a:1\n", "the file names no reducer"),
        ("a:1\nb\n", ", line 2: reducer 'b' is not HOST:PORT"),
        ("dns:\n", ", line 1: reducer 'dns:' is not HOST:PORT"),
        ("dns:name:1\n", ", line 1: reducer 'dns:name:1' is a DNS name: write HOST:PORT"),
        ("a:1\na-{1..4096}:1\n", "has 4097 addresses; the limit is 4096"),
    ],
)
def test_invalid_files_are_refused(tmp_path, content, message):
    path = tmp_path / "reducers"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        cluster_of(f"file:{path}")
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file:", "write file:PATH"),
        ("file:/nowhere/x", "cannot be read: .*No such file"),
        ("file:/dev/zero", "the file has more than 1048576 bytes"),
        ("file:a\0b", "cannot be read: embedded null byte"),
    ],
)
def test_a_file_that_cannot_be_read(text, message):
    with pytest.raises(ConfigError, match=message):
        cluster_of(text)


# ---- Ray ----


class FakeRay(SimpleNamespace):
    """The part of the package ray that `ray:` uses, with one pool named "pool"."""

    def __init__(self, answer, is_connected=True):
        super().__init__(calls=[])
        self.is_initialized = lambda: is_connected
        self.init = lambda **options: self.calls.append(options)
        self.get = lambda reference, timeout: answer
        self.pool = SimpleNamespace(addresses=SimpleNamespace(remote=lambda: "reference"))

    def get_actor(self, name, namespace):
        if (name, namespace) != ("pool", "reduction-server"):
            raise ValueError(f"Failed to look up actor {name!r}")
        return self.pool


@pytest.mark.parametrize(("is_connected", "calls"), [(True, []), (False, [{"address": "auto"}])])
def test_a_ray_pool(monkeypatch, is_connected, calls):
    fake = FakeRay(["10.0.0.5:1", "10.0.0.6:2"], is_connected)
    monkeypatch.setitem(sys.modules, "ray", fake)
    assert cluster_of("ray:pool") == Cluster("ray", ("10.0.0.5:1", "10.0.0.6:2"))
    assert fake.calls == calls


@pytest.mark.parametrize(
    ("text", "answer", "message"),
    [
        ("ray:", [], "reducers 'ray:': write ray:NAME"),
        ("ray:other", [], "reducers 'ray:other': no such pool answers: Failed to look up actor 'other'"),
        ("ray:pool", [], "reducers 'ray:pool' of ray: the list of reducers is empty"),
    ],
)
def test_a_missing_ray_pool_is_reported(monkeypatch, text, answer, message):
    monkeypatch.setitem(sys.modules, "ray", FakeRay(answer))
    with pytest.raises(ConfigError) as caught:
        cluster_of(text)
    assert str(caught.value).startswith(message)


def test_ray_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="reducers 'ray:pool': Ray is not installed"):
        cluster_of("ray:pool")


# ---- other packages ----

PACKAGE = """
from reduction.discovery.cluster import Cluster
from reduction.errors import ConfigError


def find(text, environ):
    match text:
        case "consul:no":
            raise ConfigError("no service")
        case "consul:broken":
            raise KeyError("web")
    return Cluster("consul", ("a:1", environ["B"]))
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with the scheme `consul`."""
    (tmp_path / "consul_reducers.py").write_text(PACKAGE)
    info = tmp_path / "consul_reducers-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: consul-reducers\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{schemes.ENTRY_POINTS}]\nconsul = consul_reducers:find\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("consul_reducers", None)


@pytest.mark.usefixtures("package")
def test_a_scheme_of_another_package():
    check_texts(["consul:web"])
    assert cluster_of("consul:web", {"B": "b:2"}).reducers == ("a:1", "b:2")
    with pytest.raises(
        ConfigError, match="known schemes are dns, vertex, sagemaker, slurm, ray, file, consul; did you"
    ):
        check_texts(["consol:web"])


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("consul:no", "^no service$"),
        ("consul:broken", "reducers 'consul:broken': consul_reducers:find failed: KeyError"),
        ("consul:bad", "reducers 'consul:bad' of consul: reducer 'b' is not HOST:PORT"),
    ],
)
def test_errors_of_another_package(text, message):
    with pytest.raises(ConfigError, match=message):
        cluster_of(text, {"B": "b"})
