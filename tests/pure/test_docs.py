"""The pages that are made from the code say what it says."""

import importlib.util
import re
from pathlib import Path

import pytest

from psrt.__main__ import main

DOCS = Path(__file__).parents[2] / "docs"


def build():
    spec = importlib.util.spec_from_file_location("build", DOCS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages():
    return build().PAGES


@pytest.mark.parametrize("name", pages())
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


def test_the_report_of_a_check_on_the_page_is_todays(tmp_path, capsys):
    """But for its numbers, which are those of one run."""
    page = (DOCS / "guarantees.md").read_text(encoding="utf-8")
    shown = re.search(r"^```text\n(ssp .*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    run = str(tmp_path / "run")
    words = "--mode ssp --staleness 2 --servers 2 --workers 2 --epochs 3 --record --quiet --out"
    assert main(["simulate", *words.split(), run]) == 0
    capsys.readouterr()
    assert main(["check", run, "--quiet"]) == 0

    def masked(text):
        return re.sub(r" +[\d,.]+ +", " N ", re.sub(r"(?m)^.* in .* s$", "", text))

    assert masked(shown) == masked(capsys.readouterr().out)
