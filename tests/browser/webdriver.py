"""Drive Chromium by the WebDriver protocol, which is JSON over HTTP, through Debian's chromedriver."""

import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from lakemq.testing import wait_until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The name under which the protocol passes elements."""


class Tab:
    """A tab of Chromium."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client, self._path = client, f"/session/{session}"

    def _send(self, command: str, **inputs: Any) -> Any:
        response = self._client.post(f"{self._path}/{command}", json=inputs)
        assert response.status_code == 200, response.text
        return response.json()["value"]

    def open(self, address: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._send("url", url=address)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript on the page; the page's own policy does not apply to it."""
        return self._send("execute/sync", script=f"return {expression}", args=[])

    def click(self, selector: str) -> None:
        """Click an element, and wait for the page that follows."""
        self.evaluate("window.isLeft = true")
        self._send(f"element/{self._find(selector)}/click")
        # the driver itself does not wait for the answer to a form that takes long
        wait_until(lambda: self.evaluate("!window.isLeft && document.readyState === 'complete'"), "the page", 200)

    def fill(self, selector: str, text: str) -> None:
        """Type a text into an element."""
        element = self._find(selector)
        self._send(f"element/{element}/clear")
        self._send(f"element/{element}/value", text=text)

    def _find(self, selector: str) -> str:
        return str(self._send("element", using="css selector", value=selector)[_ELEMENT])

    def emulate(self, width: int, height: int, scheme: str = "light") -> None:
        """Look like a screen of this size, whose system asks for light or dark colours."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._cdp("Emulation.setDeviceMetricsOverride", metrics)
        self._cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def photograph(self) -> bytes:
        """Return the screen as a PNG."""
        return base64.b64decode(self._cdp("Page.captureScreenshot", {"format": "png"})["data"])

    def count_memory(self) -> dict[str, float]:
        """Return what the tab holds, after its garbage is collected: nodes, documents, bytes of JavaScript."""
        self._cdp("HeapProfiler.collectGarbage", {})
        self._cdp("Performance.enable", {})
        return {metric["name"]: metric["value"] for metric in self._cdp("Performance.getMetrics", {})["metrics"]}

    def _cdp(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._send("goog/cdp/execute", cmd=command, params=parameters)

    def read_console(self) -> list[str]:
        """Return the messages that pages have written to the browser's console since the last call."""
        return [entry["message"] for entry in self._send("se/log", type="browser")]


@contextmanager
def open_tab(profile: Path) -> Iterator[Tab]:
    """Start Chromium with an empty profile, and yield a tab."""
    assert DRIVER
    assert CHROMIUM
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout
        try:
            lines = (re.search(r"successfully on port (\d+)", line) for line in driver.stdout)
            port = next(match[1] for match in lines if match)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
                yield from _run_session(client, profile)
        finally:
            driver.terminate()


def _run_session(client: httpx.Client, profile: Path) -> Iterator[Tab]:
    options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    response = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
    assert response.status_code == 200, response.text
    session = response.json()["value"]["sessionId"]
    try:
        yield Tab(client, session)
    finally:
        client.delete(f"/session/{session}")
