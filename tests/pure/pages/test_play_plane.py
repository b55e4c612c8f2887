"""Films in the plane, of collectives, graphs and codecs; and the page that plays a film."""

from __future__ import annotations

import json

import pytest

from psrt.arrays import ITEMSIZE
from psrt.codec.table import TABLE
from psrt.collective import SCHEDULES
from psrt.errors import ConfigError
from psrt.explain import gossip
from psrt.explain.codec import example_of, run, small_knobs
from psrt.explain.inputs import Example
from psrt.pages.play import page
from psrt.pages.play.codec import film_of as film_of_codec
from psrt.pages.play.collective import film_of
from psrt.pages.play.gossip import film_of as film_of_graph
from psrt.pages.play.thin import thinned
from psrt.topology.names import NAMES
from psrt.topology.spectrum import disagreement, simulated
from psrt.units import size_text
from support.cases import each
from support.explanations import EXAMPLE, explained
from support.pages import Page


def texts(cells):
    return [cell.text for cell in cells]


# --- collectives --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ring():
    return film_of(explained("ring", example=EXAMPLE, order=(0, 1, 3, 2)))


def test_the_worked_example_is_that_of_its_page(ring):
    assert [texts(held) for held in ring.holds(-1)] == [["37", "37", "36", "43"]] * 4
    assert ring.frames[-1].caption == "all ranks end with (37, 37, 36, 43)"
    assert texts(ring.holds(0)[0]) == ["17", "11", "1", "9"]
    assert texts(ring.holds(1)[1]) == ["22", "13", "23", "14"]
    assert ring.frames[1].messages[0].line == "A → B: chunk 0 (17)   B: 17 + 5 = 22"


@each("name", SCHEDULES)
@each("size", [1, 2, 5, 8])
def test_a_collective_shows_its_plan_comes_to_what_is_proved_and_costs_its_price(name, size):
    shown = explained(name, size=size, n=3 * size)
    film, totals = film_of(shown), shown.totals
    hops = [hop for _, hops in shown.trace.by_round() for hop in hops]
    messages = [it for frame in film.frames for it in frame.messages]
    assert [(it.source, it.target) for it in messages] == [(it.source, it.target) for it in hops]
    assert sum(it.source != it.target for it in messages) == totals.price.messages
    for rank, held in enumerate(film.holds(-1)):
        assert [i for i, cell in enumerate(held) if cell.style >= 0] == sorted(
            cell for cell, _ in shown.result(rank)
        )
    for row, cost in enumerate(film.costs):
        shares = [frame.costs[row].share for frame in film.frames]
        assert shares == sorted(shares)
        assert film.frames[-1].costs[row].text == cost.whole
        assert shares[-1] in (0, pytest.approx(1))
    assert len(totals.arrivals) == totals.price.rounds
    assert all(it <= totals.price.seconds * (1 + 1e-9) for it in totals.arrivals)


# --- graphs -------------------------------------------------------------------------------------


