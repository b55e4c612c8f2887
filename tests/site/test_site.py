"""The site that `make docs-site` has built: links lead somewhere, pages are in its navigation.

Links to other sites cannot be followed from here; of them only the form is looked at.
"""

import re
import time
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import psrt
from support.browser import tab_in

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs/_build/html"
#: Pages that Sphinx makes of its own accord.
OWN = {"genindex.html", "search.html", "py-modindex.html"}
#: What asks for a page that plays an explanation: a comment, which GitHub does not show.
PLAY = re.compile(r"^<!-- (?:play \d+|film): (.+) -->$", re.MULTILINE)
#: What no page of one's own starts, such as a link that a copy of the theme has.
SCHEMES = ("", "https")


class Page(HTMLParser):
    """The links, the anchors, the navigation and the cards of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.navigation = [], set(), []
        self.doors = []
        self._in_navigation = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "div" and "sidebar-tree" in found.get("class", ""):
            self._in_navigation = True
        for key in ("href", "src"):
            if found.get(key):
                self.links.append(found[key])
                if "sd-stretched-link" in found.get("class", ""):
                    self.doors.append(found[key])
                if self._in_navigation and tag == "a":
                    self.navigation.append(found[key])

    def handle_endtag(self, tag):
        if tag == "aside":
            self._in_navigation = False


@cache
def page(path):
    return Page(path)


@pytest.fixture(scope="module")
def pages():
    found = sorted(SITE.glob("*.html"))
    assert len(found) >= len(list((ROOT / "docs").glob("*.md"))), "make docs-site builds it"
    return found


def leads_nowhere(path, link):
    """Whether a link of a page is to a file, or an anchor, that the site does not have."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not there.is_file():
        return True
    if not parts.fragment or there.suffix != ".html" or path.name in OWN:
        return False
    return unquote(parts.fragment) not in page(there).anchors


def test_every_link_leads_somewhere(pages):
    links = [(path, link) for path in pages for link in page(path).links]
    assert [f"{path.name}: {link}" for path, link in links if leads_nowhere(path, link)] == []


def test_what_a_page_plays_is_in_it(pages):
    """Each comment of a page that asks for it has become a frame with the page that plays it."""
    asked = 0
    for path in pages:
        source = ROOT / "docs" / f"{path.stem}.md"
        words = PLAY.findall(source.read_text(encoding="utf-8")) if source.is_file() else []
        asked += len(words)
        text = path.read_text(encoding="utf-8")
        assert len(re.findall(r'<iframe class="play[ "]', text)) == len(words), path.name
        for i, title in enumerate(words, 1):
            address = f"play/{path.stem}-{i}.html"
            assert re.search(f'src="{address}["?]', text)
            assert f' title="psrt explain {title}, step by step"' in text
            assert (SITE / address).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert asked >= 5


def test_what_the_code_says_is_in_the_page_and_not_the_sentence_for_it(pages):
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert "On the site:" not in text, path.name
        assert "&lt;!-- " not in text, path.name
    assert {"cmdoption-psrt-train-mode", "cmdoption-psrt-train-codec-arg-sign"} <= page(
        SITE / "cli.html"
    ).anchors


def test_the_index_leads_to_every_page(pages):
    navigation = {urlsplit(link).path for link in page(SITE / "index.html").navigation}
    missing = {path.name for path in pages} - navigation - OWN - {"index.html"}
    assert missing == set()


def test_every_public_name_is_in_the_reference():
    anchors = page(SITE / "api.html").anchors
    assert {f"psrt.{name}" for name in psrt.__all__} - anchors == set()


def test_nothing_is_fetched_from_elsewhere_and_links_to_other_sites_are_encrypted(pages):
    """A page works without a network: styles, scripts and pictures are the site's own."""
    fetched = re.compile(
        '<script src="http|<img src="http|<link rel="stylesheet" type="text/css" href="http'
    )
    for path in pages:
        assert not fetched.search(path.read_text(encoding="utf-8")), path.name
        links = [it for it in page(path).links if not it.startswith("data:")]
        assert {urlsplit(link).scheme for link in links} <= {*SCHEMES}, path.name


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with tab_in(tmp_path_factory.mktemp("tab")) as tab:
        yield tab


def test_the_first_screen_has_three_doors_code_and_a_film_that_plays_by_itself(tab):
    index = SITE / "index.html"
    doors = page(index).doors
    assert len(set(doors)) == 3
    assert not any(leads_nowhere(index, door) for door in doors)
    tab.size(1280, 900)
    tab.open(index)
    seen = "(it) => document.querySelector(it).getBoundingClientRect().top < 900"
    assert tab.ask(f"['iframe.film', 'img[src$=svg]', '.highlight-python'].every({seen})")
    looks = set()
    for _ in range(20):
        looks.add(tab.screenshot())
        time.sleep(0.5)
    assert len(looks) >= 4  # nothing else there moves
    assert tab.console == []
    assert [it for it in tab.requests if not it.startswith(("file:", "data:"))] == []


def test_every_page_fits_a_narrow_screen(tab, pages):
    """What is wider, such as a table, scrolls by itself."""
    tab.size(400, 900)
    wide = {}
    for path in pages:
        tab.open(path)
        wide[path.name] = tab.ask(
            "Math.max(...[document.documentElement, document.querySelector('.content')]"
            ".map((it) => it.scrollWidth))"
        )
    assert {name: width for name, width in wide.items() if width > 400} == {}
