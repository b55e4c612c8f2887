"""The pages: made anew with the code, and links that lead somewhere."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
import runpy
import sys
from pathlib import Path

import pytest

import psrt
from psrt.__main__ import main

DOCS = Path(__file__).parents[2] / "docs"


def build():
    spec = importlib.util.spec_from_file_location("build", DOCS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages():
    return build().PAGES


#: Of which some parts take seconds to make.
LONG = {"parallelism.md"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(it, marks=[pytest.mark.exhaustive] * (it in LONG)) for it in pages()],
)
def test_a_page_is_what_the_code_makes(name):
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == pages()[name](), f"python docs/build.py {name} makes it anew"


def test_markdown_of_a_docstring():
    markdown = build().as_markdown
    assert markdown("A ``Step``, 2**k.\n\n.. code-block:: text\n\n    a**b") == (
        "A `Step`, 2\\*\\*k.\n\n    a**b"
    )
    assert markdown("==\nb\n==\n\n**Yes.** End") == "```text\n==\nb\n==\n```\n\n**Yes.** End"


def test_the_worked_example_has_the_numbers_that_it_prints():
    numbers = (DOCS / "_static/worked-example.csv").read_text(encoding="utf-8")
    assert f"```text\n{numbers}```" in (DOCS / "collectives.md").read_text(encoding="utf-8")


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
    """But for its numbers, which are those of one run."""
    page = (DOCS / "guarantees.md").read_text(encoding="utf-8")
    shown = re.search(r"^```text\n(ssp .*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    run = str(tmp_path / "run")
    words = "--mode ssp:staleness=2 --servers 2 --workers 2 --epochs 3 --record --quiet --out"
    assert main(["simulate", *words.split(), run]) == 0
    capsys.readouterr()
    assert main(["check", run, "--quiet"]) == 0

    def masked(text):
        return re.sub(r" +[\d,.]+ +", " N ", re.sub(r"(?m)^.* in .* s$", "", text))

    assert masked(shown) == masked(capsys.readouterr().out)


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
