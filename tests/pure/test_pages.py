"""The pages lead where they say: relative links, and files of the repository that they name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
#: Files that the worked examples tell people to make.
TO_BE_MADE = ("psrt/collective/schedules/chain.py",)
#: A page that shows another.
INCLUDED = re.compile(r"```\{include\} (\S+)")
#: Those in ``py`` need what is not installed; tests/pure/runs/test_export.py has stubs of it.
KINDS = ("sh", "console", "python", "py", "text", "diff")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def anchors(page):
    """Return the anchors that a page's headings make, as they are made on the usual sites."""
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_relative_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = page if not path else (page.parent / path).resolve()
        assert there.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(there), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_are_named_are_there(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:psrt|apps|tests|docs|hostfiles)/[\w./\-]*)`", text):
        assert (ROOT / name).exists() or name in TO_BE_MADE, f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_page_of_docs_is_in_its_index(page):
    if page.parent.name == "docs" and page.name != "index.md":
        included = INCLUDED.match(page.read_text(encoding="utf-8"))
        target = included[1] if included else page.name
        assert f"({target})" in (ROOT / "docs/index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_blocks_are_of_kinds_that_tests_know(page):
    """``sh``, ``console`` and ``python`` are run; others are output or have their own test."""
    text = page.read_text(encoding="utf-8")
    opened = re.findall(r"^([ \t]*)```(.*)$", text, re.MULTILINE)[::2]
    for indent, kind in opened:
        assert not indent, f"{page.name}: what is indented is not run"
        assert kind in KINDS or INCLUDED.match(f"```{kind}"), f"{page.name}: ```{kind}"
