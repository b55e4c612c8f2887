"""The pages that are made from the code say what it says."""

import importlib.util
from pathlib import Path

import pytest

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
