"""The pages: what the code says is not in them, and links lead somewhere."""

import argparse
import doctest
import importlib
import pkgutil
import re
import runpy
import sys
from pathlib import Path

import pytest

import psrt
from psrt.__main__ import main
from psrt.cli.completion import parsers_of_all
from psrt.history.folds.record import COLUMNS

DOCS = Path(__file__).parents[2] / "docs"


sys.path.insert(0, str(DOCS))

from from_code import MARK, as_markdown, made  # noqa: E402


def test_what_the_code_says_is_made_with_the_site_and_not_kept_in_a_page():
    """Each mark can be made, and in its place the file has a sentence with a link or a command."""
    found = {}
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        found |= {mark[1]: mark[2] for mark in MARK.finditer(text)}
    assert len(found) >= 12
    for name, sentence in found.items():
        assert re.fullmatch(r"\*On the site: [^|\n]+\.\*", sentence), name
        assert len(made(name)) > len(sentence), name


def test_markdown_of_a_docstring():
    assert as_markdown("A ``Step``, 2**k.\n\n.. code-block:: text\n\n    a**b") == (
        "A `Step`, 2\\*\\*k.\n\n    a**b"
    )
    table = "==  ===\np   b c\n==  ===\n1   two\n    of\n3   4\n==  ==="
    assert as_markdown(f"{table}\n\n**Yes.** End") == (
        "| p | b c |\n|---|---|\n| 1 | two of |\n| 3 | 4 |\n\n**Yes.** End"
    )
    assert as_markdown("==  ==\n1   2\n==  ==") == "|  |  |\n|---|---|\n| 1 | 2 |"


def test_the_page_of_the_command_line_has_every_flag_that_the_help_shows():
    sections = re.split(r"^## psrt ", made("COMMANDS"), flags=re.MULTILINE)
    said = {it.partition("\n")[0]: set(re.findall(r"(?<=[ `])--?\w[\w-]*", it)) for it in sections}
    for name, parsers in parsers_of_all().items():
        flags = said[name if name in said else "train"]
        if parsers[0].knobs:
            flags |= said["train"]
        for action in (it for parser in parsers for it in parser._actions):
            if argparse.SUPPRESS not in (action.help, action.default):  # as --help has
                assert flags.issuperset(action.option_strings), (name, action)


def test_the_worked_example_has_the_numbers_that_it_plays():
    numbers = (DOCS / "_static/worked-example.csv").read_text(encoding="utf-8")
    written = numbers.replace("\n", "\\n")
    page = (DOCS / "collectives.md").read_text(encoding="utf-8")
    assert f"printf '{written}' > numbers.csv" in page
    for line in numbers.splitlines():
        assert f"| {line.replace(',', ' | ')} |" in page


def test_charts_have_the_numbers_of_their_tables():
    for name, draw in runpy.run_path(str(DOCS / "charts.py"))["CHARTS"].items():
        written = (DOCS / name).read_text(encoding="utf-8")
        assert written == draw(), f"python docs/charts.py draws {name} anew"


def test_what_was_measured_says_by_what_where_and_when():
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for section in page.split("\n## ")[1:]:
        title, text = section.split("\n", 1)
        lines = re.findall(r"^\*.+\*$|^\| \[.+", text, re.MULTILINE)  # of a table, or of a row
        assert lines or title == "Machines", title
        for line in lines:
            assert re.search("`(make|psrt) |Command not recorded", line), line
            assert re.search("Xeon|EPYC|not recorded", line), line
            assert re.search(r"20\d\d-\d\d-\d\d", line), line


def test_the_report_of_a_check_on_the_page_is_todays(tmp_path, capsys):
    """But for its numbers, which are those of one run, and the lines that it leaves out."""
    page = (DOCS / "guarantees.md").read_text(encoding="utf-8")
    shown = re.search(r"^```text\n(ssp .*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    run = str(tmp_path / "run")
    words = "--mode ssp:staleness=2 --servers 2 --workers 2 --epochs 3 --record --quiet --out"
    assert main(["simulate", *words.split(), run]) == 0
    capsys.readouterr()
    assert main(["check", run, "--quiet"]) == 0

    def masked(text):
        return re.sub(r" +[\d,.]+ +", " N ", re.sub(r"(?m)^.* in .* s$", "", text))

    lines = iter(masked(capsys.readouterr().out).splitlines())  # which "in" moves on
    assert [it for it in masked(shown).splitlines() if it != "  …" and it not in lines] == []


def test_every_column_of_the_metrics_is_on_the_page_beside_its_time():
    page = (DOCS / "library.md").read_text(encoding="utf-8")
    section = page.split("\n### Each figure and its time\n")[1].split("\n### ")[0]
    rows = {it[1]: it[2] for it in re.finditer(r"^\| `(\w+)` (.+)$", section, re.MULTILINE)}
    for name, column in COLUMNS.items():
        if name not in (*rows, "epoch", "step"):
            assert f"`{name}`" in rows[column["at"]], name


ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
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
def test_make_targets_that_are_named_are_there(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE)
    for words in re.findall(r"`make ([^`]+)`", page.read_text(encoding="utf-8")):
        for name in re.match(r"([a-z][\w-]*( |$))*", words)[0].split():
            # test-parallel-4 is one of test-parallel-%.
            assert name in targets or re.sub(r"\d+$", "%", name) in makefile, f"make {name}"


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


#: What a module may need and pure tests do without; importing MPI would start it.
WITHOUT = ("mpi4py", "matplotlib", "torch", "jax")


def modules():
    found = pkgutil.walk_packages(psrt.__path__, "psrt.", onerror=lambda name: None)
    return sorted({"psrt", *(module.name for module in found)} - {"psrt.__main__"})


@pytest.mark.parametrize("name", modules())
def test_examples(name, monkeypatch):
    for missing in WITHOUT:
        monkeypatch.setitem(sys.modules, missing, None)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in WITHOUT:
            raise
        pytest.skip(f"needs {error.name}")
    assert doctest.testmod(module).failed == 0
