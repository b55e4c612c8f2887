"""A page is one file that asks for nothing, and nothing that it shows becomes part of its HTML."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import psrt
from psrt.pages import assets, frame
from psrt.pages.parts import Code, Figure, Heading, Note, Section, Table
from support.pages import Page

EVIL = "</script></style><img src=x onerror=alert(1)>\"'&{{ 7*7 }}{% raw %}\u2028\ud800\0"
PACKAGE = Path(psrt.__file__).parent


def everywhere(text):
    """Return a page with a text wherever one can be."""
    data = {
        "x_name": text,
        "y_name": text,
        "series": [{"name": text, "style": 0, "x": [], "y": []}],
    }
    parts = [
        Note(text), Note(text, "bad"), Heading(text, 1), Code(text, text),
        Table([(text, text)], (text, text), text, styles=[0]),
        Table([(text, text)], (text, text), text, folded=True),
        Figure(text, "<svg></svg>", [(text, 8)], text, data),
    ]  # fmt: skip
    return frame.render(text, text, [Section("one", text, parts)])


def test_no_text_becomes_html():
    page, other = Page(everywhere(EVIL)), Page(everywhere("plain"))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in other.elements]
    assert not [name for _, attributes in page.elements for name in attributes if name[:2] == "on"]
    assert page.text.count("<img src=x onerror=alert(1)>") == other.text.count("plain")
    assert page.charts[0]["x_name"] == EVIL.replace("\ud800", "?")


def test_embedded_json_cannot_end_its_script():
    text = frame.embedded({"a": EVIL})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"a": EVIL}


def test_it_asks_for_nothing():
    page = Page(everywhere("plain"))
    asked = [
        (tag, name, value)
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href")
    ]
    assert asked == [("a", "href", "#one")]
    styles = re.findall(r"<style>(.*?)</style>", page.html, re.DOTALL)
    assert len(styles) == 1
    assert "url(" not in styles[0]
    assert "@import" not in styles[0]


def test_its_policy_allows_its_own_scripts_and_no_connection():
    page = Page(everywhere("plain"))
    (policy,) = [
        attributes["content"]
        for tag, attributes in page.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    run = [text for kind, text in page.scripts if kind is None]
    assert len(run) == 2
    sums = [base64.b64encode(hashlib.sha256(it.encode()).digest()).decode() for it in run]
    assert rules["script-src"] == " ".join(f"'sha256-{it}'" for it in sums)


def test_the_same_parts_make_the_same_bytes():
    assert everywhere("plain") == everywhere("plain")


def test_what_others_wrote_is_as_they_published_it():
    for name, digest in assets.SHA256.items():
        data = (assets.VENDOR / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
    assert f"uPlot (v{assets.UPLOT})" in (assets.VENDOR / "uPlot.iife.min.js").read_text()
    assert (assets.VENDOR / "uPlot.LICENSE").read_text().startswith("The MIT License (MIT)")
    readme = (assets.VENDOR / "README.md").read_text()
    assert f"uPlot {assets.UPLOT}," in readme
    assert {it.name for it in assets.VENDOR.iterdir()} == {
        *assets.SHA256, "uPlot.LICENSE", "README.md",
    }  # fmt: skip


def test_the_files_of_pages_are_packaged():
    setup = (PACKAGE.parent / "setup.py").read_text()
    assert '"psrt.pages": ["template/*", "vendor/*"]' in setup
    assert '"report": ["jinja2>=3.1"]' in setup


@pytest.mark.parametrize(
    "modules", ["psrt", "psrt.job.session, psrt.runtime.worker, psrt.cli.train", "psrt.cli.report"]
)
def test_no_rank_and_no_help_loads_it(modules):
    heavy = "('psrt.pages', 'jinja')"
    code = f"import {modules}, sys; print([n for n in sys.modules if n.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_jinja2_it_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        psrt.ConfigError, match=r"^pages need jinja2, psrt's extra report: pip install"
    ):
        frame.check_installed()
