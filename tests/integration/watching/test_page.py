"""The page of `reducer serve --page` in a real browser, together with a real job."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser
from support.network.certificates import Authority
from support.processes.children import environment
from support.training.checked import train_until_told

#: A browser that treated this as markup would run the script, and not show the text.
NAME = "<img src=x onerror=document.title='owned'><b>bold</b><script>document.title='owned'</script>"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    opened = Browser(tmp_path)
    yield opened
    opened.close()


def text_of(browser: Browser, selector: str = "body") -> str:
    return browser.run(f"return document.querySelector({selector!r}).innerText")


def status_at(port: int) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status", timeout=10) as response:
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        return json.load(response)


def serve_with_page(serve, port, *options, **settings):
    return serve("--metrics-port", str(port), "--page", "--processes", "2", *options, **settings)


def test_a_live_job_in_a_browser(ranks, serve, free_port, browser, until):
    port = free_port()
    reducer = serve_with_page(serve, port)
    call = ranks.begin(2, train_until_told, [reducer.address], NAME, {})
    call.hear(0)
    browser.open(f"http://127.0.0.1:{port}/")
    until(lambda: re.search(r"sums per second\s+[1-9]", text_of(browser)), "the job's numbers", 30)

    # The peer's text is shown as text, and none of it has run.
    assert text_of(browser, "#jobs h3") == NAME
    assert (
        browser.run("return document.querySelectorAll('#jobs img, #jobs b, #jobs script, #events b').length")
        == 0
    )
    assert browser.run("return document.title") == "Reduction Server"
    assert f"{NAME}: membership epoch 1 started with 2 ranks" in text_of(browser, "#events")

    jobs, hosts = text_of(browser, "#jobs"), text_of(browser, "#hosts")
    assert re.search(r"ranks\s+2/2\s+epoch\s+1\s+plane\s+shared", jobs), jobs
    assert re.search(r"received\s+[\d.]+ [kM]B/s", jobs), jobs
    assert re.search(r"busiest process\s+\d+ %\s+processes\s+2\s", hosts), hosts
    assert text_of(browser, "#hosts h3") == reducer.address
    script = "return [...document.querySelectorAll('.chart polyline')].map((line) => line.points.length)"
    until(lambda: len(browser.run(script)) >= 4 and min(browser.run(script)) >= 3, "lines in all charts", 30)

    for width in (400, 320, 800, 1300):
        for scheme in ("light", "dark"):
            browser.show(width, 900, scheme)
            wide = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1] == width, f"{wide}: it scrolls sideways"
    hide = "const main = document.querySelector('main'); main.hidden = true; return getComputedStyle(main).display"
    assert browser.run(hide) == "none", "headings without content show before the first answer"
    backgrounds = set()
    for scheme in ("light", "dark"):
        browser.show(800, 900, scheme)
        backgrounds.add(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert backgrounds == {"rgb(246, 247, 249)", "rgb(18, 22, 28)"}
    assert browser.complaints() == []

    call.tell(0, 1)
    call.answers()
    until(lambda: "no jobs" in text_of(browser, "#jobs"), "the end of the job", 30)
    until(lambda: f"{NAME}: ended after" in text_of(browser, "#events"), "the event of its end", 30)
    assert browser.complaints() == []


def test_contrast_is_enough_in_both_schemes(serve, free_port, browser, until):
    """Text has a contrast of at least 4.5 : 1, as WCAG 2 asks for (https://www.w3.org/TR/WCAG22/#contrast-minimum)."""
    port = free_port()
    serve_with_page(serve, port)
    browser.open(f"http://127.0.0.1:{port}/")
    until(lambda: "serving" in text_of(browser, "#hosts"), "the reducer", 30)
    luminance = """
        const light = (name) => {
          const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
          const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
          const [r, g, b] = parts.map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const names = ["--text", "--faint", "--good", "--bad", "--note"];
        return ["--ground", "--card"].flatMap((ground) => names.map((name) => {
          const [a, b] = [light(name), light(ground)].sort((a, b) => b - a);
          return [name, ground, (a + 0.05) / (b + 0.05)];
        }));
    """
    for scheme in ("light", "dark"):
        browser.show(800, 900, scheme)
        for name, ground, ratio in browser.run(luminance):
            assert ratio >= 4.5, f"{scheme}: {name} on {ground} has {ratio:.2f}"


def test_a_reducer_that_dies_and_comes_back(serve, free_port, browser, until):
    port = free_port()
    first = serve_with_page(serve, port)
    browser.open(f"http://127.0.0.1:{port}/")
    until(lambda: "serving" in text_of(browser, "#hosts"), "the reducer", 30)
    assert browser.run("return document.getElementById('trouble').hidden") is True
    first.kill()
    until(lambda: "No answer from this reducer" in text_of(browser), "the trouble", 30)
    assert browser.run("return document.body.className") == "stale"
    until(lambda: not _is_served(port), "its siblings to end")
    serve_with_page(serve, port)
    until(lambda: browser.run("return document.getElementById('trouble').hidden"), "the page to go on", 30)
    assert "serving" in text_of(browser, "#hosts")


def _is_served(port: int) -> bool:
    try:
        status_at(port)
    except OSError:
        return False
    return True


def test_no_page_is_served_without_the_option(serve, free_port):
    port = free_port()
    serve("--metrics-port", str(port))
    for path in ("/", "/page.js", "/api/status"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10)


@pytest.mark.parametrize(
    ("guard", "bind", "state"),
    [
        ("insecure", "0.0.0.0:0", "serving"),
        ("tokens", "0.0.0.0:0", "serving"),
        ("localhost", "0.0.0.0:0", "serving"),  # from here on, names in certificates
        ("127.0.0.1", "127.0.0.1:0", "serving"),
        ("elsewhere.example", "127.0.0.1:0", "1 of 2"),
    ],
)
def test_all_processes_are_shown_whatever_guards_them(serve, free_port, until, tmp_path, guard, bind, state):
    port = free_port()
    file = tmp_path / "tokens"
    file.write_text("*:secret-of-the-token-file\n")
    file.chmod(0o600)
    if guard == "insecure":
        options = ["--insecure"]
    elif guard == "tokens":
        options = ["--token-file", str(file)]
    else:
        tls = Authority(tmp_path).files(guard)
        options = [
            "--tls-cert",
            tls.cert,
            "--tls-key",
            tls.key,
            "--tls-ca",
            tls.ca,
            "--token-file",
            str(file),
        ]
    serve_with_page(serve, port, *options, bind=bind)
    until(lambda: _is_served(port), "the first look")
    [host] = until(
        lambda: [
            row for row in status_at(port)["hosts"] if row["cores"] is not None and row["state"] == state
        ],
        f"two looks, and {state}",
        30,
    )
    assert (host["processes"], bool(host["reason"])) == (2, state != "serving"), host
    assert "secret" not in json.dumps(status_at(port))


def test_page_without_metrics_port_is_refused_at_once():
    command = [sys.executable, "-m", "reducer", "serve", "--bind", "127.0.0.1:0", "--page"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert ended.returncode == 2
    assert "--page: the page is on the metrics port, so set --metrics-port too" in ended.stderr
