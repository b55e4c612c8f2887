"""A headless browser, as far as tests of pages need one: what it makes of a page, and its look."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

#: The first of these that is there.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
#: Has the page shown in its dark colours.
DARK = "--blink-settings=preferredColorScheme=0"


class Browser:
    """Opens files, each in a process of its own, and never goes to a network."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self._folder = program, folder

    @classmethod
    def found(cls, folder: Path) -> Browser:
        """Return one that keeps its files in a folder; skip the test if there is none."""
        for name in BROWSERS:
            if program := shutil.which(name):
                return cls(program, folder)
        pytest.skip("no browser: as root, apt-get install chromium-headless-shell")

    def run(self, page: Path, *flags: str) -> tuple[str, list[str]]:
        """Open a page; return its stdout and the lines of its console."""
        done = subprocess.run(
            [
                self.program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--force-device-scale-factor=1", "--virtual-time-budget=3000",
                "--enable-logging=stderr", "--proxy-server=127.0.0.1:9",
                f"--user-data-dir={self._folder / 'profile'}", *flags, page.as_uri(),
            ],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        return done.stdout, re.findall(r".*CONSOLE.*", done.stderr)

    def dom(self, page: Path, *flags: str) -> tuple[str, list[str]]:
        """Return the page's HTML after its scripts have run, and the lines of its console."""
        return self.run(page, "--dump-dom", *flags)

    def look(self, page: Path, *flags: str, width: int = 1000, height: int = 3000) -> np.ndarray:
        """Return a screenshot, (height, width, 3) bytes."""
        from matplotlib import image

        path = self._folder / "look.png"
        self.run(page, f"--window-size={width},{height}", f"--screenshot={path}", *flags)
        return (255 * image.imread(path)[..., :3]).round().astype(np.uint8)


def pixels_of(look: np.ndarray, colour: str) -> int:
    """Return the number of pixels of a colour like ``#0072b2``."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((look == wanted).all(axis=2).sum())
