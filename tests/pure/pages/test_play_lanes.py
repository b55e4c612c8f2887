"""Films along time: what they show is what the small job, the plan or the proof says."""

from __future__ import annotations

from itertools import pairwise

import pytest

from psrt.config import TrainConfig
from psrt.explain import exchange as exchanges
from psrt.explain.pipeline import explained
from psrt.explain.timeline import COMPUTE, WORKERS, run
from psrt.messages import Params
from psrt.pages.play import exchange as exchange_films
from psrt.pages.play.pipeline import film_of as film_of_pipeline
from psrt.pages.play.thin import coarse
from psrt.pages.play.timeline import film_of
from psrt.pipeline import PIPELINES
from psrt.pipeline.step import SENDING
from support.cases import each


def arrives_in_its_frame(film):
    for before, frame in pairwise(film.frames):
        assert all(before.time < it.stop <= frame.time for it in frame.messages)


def comes_to_its_costs(film):
    for cost, so_far in zip(film.costs, film.frames[-1].costs, strict=True):
        assert (so_far.text, so_far.share) == (cost.whole, pytest.approx(1))


# --- modes --------------------------------------------------------------------------------------

MODES = {
    "sync": {"mode": "sync", "steps": 3},
    "ssp": {"mode": "ssp", "staleness": 1, "steps": 4},
    "async": {"mode": "async", "steps": 3, "servers": 2},
    "allreduce": {"mode": "allreduce", "steps": 2, "overlap": False},
    "local-sgd": {"mode": "local-sgd", "steps": 8, "local_steps": 2, "fragments": 2},
    "easgd": {"mode": "easgd", "steps": 4, "local_steps": 2},
}


def timeline_of(workers=3, **knobs):
    return run(TrainConfig(**knobs), workers=workers, slow={1: 3.0})


@each("mode", MODES)
def test_a_timeline_shows_each_message_and_stretch_and_what_all_have_done(mode):
    timeline = timeline_of(**MODES[mode])
    film = film_of(timeline)
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
        computes = [it.text for it in bars if it.height == 1]
        assert computes == [str(it.waiting_for + 1) for it in line if it.what == COMPUTE]
        waits = [it.style for it in bars if it.height == 0.3]
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
    found = explained(row, *shape, chunks)
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
    film = film_of_pipeline(explained(PIPELINES["1f1b"], 2, 2))
    of_first = [(bar.text, bar.start, bar.stop) for bar in film.scene.bars if bar.lane == 0]
    assert of_first == [
        ("F0", 0, 1), ("F1", 1, 2), ("B0", 3, 4), ("W0", 4, 5), ("B1", 6, 7), ("W1", 7, 8),
    ]  # fmt: skip
    film = film_of_pipeline(explained(PIPELINES["gpipe"], 4, 8))
    assert [(it.whole, it.least) for it in film.costs[:2]] == [("30", "24"), ("24 of 120", "0")]
    assert [it.text for it in film.frames[-1].costs] == ["30", "24", "48", "8"]
    assert film.frames[1].caption == "3 stages are idle (1, 2, 3)."


def test_many_bars_are_thinned_and_that_is_said():
    film = film_of_pipeline(explained(PIPELINES["1f1b"], 4, 32))
    thin = coarse(film, 200)
    assert len(thin.scene.bars) <= 200 < len(film.scene.bars)
    assert thin.notes[-1].startswith(f"Of {len(film.scene.bars)} bars each piece of ")
    assert thin.scene.window == film.scene.end
    # In its first piece stage 0 is going forward, at the end backward to the weights.
    of_first = [bar for bar in thin.scene.bars if bar.lane == 0]
    assert (of_first[0].start, of_first[0].style) == (0, film.scene.bars[0].style)
    assert of_first[-1].stop == pytest.approx(film.scene.end)
    assert all(one.stop <= other.start + 1e-9 for one, other in pairwise(of_first))
    assert coarse(film, len(film.scene.bars)) is film
