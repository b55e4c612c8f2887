"""A tab of a headless browser that is pressed, looked at and asked: over a pair of pipes.

The protocol is Chrome's DevTools; with ``--remote-debugging-pipe`` messages are JSON, each ended by
a zero byte, on the browser's file descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import io
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

#: The first of these that is there.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
#: (code, number, text) of the keys that tests press.
KEYS = {
    " ": ("Space", 32, " "),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
}
_TIMEOUT_S = 60.0


class Tab:
    """One page, open."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._buffer, self._count = write, read, b"", 0
        self._session = ""
        #: What the page wrote to its console, its uncaught errors, and addresses that it asked for.
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._next()
            if got.get("id") == self._count:
                assert "error" not in got, f"{method}: {got['error']}"
                return dict(got["result"])
            self._note(got)

    def open(self, page: Path, query: str = "") -> None:
        """Show a page, and wait until its scripts have run."""
        address = page.as_uri() + query
        self.call("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(address)}")

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, f"{expression}: {found}"
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + _TIMEOUT_S
        while not self.ask(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.01)

    def press(self, *keys: str) -> None:
        """Press keys, one after another."""
        for key in keys:
            code, number, text = KEYS[key]
            rest = {"key": key, "code": code, "windowsVirtualKeyCode": number}
            self.call("Input.dispatchKeyEvent", type="keyDown", **rest, text=text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **rest)

    def colours(self, scheme: str) -> None:
        """Have pages shown ``light`` or ``dark``, and nothing move."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        features.append({"name": "prefers-reduced-motion", "value": "reduce"})
        self.call("Emulation.setEmulatedMedia", features=features)

    def scripts(self, *, run: bool) -> None:
        """Say whether scripts of pages run, from the next page on."""
        self.call("Emulation.setScriptExecutionDisabled", value=not run)

    def size(self, width: int, height: int) -> None:
        """Set the size of the window, in pixels."""
        rest = {"deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **rest)

    def screenshot(self) -> bytes:
        """Return what is seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def dom(self, page: Path) -> tuple[str, list[str]]:
        """Return a page's HTML after its scripts have run, and the lines of its console."""
        self.console.clear()
        self.open(page)
        return str(self.ask("document.documentElement.outerHTML")), self.console

    def look(
        self, page: Path, scheme: str = "light", *, width: int = 1000, height: int = 3000
    ) -> np.ndarray:
        """Return what is seen of a page, (height, width, 3) bytes."""
        from matplotlib import image

        self.size(width, height)
        self.colours(scheme)
        self.open(page)
        pixels = image.imread(io.BytesIO(self.screenshot()))[..., :3]
        return (255 * pixels).round().astype(np.uint8)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], _TIMEOUT_S)
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has gone"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        method, parts = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(it.get("value")) for it in parts["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(parts["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(parts["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parts["request"]["url"])


def pixels_of(look: np.ndarray, colour: str) -> int:
    """Return the number of pixels of a colour like ``#0072b2``."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((look == wanted).all(axis=2).sum())


@contextmanager
def tab_in(folder: Path) -> Iterator[Tab]:
    """Start a browser that keeps its files in a folder, and yield a tab; skip if there is none."""
    program = next(filter(shutil.which, BROWSERS), None)
    if program is None:
        pytest.skip("no browser: as root, apt-get install chromium-headless-shell")
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    # The shell gives the browser its two descriptors, whatever numbers they have here.
    command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        [
            "bash", "-c", command, program, *flags, "--remote-debugging-pipe",
            "--proxy-server=127.0.0.1:9", f"--user-data-dir={folder / 'tab'}",
        ],
        pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Tab(from_us, to_us)
    finally:
        process.kill()
        process.wait()
        os.close(from_us)
        os.close(to_us)
