"""Films show what the small job, the plan, the proof or the codec says; and the page plays them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest

from psrt.codec.table import CODECS
from psrt.collective import SCHEDULES
from psrt.collective.schedules.two_trees import two_trees
from psrt.config import TrainConfig
from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ConfigError
from psrt.core.messages import Params
from psrt.core.units import size_text
from psrt.pipeline import PIPELINES
from psrt.pipeline.step import SENDING
from psrt.topology.spectrum import disagreement, simulated
from psrt.views.explain import exchange as exchanges
from psrt.views.explain import gossip
from psrt.views.explain.codec import example_of, run
from psrt.views.explain.inputs import Example
from psrt.views.explain.pipeline import explained as piped
from psrt.views.explain.timeline import COMPUTE, WORKERS
from psrt.views.explain.timeline import run as timed
from psrt.views.film import exchange as exchange_films
from psrt.views.film import page
from psrt.views.film.codec import film_of as film_of_codec
from psrt.views.film.collective import film_of
from psrt.views.film.gossip import film_of as film_of_graph
from psrt.views.film.pipeline import film_of as film_of_pipeline
from psrt.views.film.thin import coarse, thinned
from psrt.views.film.timeline import film_of as film_of_timeline
from support.cases import each
from support.explanations import EXAMPLE, explained
from support.graphs import GRAPHS
from support.pages import Page


def texts(cells):
    return [cell.text for cell in cells]


def arrives_in_its_frame(film):
    for before, frame in pairwise(film.frames):
        assert all(before.time < it.stop <= frame.time for it in frame.messages)


def comes_to_its_costs(film):
    for cost, so_far in zip(film.costs, film.frames[-1].costs, strict=True):
        assert (so_far.text, so_far.share) == (cost.whole, pytest.approx(1))


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


@each(
    ("name", "size"),
    [
        (name, size)
        for name in ("tree", "root", "broadcast", "reduce", "scatter", "gather")
        for size in (3, 5, 8)
    ],
)
def test_a_tree_is_drawn_on_levels_from_its_root_down(name, size):
    root = size - 1 if SCHEDULES[name].rooted else 0
    scene = film_of(shown := explained(name, size=size, n=3 * size, root=root)).scene
    ways = {(min(it.source, it.target), max(it.source, it.target)) for it in shown.trace.hops}
    assert len(scene.edges) == size - 1
    assert set(scene.edges) == {(a, b) for a, b in ways if a != b}
    assert min(scene.nodes, key=lambda node: node.y) is scene.nodes[root]
    assert all(scene.nodes[a].y != scene.nodes[b].y for a, b in scene.edges)


@each("size", [4, 6, 8, 16])
def test_of_two_trees_each_has_its_inner_ranks_on_its_side(size):
    scene = film_of(explained("double-tree", size=size, n=4 * size)).scene
    edges = {edge for at_rank in two_trees(size).edges for edge in at_rank}
    assert set(scene.edges) == {tuple(sorted((it.parent, it.child))) for it in edges}
    inner = [{it.parent for it in edges if it.tree == tree} for tree in (0, 1)]
    y = [node.y for node in scene.nodes]
    assert max(y[rank] for rank in inner[0]) < min(y[rank] for rank in inner[1])
    for it in edges:  # the nearer to the root, the further out
        if it.child in inner[it.tree]:
            assert (y[it.parent] < y[it.child]) == (it.tree == 0)


@each("name", ["ring", "butterfly", "halving-doubling", "all-pairs", "naive", "all-gather"])
def test_what_is_no_tree_is_on_a_circle(name):
    scene = film_of(explained(name, size=8, n=24)).scene
    x, y = scene.width / 2, scene.height / 2
    far = [math.hypot(node.x - x, node.y - y) for node in scene.nodes]
    assert scene.edges == ()
    assert max(far) - min(far) < 1


# --- graphs -------------------------------------------------------------------------------------


@each(
    ("name", "push_sum"), [*((it, False) for it in GRAPHS), ("exponential", True), ("star", True)]
)
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
        said = "the spectral gap allows at most" in frame.caption
        assert said == (turn > 0 and turn % topology.period == 0 and not topology.push_sum)
        if said:
            assert shares[turn] <= topology.contraction ** (turn // topology.period) + 1e-12
    sent = size_text(round(max(found.sent) * (len(film.frames) - 1)))
    assert film.costs[2].whole == film.frames[-1].costs[2].text == sent
    assert film.costs[2].least == size_text(round(found.all_reduce))


# --- codecs -------------------------------------------------------------------------------------


def coded(name, *, steps=2, values=None):
    row = replace(CODECS[name], **CODECS[name].small).settled(scales=True)
    values = example_of(row) if values is None else values
    return run(row, values, error_feedback=row.is_fed_back, steps=steps)


def written(vector):
    return [f"{it:.4g}" for it in vector.tolist()]


@each("name", CODECS)
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
    at = [frame.label for frame in film.frames].index("step 1: plus kept back")
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
    assert thin.notes[-1].startswith(f"Only {len(thin.frames)} of 8 steps are shown, one in ")
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
    assert "Only 5 of 8 steps are shown, one in 2" in Page(thin).text
    monkeypatch.setattr(page, "MOST_NBYTES", 1000)
    with pytest.raises(ConfigError, match="explain it for fewer ranks or steps"):
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


# --- modes --------------------------------------------------------------------------------------

MODES = {
    "sync": {"mode": "sync", "steps": 3},
    "ssp": {"mode": "ssp:staleness=1", "steps": 4},
    "async": {"mode": "async", "steps": 3, "servers": 2},
    "allreduce": {"mode": "allreduce:overlap=false", "steps": 2},
    "local-sgd": {"mode": "local-sgd:local-steps=2,fragments=2", "steps": 8},
    "easgd": {"mode": "easgd:local-steps=2", "steps": 4},
}


def timeline_of(workers=3, **knobs):
    return timed(TrainConfig(**knobs), workers=workers, slow={1: 3.0})


@each("mode", MODES)
def test_a_timeline_shows_each_message_and_stretch_and_what_all_have_done(mode):
    timeline = timeline_of(**MODES[mode])
    film = film_of_timeline(timeline)
    shown = [(it.source, it.target, it.stop) for frame in film.frames for it in frame.messages]
    assert sorted(shown) == sorted((it.source, it.target, it.stop) for it in timeline.passages)
    assert len(shown) >= 3 * timeline.workers
    arrives_in_its_frame(film)
    assert all(0 <= it.stop - it.start < 1 for frame in film.frames for it in frame.messages)
    held, steps = film.holds(-1), str(timeline.config.steps)
    assert [cells[0].text for cells in held[: timeline.workers]] == [steps] * timeline.workers
    replies = [it for it in timeline.passages if isinstance(it.message, Params)]
    for rank, cells in enumerate(held):
        read = [it.message.version for it in replies if rank in (it.source, it.target)]
        assert [cell.text for cell in cells[1:]] == ([str(max(read))] if read else [])
    comes_to_its_costs(film)
    assert film.frames[-1].caption == "All workers have finished."
    for worker, line in enumerate(timeline.lines):
        bars = [it for it in film.scene.bars if it.lane == film.scene.lane_of[worker]]
        assert [(it.start, it.stop) for it in bars] == [(it.start, it.stop) for it in line]
        computes = [it.text for it in bars if it.look.height == 1]
        assert computes == [str(it.waiting_for + 1) for it in line if it.what == COMPUTE]
        waits = [it.look.style for it in bars if it.look.height == 0.3]
        assert waits == [it.waiting_for for it in line if it.what == WORKERS]


# --- exchanges of shards ------------------------------------------------------------------------


@each("servers", [1, 2])
def test_an_exchange_shows_pushes_and_reads_between_worker_and_owner(servers):
    config = TrainConfig(mode="ssp", steps=2, servers=servers, shards_per_server=2)
    exchange = exchanges.run(config, workers=2, slow={1: 2.0})
    film = exchange_films.film_of(exchange)
    scene = film.scene
    owner = {it.part: f"server {it.number}" for it in exchange.bars if it.what == exchanges.UPDATE}
    wanted = [
        (f"worker {it.number} → {owner[it.part]}: gradient of shard {it.part}", it.stop)
        for it in exchange.bars if it.what == exchanges.PUSH
    ] + [
        (f"{owner[it.part]} → worker {it.number}: parameters of shard {it.part}", it.stop)
        for it in exchange.bars if it.what == exchanges.READ
    ]  # fmt: skip
    shown = [
        (it.line.partition(", after")[0], it.stop) for frame in film.frames for it in frame.messages
    ]
    assert sorted(shown) == sorted(wanted)
    assert len(set(owner.values())) == exchange.servers
    arrives_in_its_frame(film)
    held = [[int(cell.text) for cell in cells] for cells in film.holds(-1)]
    assert held[: exchange.workers] == [[2 * exchange.shards] * 2] * exchange.workers
    assert sum(sent for sent, _ in held) == sum(got for _, got in held)
    comes_to_its_costs(film)
    assert film.costs[1].least == "4.00"
    assert sorted((it.start, it.stop) for it in scene.bars) == (
        sorted((it.start, it.stop) for it in exchange.bars)
    )
    assert [(it.name, it.what) for it in scene.lanes[:4]] == [
        ("worker 0", "computes"), ("worker 0", "pushes"), ("worker 0", "reads"),
        ("worker 1", "computes"),
    ]  # fmt: skip
    assert scene.lane_of == (0, 3, *range(6, 6 + exchange.servers))


# --- pipelines ----------------------------------------------------------------------------------


@each("name", PIPELINES)
@each("shape", [(1, 1), (2, 3), (4, 8)])
def test_a_pipeline_shows_the_messages_of_its_plan_and_keeps_what_is_proved(name, shape):
    row = PIPELINES[name]
    chunks = 2 if row.chunked else 1
    try:
        row.check(*shape, chunks, deferred=False)
    except ValueError:
        return  # there is no such pipeline
    found = piped(row, *shape, chunks)
    film = film_of_pipeline(found)
    sent = sorted(
        (stage, step.peer)
        for stage, steps in enumerate(row.plan(*shape, found.chunks))
        for step in steps
        if step.kind in SENDING
    )
    messages = [it for frame in film.frames for it in frame.messages]
    assert sorted((it.source, it.target) for it in messages) == sent
    assert len(messages) == found.proof.messages
    arrives_in_its_frame(film)
    for stage, proved in enumerate(found.proof.alive):
        held = [int(film.holds(i)[stage][0].text) for i in range(len(film.frames))]
        assert max(held) <= proved
    assert film.frames[-1].costs[3].text == str(max(found.proof.alive)) == film.costs[3].whole
    assert film.holds(-1) == film.holds(0)


def test_bars_are_the_passes_and_costs_the_price_beside_the_bound():
    film = film_of_pipeline(piped(PIPELINES["1f1b"], 2, 2))
    of_first = [(bar.text, bar.start, bar.stop) for bar in film.scene.bars if bar.lane == 0]
    assert of_first == [
        ("F0", 0, 1), ("F1", 1, 2), ("B0", 3, 4), ("W0", 4, 5), ("B1", 6, 7), ("W1", 7, 8),
    ]  # fmt: skip
    film = film_of_pipeline(piped(PIPELINES["gpipe"], 4, 8))
    assert [(it.whole, it.least) for it in film.costs[:2]] == [("30", "24"), ("24 of 120", "0")]
    assert [it.text for it in film.frames[-1].costs] == ["30", "24", "48", "8"]
    assert film.frames[1].caption == "3 stages are idle (1, 2, 3)."


def test_many_bars_are_thinned_and_that_is_said():
    film = film_of_pipeline(piped(PIPELINES["1f1b"], 4, 32))
    thin = coarse(film, 200)
    assert len(thin.scene.bars) <= 200 < len(film.scene.bars)
    assert thin.notes[-1].startswith(f"There are {len(film.scene.bars)} bars: each piece ")
    assert thin.scene.window == film.scene.end
    # In its first piece stage 0 is going forward, at the end backward to the weights.
    of_first = [bar for bar in thin.scene.bars if bar.lane == 0]
    assert (of_first[0].start, of_first[0].look.style) == (0, film.scene.bars[0].look.style)
    assert of_first[-1].stop == pytest.approx(film.scene.end)
    assert all(one.stop <= other.start + 1e-9 for one, other in pairwise(of_first))
    assert coarse(film, len(film.scene.bars)) is film
