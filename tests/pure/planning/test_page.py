"""The page about a plan says what the plan says, and nothing in it becomes HTML."""

import re
from dataclasses import replace

import pytest

from psrt.planning.page import page_of
from psrt.planning.ranking import Prediction
from support.pages import Page, of_size, of_time
from support.plans import made_plan

EVIL = "</script></style></svg><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"


def paged(**changes):
    return Page(page_of(made_plan(**changes)))


def test_the_tables_have_the_figures_of_every_row_and_the_charts_its_point():
    plan, page = made_plan(), paged()
    shown, whole, notes = page.tables["ranked"]
    assert shown == whole  # there are few
    assert "goodput" not in whole[0]  # nobody asked
    for row, line in zip(plan.rows, whole[1:], strict=True):
        it, near = row.prediction, {"rel": 0.01}
        cells = dict(zip(whole[0], line, strict=True))
        assert cells[""].split(maxsplit=1)[0] == f"{row.number}"
        servers = f"+{row.servers}" * bool(row.servers)
        assert cells["ranks"] == f"{row.workers}{servers}"
        assert float(cells["samples/s"].replace(",", "")) == pytest.approx(it.samples_per_s, **near)
        assert cells["±"] == "3.0 %"
        assert of_time(cells["step"]) == pytest.approx(it.step_s, **near)
        assert of_size(cells["sent"]) == pytest.approx(it.sent_per_step, **near)
        assert of_size(cells["memory"]) == pytest.approx(3e6 if row.servers else 2e6, **near)
        mean, most = it.staleness_mean, it.staleness_max
        assert cells["stale"] == ("-" if mean is None else f"{mean}/{most}")
        assert cells["θ"] == row.promise
    assert {name for name, _ in notes} >= {"θ same", "θ bounded", "θ stale", "θ local"}
    assert page.value("known", "left out") == "slower than twice the best: 31"
    assert page.codes["commands"] == [row.command for row in plan.rows[:3]]
    assert [it[1] for it in page.tables["commands"][0]] == [row.command for row in plan.rows]
    charts = re.findall(r'<svg viewBox="0 0 480 270".*?</svg>', page.html)
    assert len(charts) == 2
    for svg in charts:
        assert re.findall(r"<title>(\d)  ", svg)[::-1] == [f"{row.number}" for row in plan.rows]


def test_waits_and_what_was_known():
    page = paged(known=replace(made_plan().known, doubt="the machine was busy"))
    text = page.sections["waiting"]
    assert "other workers" in text
    assert [f"Waits between workers in row {i}" in text for i in (1, 2, 3, 4)] == [1, 1, 1, 0]
    assert "The darkest is 937 µs." in text  # a fifth of 3 · 64 / 41,000 s
    assert page.value("known", "known").endswith("a gradient 6 ms, measured on these ranks")
    assert page.value("known", "doubt") == "the machine was busy"
    assert "the machine was busy" in page.sections["ranked"]
    assert page.value("known", "host, by rank") == "0, 0, 1, 1"
    assert page.value("known", "a gradient, by rank") == "4.5 ms, 5.5 ms, 6.5 ms, 7.5 ms"
    assert page.value("known", "a short run: sums") == "30,500 samples/s of 4 workers"


def test_rows_that_were_not_simulated_have_no_waits_and_no_points():
    first, *others = made_plan().rows
    it = first.prediction
    closed = replace(first, prediction=Prediction(it.step_s, it.samples_per_s))
    page = paged(rows=(closed, *others))
    text = page.sections["waiting"]
    assert [f"Waits between workers in row {i}" in text for i in (1, 2, 3, 4)] == [0, 1, 1, 1]
    for svg in re.findall(r'<svg viewBox="0 0 480 270".*?</svg>', page.html):
        assert re.findall(r"<title>(\d)  ", svg)[::-1] == [f"{row.number}" for row in others]
    assert "waiting" in paged(rows=(closed,)).sections


def test_a_page_stays_small():
    """Of 250 rows with 64 workers, of which two share a row of the heat map."""
    rows, workers = made_plan().rows, range(64)
    waits = {worker: dict.fromkeys(workers, 0.001) for worker in workers}
    it = replace(rows[0].prediction, waiting_for=waits, step_s=1.0)
    row = replace(rows[0], workers=64, goodput=0.97, prediction=it)
    page = paged(rows=tuple(replace(row, number=i + 1) for i in range(250)))
    assert len(page.html) < 1_000_000
    shown, whole, _ = page.tables["ranked"]
    assert (len(shown), len(whole)) == (21, 251)
    assert "goodput" in shown[0]
    assert "62–63" in page.sections["waiting"]
    assert "The darkest is 4 ms." in page.sections["waiting"]


def test_no_text_becomes_html():
    def with_text(text):
        plan = made_plan()
        known = replace(plan.known, source=text, doubt=text, apply={text: 1.0}, details={text: 1.0})
        rows = tuple(replace(row, command=text) for row in plan.rows)
        return paged(known=known, rows=rows, pruned={text: 1})

    page, other = with_text(EVIL), with_text("plain".ljust(len(EVIL), "."))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in other.elements]
    assert page.text.count("<img src=x onerror") > 10
    assert [kind for kind, _ in page.scripts] == ["application/json"], "it runs no script"
