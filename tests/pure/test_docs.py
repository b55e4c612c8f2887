"""The pages that are made from the code say what it says."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def pages():
    spec = importlib.util.spec_from_file_location("build", DOCS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PAGES


@pytest.mark.parametrize("name", pages())
def test_a_page_is_what_the_code_makes(name):
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == pages()[name](), f"python docs/build.py {name} makes it anew"
