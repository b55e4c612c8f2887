"""Pages as an independent reader sees them, and runs to make them of."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from psrt.__main__ import main

_DATA = ("--dataset", "synthetic:96x12x4", "--hidden", "16,8,8", "--batch-size", "4")
#: Runs in virtual time, by what they are for: a few hundredths of a second each.
RUNS: dict[str, tuple[str, ...]] = {
    "ssp": (
        *("--mode", "ssp:staleness=2", "--servers", "2", "--workers", "3", *_DATA),
        *("--epochs", "2", "--log-every", "2", "--record", "--compute", "lognormal:0.01:0.8"),
    ),
    "gossip": (
        *("--mode", "gossip:topology=ring", "--workers", "4", *_DATA, "--epochs", "2"),
        *("--log-every", "2", "--consensus-every", "2", "--record"),
    ),
    "pipeline": (
        *("--parallel", "pipeline:2", "--pipeline-schedule", "gpipe", "--workers", "4", *_DATA),
        *("--epochs", "2", "--log-every", "4", "--record"),
    ),
    "codec": (
        *("--mode", "sync", "--servers", "1", "--workers", "2", "--codec", "top-k", *_DATA),
        *("--epochs", "2", "--log-every", "4", "--record", "--checkpoint-every", "8"),
    ),
}

_VOID = {"meta", "link", "br", "img", "input", "hr", "base"}


def make_run(kind: str, out: Path) -> Path:
    """Run one of ``RUNS`` into a folder, and return it."""
    status = main(["simulate", *RUNS[kind], "--out", str(out)])
    assert status == 0
    return out


class Page(HTMLParser):
    """A page, read by Python's own parser: its text, tables, charts and elements."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        #: (tag, attributes) of every element, in order.
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        #: Text outside of scripts and styles.
        self.text = ""
        #: Section → its tables, each a list of rows of cells.
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.sections: dict[str, str] = {}
        #: Section → its lines to be copied.
        self.codes: dict[str, list[str]] = {}
        self.scripts: list[tuple[str | None, str]] = []
        self._open: list[str] = []
        self._section = ""
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"
        kinds = dict(self.scripts)
        self.charts: list[dict[str, Any]] = json.loads(kinds["application/json"])

    def chart(self, x_name: str, y_name: str) -> dict[str, Any]:
        """Return the data of the one chart with these axes."""
        (found,) = [
            it for it in self.charts if it and (it["x_name"], it["y_name"]) == (x_name, y_name)
        ]
        return found

    def value(self, section: str, name: str) -> str:
        """Return the cell beside a name in a section's tables."""
        (cell,) = {row[1] for table in self.tables[section] for row in table if row[0] == name}
        return cell

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        if tag == "section":
            self._section = found["id"] or ""
            self.sections[self._section] = ""
            self.tables[self._section] = []
            self.codes[self._section] = []
        if tag == "table":
            self.tables[self._section].append([])
        if tag == "tr":
            self.tables[self._section][-1].append([])
        if tag in ("th", "td"):
            self.tables[self._section][-1][-1].append("")
        if tag == "pre":
            self.codes[self._section].append("")
        if tag == "script":
            self.scripts.append((found.get("type"), ""))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1:] == [tag], f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            kind, text = self.scripts[-1]
            self.scripts[-1] = kind, text + data
        elif self._open[-1:] != ["style"]:
            self.text += data
            if self._section:
                self.sections[self._section] += data
            if self._open[-1:] in (["th"], ["td"]):
                self.tables[self._section][-1][-1][-1] += data
            if self._open[-1:] == ["pre"]:
                self.codes[self._section][-1] += data


def of_size(text: str) -> float:
    """Return the bytes that a text like ``1.5 MiB`` says."""
    found = re.fullmatch(r"([0-9.]+) (B|KiB|MiB|GiB|TiB)", text)
    assert found is not None, text
    return float(found[1]) * 1024.0 ** ("B", "KiB", "MiB", "GiB", "TiB").index(found[2])


def of_time(text: str) -> float:
    """Return the seconds that a text like ``3.5 ms`` says."""
    found = re.match(r"([0-9.]+) (µs|ms|s)\b", text)
    assert found is not None, text
    return float(found[1]) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]
