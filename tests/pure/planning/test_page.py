"""The page about a plan says what the plan says, and nothing in it becomes HTML."""

import re
from dataclasses import replace

import pytest

from psrt.core.errors import ConfigError
from psrt.planning.page import page_of, write_page
from support.pages import Page, of_size, of_time
from support.plans import made_plan

EVIL = "</script></style></svg><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"


def paged(**changes):
    return Page(page_of(made_plan(**changes)))


def test_the_tables_have_the_figures_of_every_row_and_the_charts_its_point():
    plan, page = made_plan(), paged()
    shown, whole = page.tables["ranked"]
    assert shown[0][1:] == whole[0][1 : len(shown[0])]
    assert "goodput" not in whole[0]  # nobody asked
    for row, line in zip(plan.rows, whole[1:], strict=True):
        it, near = row.prediction, {"rel": 0.01}
        cells = dict(zip(whole[0], (cell.replace("\u00a0", " ") for cell in line), strict=True))
        assert cells[""].split(maxsplit=1)[0] == f"{row.number}"
        assert (cells["workers"], cells["servers"]) == (f"{row.workers}", f"{row.servers}")
        assert float(cells["samples/s"].replace(",", "")) == pytest.approx(it.samples_per_s, **near)
        assert cells["±"] == "2.5 %"
        assert of_time(cells["step"]) == pytest.approx(it.step_s, **near)
        assert of_time(cells["step by the closed form"]) == pytest.approx(row.closed_step_s, **near)
        assert of_size(cells["sent per step"]) == pytest.approx(it.sent_per_step, **near)
        assert of_size(cells["memory of a worker"]) == pytest.approx(2e6, **near)
        assert (cells["of a server"] == "–") == (row.servers == 0)
        mean = it.staleness_mean
        assert cells["mean staleness"] == ("–" if mean is None else f"{mean:g}")
        assert cells["promise"] == row.promise
    assert "simulated: slower than twice the best: 31." in page.sections["ranked"]
    commands = [*page.codes["commands"], *(it[1] for it in page.tables["commands"][0])]
    assert commands == [row.command for row in plan.rows]
    for svg in re.findall(r'<svg viewBox="0 0 480 270".*?</svg>', page.html):
        assert re.findall(r"<title>(\d)  ", svg)[::-1] == [f"{row.number}" for row in plan.rows]


def test_waits_and_what_was_known():
    page = paged(known=replace(made_plan().known, doubt="the machine was busy"))
    text = page.sections["waiting"]
    assert "other workers" in text
    assert [f"Waits between workers in row {i}" in text for i in (1, 2, 3, 4)] == [1, 1, 1, 0]
    assert "The darkest is 20.0 %." in text
    assert page.value("known", "source") == "measured on these ranks"
    assert page.value("known", "doubt") == "the machine was busy"
    assert "the machine was busy" in page.sections["ranked"]
    assert page.value("known", "ranks") == "4 on 2 hosts"
    assert of_time(page.value("known", "a gradient")) == 6e-3
    assert page.value("known", "a short run: sums") == "30,500 samples/s of 4 workers"
    assert page.value("known", "the slowest rank") == "3: 7.5 ms"


def test_a_page_stays_small():
    """Of 250 rows with 64 workers, of which two share a row of the heat map."""
    rows, names = made_plan().rows, [f"worker {i}" for i in range(64)]
    waits = {name: dict.fromkeys(names, 0.001) for name in names}
    it = replace(rows[0].prediction, waiting_for=waits)
    row = replace(rows[0], workers=64, goodput=0.97, prediction=it)
    page = paged(rows=tuple(replace(row, number=i + 1) for i in range(250)))
    assert len(page.html) < 1_000_000
    shown, whole = page.tables["ranked"]
    assert (len(shown), len(whole)) == (21, 251)
    assert "goodput" in shown[0]
    assert "62–63" in page.sections["waiting"]
    assert "The darkest is 0.2 %." in page.sections["waiting"]


def test_no_text_becomes_html():
    def with_text(text):
        plan = made_plan()
        known = replace(plan.known, source=text, doubt=text, apply={text: 1.0}, details={text: 1.0})
        rows = [
            replace(row, command=text, prediction=replace(row.prediction, waits={text: 0.1}))
            for row in plan.rows
        ]
        return paged(known=known, rows=tuple(rows), asked=text, pruned={text: 1})

    page, other = with_text(EVIL), with_text("plain".ljust(len(EVIL), "."))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in other.elements]
    assert page.text.count("<img src=x onerror") > 10
    assert [kind for kind, _ in page.scripts] == ["application/json"], "it runs no script"


def test_it_is_written_the_same_again_and_a_plan_without_rows_says_so(tmp_path):
    path = tmp_path / "plan.html"
    write_page(str(path), made_plan())
    assert path.read_text(encoding="utf-8") == page_of(made_plan())
    with pytest.raises(ConfigError, match="nowhere"):
        write_page(str(tmp_path / "nowhere" / "plan.html"), made_plan())
    assert "No candidate is left." in paged(rows=(), pruned={}).sections["ranked"]
