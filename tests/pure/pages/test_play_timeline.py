"""A mode's timeline as a film: what it shows is what the small job did."""

from itertools import pairwise

import pytest

from psrt.config import TrainConfig
from psrt.explain.timeline import COMPUTE, WORKERS, run
from psrt.messages import Params, Push
from psrt.pages.play.timeline import film_of

MODES = {
    "sync": {"mode": "sync", "steps": 3},
    "ssp": {"mode": "ssp", "staleness": 1, "steps": 4},
    "async": {"mode": "async", "steps": 3, "servers": 2},
    "allreduce": {"mode": "allreduce", "steps": 2, "overlap": False},
    "local-sgd": {"mode": "local-sgd", "steps": 8, "local_steps": 2, "fragments": 2},
    "easgd": {"mode": "easgd", "steps": 4, "local_steps": 2},
}


@pytest.fixture(scope="module", params=MODES)
def pair(request):
    timeline = run(TrainConfig(**MODES[request.param]), workers=3, slow={1: 3.0})
    return timeline, film_of(timeline)


def test_each_message_of_the_job_arrives_in_its_frame(pair):
    timeline, film = pair
    shown = [(it.source, it.target, it.stop) for frame in film.frames for it in frame.messages]
    assert sorted(shown) == sorted((it.source, it.target, it.stop) for it in timeline.passages)
    assert len(shown) >= 3 * timeline.workers
    for before, frame in pairwise(film.frames):
        assert all(before.time < it.stop <= frame.time for it in frame.messages)
        assert all(0 <= it.stop - it.start < 1 for it in frame.messages)


def test_it_ends_with_what_all_have_done(pair):
    timeline, film = pair
    held = film.holds(-1)
    assert [cells[0].text for cells in held[: timeline.workers]] == (
        [str(timeline.config.steps)] * timeline.workers
    )
    replies = [it for it in timeline.passages if isinstance(it.message, Params)]
    for rank, cells in enumerate(held):
        read = [it.message.version for it in replies if rank in (it.source, it.target)]
        assert [cell.text for cell in cells[1:]] == ([str(max(read))] if read else [])
    for cost, so_far in zip(film.costs, film.frames[-1].costs, strict=True):
        assert cost.whole == so_far.text
        assert so_far.share == pytest.approx(1)


def test_bars_are_the_stretches(pair):
    timeline, film = pair
    for worker, line in enumerate(timeline.lines):
        bars = [it for it in film.scene.bars if it.lane == film.scene.lane_of[worker]]
        assert [(it.start, it.stop) for it in bars] == [(it.start, it.stop) for it in line]
        computes = [it.text for it in bars if it.height == 1]
        assert computes == [str(it.waiting_for + 1) for it in line if it.what == COMPUTE]
        waits = [it.style for it in bars if it.height == 0.3]
        assert waits == [it.waiting_for for it in line if it.what == WORKERS]


def test_the_bound_is_what_the_slowest_worker_computes():
    timeline = run(TrainConfig(mode="sync", steps=3), workers=2, slow={1: 3.0})
    film = film_of(timeline)
    least = sum(it.stop - it.start for it in timeline.lines[1] if it.what == COMPUTE)
    assert film.costs[1].least == f"{least:.1f}"
    assert film.costs[1].share == pytest.approx(least / timeline.seconds)


def test_captions_say_who_waits_for_whom():
    timeline = run(TrainConfig(mode="sync", steps=2), workers=3, slow={1: 3.0})
    captions = [frame.caption for frame in film_of(timeline).frames]
    assert captions[0] == "Workers 0, 1, 2 begin step 1."
    assert any(it.endswith("workers 0, 2 wait for worker 1.") for it in captions)
    assert captions[-1] == "All workers have finished."
    lines = [it.line for frame in film_of(timeline).frames for it in frame.messages]
    assert "worker 1 → server 0: push of step 2" in lines
    assert "server 0 → worker 1: version 1" in lines


def test_a_push_is_labelled_by_its_step_and_an_old_one_says_so():
    timeline = run(TrainConfig(mode="async", steps=4), workers=3, slow={1: 3.0})
    film = film_of(timeline)
    messages = [it for frame in film.frames for it in frame.messages]
    pushes = [it for it in timeline.passages if isinstance(it.message, Push)]
    assert sorted(it.label for it in messages if "push of" in it.line) == (
        sorted(str(it.message.clock + 1) for it in pushes)
    )
    old = [it.message.staleness for it in timeline.passages if isinstance(it.message, Params)]
    assert sum("old" in it.line for it in messages) == sum(it > 0 for it in old) > 0


def test_fragments_have_lanes_of_their_own():
    config = TrainConfig(**MODES["local-sgd"])
    timeline = run(config, workers=3, slow={1: 3.0})
    film = film_of(timeline)
    assert [it.what for it in film.scene.lanes[:3]] == ["computes", "fragment 0", "fragment 1"]
    assert film.scene.lane_of == (0, 3, 6)
    for worker, sums in enumerate(timeline.sums):
        for fragment in range(2):
            bars = [
                it for it in film.scene.bars if it.lane == film.scene.lane_of[worker] + 1 + fragment
            ]
            parts = [it for it in sums if it.fragment == fragment]
            assert sum(it.stop - it.start for it in bars) == pytest.approx(
                sum(it.taken - it.sent for it in parts)
            )
