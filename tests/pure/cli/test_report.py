"""``psrt report``: a page in a file, or one line that says what to do and status 2."""

import sys

import pytest

from psrt.__main__ import main
from support.pages import Page, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run("ssp", tmp_path_factory.mktemp("report") / "run")


@pytest.fixture
def told(capsys):
    def tell(*words):
        capsys.readouterr()
        status = main(["report", *map(str, words)])
        out, err = capsys.readouterr()
        return status, out + err

    return tell


def test_it_writes_a_page(run, told, tmp_path):
    path = tmp_path / "page.html"
    status, text = told(run, "-o", path)
    assert status == 0
    assert text.startswith(f"{path}: 1 run, ")
    assert Page(path.read_text()).sections["learning"]


def test_a_file_that_is_not_named_has_the_name_of_its_run(run, told, tmp_path, monkeypatch):
    """So the pages of two runs do not meet; that of several runs is none of theirs."""
    monkeypatch.chdir(tmp_path)
    assert told(run)[0] == 0
    assert told(f"{run}/.")[0] == 2  # is there already
    assert f"report-{run.name}.html" in [it.name for it in tmp_path.iterdir()]


def test_a_page_that_is_there_is_replaced_if_asked(run, told, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("mine")
    assert told(run, "-o", path) == (
        2, f"psrt: error: {path} is there already; --overwrite replaces it, -o names another\n",
    )  # fmt: skip
    assert path.read_text() == "mine"
    assert told(run, "-o", path, "--overwrite")[0] == 0
    assert path.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{tmp}/nothing"], "no run at {tmp}/nothing: psrt train --out {tmp}/nothing makes one"),
        (["{run}", "-o", "{tmp}/no/page.html"], "cannot write {tmp}/no/page.html: No such file"),
        (
            ["{run}", "-o", "{run}/summary.json", "--overwrite"],
            "-o {run}/summary.json: a page ends",
        ),
        (["{run}", "-o", "{tmp}"], "-o {tmp}: a page ends in .html"),
        (["{run}", "{run}", "-o", "{tmp}/a.html"], "{run} is given twice"),
        (["{run}", "--outt", "x"], "unknown flag --outt (did you mean --output?)"),
        ([], "the following arguments are required: RUN; psrt report --help says more"),
    ],
)
def test_what_is_wrong_is_one_line(run, told, tmp_path, words, message):
    here = {"run": run, "tmp": tmp_path}
    status, text = told(*(it.format(**here) for it in words))
    assert status == 2
    assert text.startswith(f"psrt: error: {message.format(**here)}")
    assert text.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_jinja2_it_is_one_line(run, told, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    status, text = told(run, "-o", tmp_path / "page.html")
    assert status == 2
    assert (
        text == "psrt: error: pages need jinja2, psrt's extra report: pip install 'jinja2>=3.1'\n"
    )
    assert not list(tmp_path.iterdir())


def test_its_help_needs_neither_numpy_nor_jinja2(told, monkeypatch):
    for name in ("jinja2", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    status, text = told("--help")
    assert status == 0
    assert "Needs\njinja2, psrt's extra report" in text