@each(("name", "push_sum"), [*((it, False) for it in NAMES), ("exponential", True), ("star", True)])
def test_a_graph_shows_its_edges_and_what_the_simulation_says(name, push_sum):
    found = gossip.explained(name, 8, nbytes=1024, push_sum=push_sum, seed=3)
    film, topology = film_of_graph(found), found.topology
    for turn, frame in enumerate(film.frames[1:]):
        graph = found.graphs[turn % len(found.graphs)]
        assert [(it.source, it.target) for it in frame.messages] == sorted(graph.edges)
        edges = {film.scene.edges[i] for i in frame.edges}
        assert edges == {(min(edge), max(edge)) for edge in graph.edges}
    rounds = simulated(topology.matrices, push_sum=topology.push_sum, seed=3)
    values = [next(rounds) for _ in film.frames]
    assert [cells[0].text for cells in film.holds(-1)] == [f"{it:+.2f}" for it in values[-1][:, 0]]
    left = [disagreement(it) / disagreement(values[0]) for it in values]
    assert left[-1] <= 0.01 < left[-2]
    shares = [it.costs[1].share for it in film.frames]
    assert shares == pytest.approx(left)
    assert film.costs[1].whole == film.frames[-1].costs[1].text == f"{left[-1]:.1%}"
    assert found.rounds[0].share == 0.5
    assert next(i for i, it in enumerate(shares) if it <= 0.5) == found.rounds[0].simulated
    for turn, frame in enumerate(film.frames):
        said = "by the spectral gap at most" in frame.caption
        assert said == (turn > 0 and turn % topology.period == 0 and not topology.push_sum)
        if said:
            assert shares[turn] <= topology.contraction ** (turn // topology.period) + 1e-12
    sent = size_text(round(max(found.sent) * (len(film.frames) - 1)))
    assert film.costs[2].whole == film.frames[-1].costs[2].text == sent
    assert film.costs[2].least == size_text(round(found.all_reduce))


# --- codecs -------------------------------------------------------------------------------------


def coded(name, *, steps=2, values=None):
    knobs = small_knobs(name)
    values = example_of(name) if values is None else values
    feedback = TABLE[name].feeds_back_with(knobs)
    return run(name, values, knobs=knobs, error_feedback=feedback, steps=steps)


def written(vector):
    return [f"{it:.4g}" for it in vector.tolist()]


@each("name", TABLE)
def test_a_codec_sends_each_field_and_ends_with_what_is_decoded_and_kept_back(name):
    found = coded(name)
    film, last = film_of_codec(found), found.steps[-1]
    wire = [frame for frame in film.frames if frame.label.endswith("on the wire")]
    assert [it.line.partition(": ")[2] for frame in wire for it in frame.messages] == [
        f"{field.bits}   {field.meaning}" for step in found.steps for field in step.fields
    ]
    held = [last.given, last.decoded]
    if found.error_feedback:
        held = [last.given, last.encoded, last.decoded, last.residual]
    assert [texts(it) for it in film.holds(-1)] == [written(it) for it in held]
    sent = sum(step.nbytes for step in found.steps)
    assert film.bound == "uncompressed"
    assert film.costs[0].whole == film.frames[-1].costs[0].text == size_text(sent)
    assert film.costs[0].least == size_text(2 * ITEMSIZE * found.steps[0].given.size)
    shares = [frame.costs[0].share for frame in film.frames]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    # After each field of the first frame, the bytes up to its end.
    bits = [field.at + field.size for field in found.steps[0].fields]
    wire = [frame for frame in film.frames if frame.label == "step 0: on the wire"]
    if len(wire) == len(bits):
        assert [it.costs[0].share * sent * 8 for it in wire] == pytest.approx(bits)
    assert wire[-1].costs[0].share * sent == pytest.approx(found.steps[0].nbytes)


def test_feedback_of_the_first_step_is_added_in_the_second():
    found = coded("sign")
    film = film_of_codec(found)
    at = [frame.label for frame in film.frames].index("step 1: with what was kept back")
    assert texts(film.holds(at)[1]) == written(found.steps[0].given + found.steps[0].residual)
    # What came of the step before is gone by then.
    assert texts(film.holds(at)[2]) == [""] * 8
    assert [it.label for it in film.frames[at].messages] == ["", "+"]


# --- the page -----------------------------------------------------------------------------------


@each("most", [2, 3, 5, 7])
def test_a_thinned_film_ends_alike_and_says_so(ring, most):
    thin = thinned(ring, most)
    assert 2 <= len(thin.frames) <= most
    assert thin.holds(-1) == ring.holds(-1)
    assert (thin.frames[0].label, thin.frames[-1].label) == ("start", "result")
    assert thin.notes[-1].startswith(f"Of 8 steps {len(thin.frames)} are shown, one in ")
    for i, frame in enumerate(thin.frames):
        at = [it.label for it in ring.frames].index(frame.label)
        assert thin.holds(i) == ring.holds(at)
    assert len({(it.rank, it.at) for it in thin.frames[-1].changes}) == len(thin.frames[-1].changes)
    assert thinned(ring, 8) is ring


def test_a_page_that_would_be_too_large_is_thinned(ring, monkeypatch):
    whole = page.page_of(ring)[0]
    monkeypatch.setattr(page, "MOST_NBYTES", len(whole.encode()) - 1)
    thin, shown = page.page_of(ring)
    assert len(shown.frames) == 5
    assert len(thin.encode()) < len(whole.encode())
    # 6, the first of 400, 200, … that is less than 8, leaves every second one, and the last.
    assert "Of 8 steps 5 are shown, one in 2" in Page(thin).text
    monkeypatch.setattr(page, "MOST_NBYTES", 1000)
    with pytest.raises(ConfigError, match="explain it of fewer ranks or steps"):
        page.page_of(ring)


def test_a_table_has_all_steps_and_the_player_reads_the_film(ring):
    found = Page(page.page_of(ring)[0])
    rows = found.tables["steps"][1]
    assert [row[0] for row in rows[1:]] == [it.label for it in ring.frames]
    assert "C → A: chunk 0 (37)   A: 37" in rows[5][2]
    assert rows[1][3] == "A: 17 11 1 9; B: 5 13 23 14; C: 3 6 10 8; D: 12 7 2 12"
    assert rows[2][3].startswith("A: 17 11 1 17; B: 22 13 23 14; ")
    assert rows[7][3] == "; ".join(f"{name}: 37 37 36 43" for name in "ABCD")
    assert "all ranks end with (37, 37, 36, 43)" in rows[8][1]
    assert ["rounds", "6", "2"] in found.tables["steps"][0]
    [data] = json.loads(dict(found.scripts)["application/json"])
    assert data["names"] == ["A", "B", "C", "D"]
    assert len(data["frames"]) == len(ring.frames)
    held = [dict(enumerate(cells)) for cells in data["start"]]
    for frame in data["frames"]:
        for rank, index, *cell in frame.get("changes", []):
            held[rank][index] = cell
    assert [held[0][i][0] for i in range(4)] == ["37", "37", "36", "43"]


def test_names_of_ranks_do_nothing():
    evil = "</script><img src=x onerror=alert(1)>"
    example = Example((evil, "B"), EXAMPLE.values[:2])
    found = Page(page.page_of(film_of(explained("ring", example=example)))[0])
    assert not [tag for tag, _ in found.elements if tag == "img"]
