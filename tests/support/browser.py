"""Headless Chromium, driven by WebDriver (https://www.w3.org/TR/webdriver2/) without a library."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: Timeout of one command, in seconds.
COMMAND_S = 60.0
#: Maximum number of drivers started until one finds a port.
DRIVERS = 5
_WITHOUT_PROXIES = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _start(driver: str) -> tuple[subprocess.Popen[str], int]:
    """Start a driver; return it and its port.

    The driver binds a free port of one address family, then the same port of the other, and exits if that one is taken.
    """
    said: list[str] = []
    for _ in range(DRIVERS):
        process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if (found := re.search(r"started successfully on port (\d+)", line)) is not None:
                return process, int(found[1])
            said.append(line)
        process.stdout.close()
        process.wait(COMMAND_S)
    raise AssertionError(f"{driver} did not start, {DRIVERS} times: {''.join(said)}")


class Browser:
    """A browser with one page. Skips the test if there is none on this machine."""

    def __init__(self, directory: Path) -> None:
        driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
        if driver is None or chromium is None:
            pytest.skip(f"{'chromedriver' if driver is None else 'chromium'} is not installed")
        self._process, port = _start(driver)
        self._url = f"http://127.0.0.1:{port}/session"
        try:
            options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={directory / 'chromium'}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            started = self._post("", capabilities={"alwaysMatch": wanted})
            self._url += f"/{started['sessionId']}"
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the browser."""
        if self._url.count("/") > 3:  # there is a session
            with contextlib.suppress(OSError):
                self._request("DELETE", "")
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def open(self, url: str) -> None:
        """Load a page."""
        self._post("/url", url=url)

    def run(self, script: str) -> Any:
        """Run the body of a JavaScript function; return its result."""
        return self._post("/execute/sync", script=script, args=[])

    def show(self, width: int, height: int, scheme: str) -> None:
        """Set the page's size (a narrow one counts as a phone) and its colour scheme, light or dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def picture(self) -> bytes:
        """Return a screenshot as PNG."""
        return base64.b64decode(self._request("GET", "/screenshot"))

    def complaints(self) -> list[str]:
        """Return the console messages since the last call: errors from scripts, loading and policies."""
        return [entry["message"] for entry in self._post("/se/log", type="browser")]

    def _devtools(self, command: str, parameters: dict[str, Any]) -> None:
        self._post("/goog/cdp/execute", cmd=command, params=parameters)

    def _post(self, path: str, **body: Any) -> Any:
        return self._request("POST", path, json.dumps(body).encode())

    def _request(self, method: str, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(self._url + path, body, method=method)
        with _WITHOUT_PROXIES.open(request, timeout=COMMAND_S) as response:
            return json.load(response)["value"]
