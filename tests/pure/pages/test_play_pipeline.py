"""A pipeline as a film: what it shows is what the plan, the clocks and the proof say."""

from itertools import pairwise

import pytest

from psrt.explain.pipeline import explained
from psrt.pages.play.pipeline import film_of
from psrt.pages.play.thin import coarse
from psrt.pipeline import PIPELINES
from psrt.pipeline.step import SENDING

SHAPES = [(1, 1), (2, 3), (4, 8)]


@pytest.fixture(params=[*PIPELINES])
def row(request):
    return PIPELINES[request.param]


def shown(row, stages, micro_batches):
    chunks = 2 if row.chunked else 1
    try:
        row.check(stages, micro_batches, chunks, deferred=False)
    except ValueError:
        pytest.skip("there is no such pipeline")
    return explained(row, stages, micro_batches, chunks)


@pytest.mark.parametrize("shape", SHAPES)
def test_messages_are_those_of_the_plan(row, shape):
    found = shown(row, *shape)
    film = film_of(found)
    plan = row.plan(*shape, found.chunks)
    sent = sorted(
        (stage, step.peer) for stage, steps in enumerate(plan) for step in steps
        if step.kind in SENDING
    )  # fmt: skip
    messages = [it for frame in film.frames for it in frame.messages]
    assert sorted((it.source, it.target) for it in messages) == sent
    assert len(messages) == found.proof.messages
    for before, frame in pairwise(film.frames):
        assert all(before.time < it.stop <= frame.time for it in frame.messages)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_stages_keep_is_what_the_proof_counts(row, shape):
    found = shown(row, *shape)
    film = film_of(found)
    most = [0] * found.stages
    for i in range(len(film.frames)):
        held = [int(cells[0].text) for cells in film.holds(i)]
        most = [max(pair) for pair in zip(most, held, strict=True)]
    assert all(seen <= proved for seen, proved in zip(most, found.proof.alive, strict=True))
    assert film.frames[-1].costs[3].text == str(max(found.proof.alive)) == film.costs[3].whole
    assert film.holds(-1) == film.holds(0)


def test_deferred_weights_keep_all_until_the_last_product():
    found = explained(PIPELINES["gpipe"], 2, 4, deferred=True)
    film = film_of(found)
    assert [int(cells[0].text) for cells in film.holds(-2)] == [4, 0]
    assert [int(cells[0].text) for cells in film.holds(-1)] == [0, 0]
    assert [bar.text for bar in film.scene.bars if bar.text.startswith("W")] == ["W*", "W*"]


def test_bars_are_the_passes():
    film = film_of(explained(PIPELINES["1f1b"], 2, 2))
    of_first = [(bar.text, bar.start, bar.stop) for bar in film.scene.bars if bar.lane == 0]
    assert of_first == [
        ("F0", 0, 1), ("F1", 1, 2), ("B0", 3, 4), ("W0", 4, 5), ("B1", 6, 7), ("W1", 7, 8),
    ]  # fmt: skip


def test_costs_are_the_price_beside_the_bound():
    found = explained(PIPELINES["gpipe"], 4, 8)
    film = film_of(found)
    assert [(it.whole, it.least) for it in film.costs[:2]] == [("30", "24"), ("24 of 120", "0")]
    assert [it.text for it in film.frames[-1].costs] == ["30", "24", "48", "8"]
    assert film.frames[1].caption == "3 stages are idle (1, 2, 3)."


def test_many_bars_are_thinned_and_that_is_said():
    film = film_of(explained(PIPELINES["1f1b"], 4, 32))
    thin = coarse(film, 200)
    assert len(thin.scene.bars) <= 200 < len(film.scene.bars)
    assert thin.notes[-1].startswith(f"Of {len(film.scene.bars)} bars each piece of ")
    assert thin.scene.window == film.scene.end
    # In its first piece stage 0 is going forward, at the end backward to the weights.
    of_first = [bar for bar in thin.scene.bars if bar.lane == 0]
    assert (of_first[0].start, of_first[0].style) == (0, film.scene.bars[0].style)
    assert of_first[-1].stop == pytest.approx(film.scene.end)
    for one, other in pairwise(of_first):
        assert one.stop <= other.start + 1e-9
    assert coarse(film, len(film.scene.bars)) is film
