"""The page of ``psrt report`` in a real browser: it opens, says nothing wrong, and draws."""

import json
import re

import pytest

from psrt.planning.page import page_of as plan_page
from psrt.views.page.frame import render
from psrt.views.page.lines import Line, line_chart
from psrt.views.page.parts import Note, Section
from psrt.views.report.page import page_of
from support.browser import pixels_of, tab_in
from support.pages import RUNS, Page, make_run
from support.plans import made_plan

EVIL = "</script></style></svg><img src=x onerror=document.title='broken'>"
#: The first colour of lines, and the ground, in both looks.
LIGHT_LINE, DARK_LINE, LIGHT, DARK_GROUND = "#0072b2", "#4aa8e8", "#ffffff", "#14181d"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with tab_in(tmp_path_factory.mktemp("tab")) as tab:
        yield tab


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return {kind: make_run(kind, folder / kind) for kind in RUNS}


@pytest.fixture
def page(made, tmp_path):
    """Returns the file of a page about runs."""

    def write(*kinds):
        path = tmp_path / "page.html"
        path.write_text(page_of([str(made[kind]) for kind in kinds]))
        return path

    return write


@pytest.mark.parametrize("kinds", [("pipeline",), tuple(RUNS)], ids="-".join)
def test_it_opens_without_a_word_and_draws_every_chart(browser, page, kinds):
    path = page(*kinds)
    dom, console = browser.dom(path)
    assert console == []
    root = re.search(r"<html[^>]*>", dom)[0]
    charts = [it for it in Page(path.read_text()).charts if it]
    assert len(charts) >= 7
    assert f'data-charts="{len(charts)}"' in root
    assert "data-error" not in root
    assert dom.count("<canvas") == len(charts)


def test_a_plan_is_drawn_without_a_script_and_fits_a_narrow_screen(browser, tmp_path):
    path = tmp_path / "plan.html"
    path.write_text(plan_page(made_plan()))
    dom, console = browser.dom(path)
    assert console == []
    assert "<canvas" not in dom
    assert pixels_of(browser.look(path), LIGHT_LINE) > 100
    assert pixels_of(browser.look(path, "dark"), DARK_LINE) > 100
    assert (browser.look(path, width=500, height=5000)[:, -3:] == 255).all()


def test_light_and_dark(browser, page):
    path = page("ssp")
    light, dark = browser.look(path), browser.look(path, "dark")
    assert pixels_of(light, LIGHT) > light.size / 3 / 2
    assert pixels_of(dark, DARK_GROUND) > dark.size / 3 / 2
    assert pixels_of(light, LIGHT_LINE) > 1000
    assert pixels_of(dark, DARK_LINE) > 1000
    assert max(pixels_of(light, DARK_LINE), pixels_of(dark, LIGHT_LINE)) < 100


@pytest.mark.parametrize("scripts", [None, ()], ids=["uPlot", "drawn"])
def test_a_line_is_seen_with_scripts_and_without(browser, tmp_path, scripts):
    """Its ends are where its numbers are: low on the left, high on the right."""
    import numpy as np

    chart = line_chart("t", "step", "loss", [Line("", np.arange(9.0), np.arange(9.0))], most=99)
    path = tmp_path / "page.html"
    path.write_text(render("t", "", [Section("one", "One", [chart])], scripts=scripts))
    look = browser.look(path, height=700)
    rows, columns = np.nonzero((look == [0x00, 0x72, 0xB2]).all(axis=2))
    assert len(rows) > 100
    left, right = rows[columns < columns.min() + 40], rows[columns > columns.max() - 40]
    assert right.mean() < left.mean() - 50


def test_it_fits_a_narrow_screen(browser, page, tmp_path):
    """Nothing sticks out to the right: there the ground is seen, from top to bottom."""
    look = browser.look(page(*RUNS), width=500, height=9000)
    assert (look[:, -3:] == 255).all()


def test_texts_of_files_do_nothing(browser, made, tmp_path):
    import shutil

    run = shutil.copytree(made["codec"], tmp_path / "<img src=x onerror=document.title='broken'>")
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"mode": EVIL, "mpi": EVIL, "shards_why": EVIL}
    (run / "summary.json").write_text(json.dumps(summary))
    path = tmp_path / "page.html"
    path.write_text(page_of([str(run), str(made["ssp"])]))
    dom, console = browser.dom(path)
    assert console == []
    assert "<img" not in dom
    assert "data-error" not in dom[:500]
    assert "<title>2 runs</title>" in dom


def test_an_error_of_a_script_would_be_seen(browser, tmp_path):
    path = tmp_path / "page.html"
    sections = [Section("one", "One", [Note("text")])]
    path.write_text(render("t", "", sections, scripts=["throw new Error('oh')"]))
    assert "oh" in browser.dom(path)[1][0]
    # And a script that is none of its own does not run.
    html = render("t", "", sections).replace(
        "</body>", "<script>document.title = 'x'</script></body>"
    )
    path.write_text(html)
    dom, console = browser.dom(path)
    assert "<title>t</title>" in dom
    assert "Content Security Policy" in console[0]
