"""An exchange of shards as a film: what it shows is what the small job did."""

from itertools import pairwise

import pytest

from psrt.config import TrainConfig
from psrt.explain.exchange import PUSH, READ, UPDATE, run
from psrt.pages.play.exchange import film_of
from psrt.pages.play.page import MOST_NBYTES, page_of


@pytest.fixture(scope="module", params=[1, 2])
def pair(request):
    config = TrainConfig(mode="ssp", steps=2, servers=request.param, shards_per_server=2)
    exchange = run(config, workers=2, slow={1: 2.0})
    return exchange, film_of(exchange)


def test_messages_are_the_pushes_and_reads_between_worker_and_owner(pair):
    exchange, film = pair
    owner = {it.part: f"server {it.number}" for it in exchange.bars if it.what == UPDATE}
    wanted = [
        (f"worker {it.number} → {owner[it.part]}: gradient of shard {it.part}", it.stop)
        for it in exchange.bars if it.what == PUSH
    ] + [
        (f"{owner[it.part]} → worker {it.number}: parameters of shard {it.part}", it.stop)
        for it in exchange.bars if it.what == READ
    ]  # fmt: skip
    shown = [
        (it.line.partition(", after")[0], it.stop) for frame in film.frames for it in frame.messages
    ]
    assert sorted(shown) == sorted(wanted)
    assert len(set(owner.values())) == exchange.servers
    for before, frame in pairwise(film.frames):
        assert all(before.time < it.stop <= frame.time for it in frame.messages)


def test_it_ends_with_what_was_sent_and_got(pair):
    exchange, film = pair
    held = [[int(cell.text) for cell in cells] for cells in film.holds(-1)]
    for worker in range(exchange.workers):
        pushes = sum(it.what == PUSH and it.number == worker for it in exchange.bars)
        reads = sum(it.what == READ and it.number == worker for it in exchange.bars)
        assert held[worker] == [pushes, reads] == [2 * exchange.shards] * 2
    assert sum(sent for sent, _ in held) == sum(got for _, got in held)
    for cost, so_far in zip(film.costs, film.frames[-1].costs, strict=True):
        assert (so_far.text, so_far.share) == (cost.whole, pytest.approx(1))
    assert film.costs[1].least == "4.00"


def test_bars_are_those_of_the_exchange(pair):
    exchange, film = pair
    assert sorted((it.start, it.stop) for it in film.scene.bars) == (
        sorted((it.start, it.stop) for it in exchange.bars)
    )
    assert [(it.name, it.what) for it in film.scene.lanes[:4]] == [
        ("worker 0", "computes"), ("worker 0", "pushes"), ("worker 0", "reads"),
        ("worker 1", "computes"),
    ]  # fmt: skip
    assert film.scene.lane_of == (0, 3, *range(6, 6 + exchange.servers))


def test_a_very_large_one_fits_a_page_and_says_what_is_left_out():
    config = TrainConfig(mode="async", steps=8, shards_per_server=36)
    page, shown = page_of(film_of(run(config, workers=16, slow={})))
    assert len(page.encode()) <= MOST_NBYTES
    assert len(shown.notes) == 2
    assert all(note in page for note in shown.notes)
