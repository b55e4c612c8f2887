"""Timelines: what the real roles did, without gaps, each wait blamed on the right worker."""

from __future__ import annotations

import functools
import itertools
import re

import pytest

from psrt.config import TrainConfig
from psrt.core.messages import Push
from psrt.views.explain.timeline import (
    COMPUTE,
    MESSAGES,
    WAITING,
    WINDOW,
    WORKERS,
    Stretch,
    Timeline,
    lesson,
    run,
)
from psrt.views.explain.timeline_document import FORMAT, as_document
from psrt.views.film.drawing import draw
from psrt.views.film.film import EMPTY
from psrt.views.film.text import lanes_text
from psrt.views.film.timeline import film_of
from support.cases import each

MODES = {
    "sync": {"mode": "sync"},
    "sync on two shards": {"mode": "sync", "servers": 2},
    "sync with a backup": {"mode": "sync:backup=1"},
    "async": {"mode": "async"},
    "ssp": {"mode": "ssp:staleness=2"},
    "softsync": {"mode": "softsync:k=2"},
    "local-sgd": {"mode": "local-sgd:local-steps=3", "allreduce": "ring"},
    "local-sgd over servers": {"mode": "local-sgd:local-steps=3", "servers": 1},
    "easgd": {"mode": "easgd:local-steps=3"},
    "easgd, asynchronous": {"mode": "easgd:local-steps=3,asynchronous=true"},
    "allreduce": {"mode": "allreduce:overlap=false", "allreduce": "tree"},
}
_STREAMING = {"mode": "local-sgd:local-steps=3", "allreduce": "ring"}
STREAMS = {
    "late": _STREAMING | {"mode": "local-sgd:local-steps=3,sync-delay=2"},
    "fragments": _STREAMING | {"mode": "local-sgd:local-steps=3,fragments=3"},
    "late fragments": _STREAMING | {"mode": "local-sgd:local-steps=3,fragments=2,sync-delay=3"},
    "eager": _STREAMING | {"mode": "local-sgd:local-steps=3,eager=true,fragments=2"},
}
_QUORUM = "local-sgd:local-steps=3,quorum=2"
MERGES = {
    "quorum": {"mode": _QUORUM, "servers": 1},
    "windows on two shards": {"mode": f"{_QUORUM},grace=0.5", "servers": 2},
    "late windows": {"mode": f"{_QUORUM},grace=auto,sync-delay=2", "servers": 1},
    "fragments over servers": {"mode": f"{_QUORUM},fragments=2,sync-delay=1", "servers": 2},
}
MODES |= STREAMS | MERGES
STEPS = 6


@functools.cache
def timeline(name, workers=4, slow=((1, 3.0),), seed=0):
    config = TrainConfig(steps=STEPS, seed=seed, **MODES[name])
    return run(config, workers=workers, slow=dict(slow))


def of(line, what):
    return [stretch for stretch in line if stretch.what == what]


@each("workers", [2, 3])
@each("name", MODES)
def test_lines_have_no_gaps_and_who_is_waited_for_has_just_finished(name, workers):
    workers += name in MERGES  # a quorum of all has no window
    found = timeline(name, workers)
    assert len(found.lines) == workers
    assert max(line[-1].stop for line in found.lines) == found.seconds
    for worker, line in enumerate(found.lines):
        assert line[0].start == 0.0
        for one, after in itertools.pairwise(line):
            assert one.start < one.stop == after.start
        parts = [found.share(worker, what) for what in (COMPUTE, *WAITING)]
        assert sum(parts) == pytest.approx(1.0)
        for stretch in of(line, WORKERS):
            assert stretch.waiting_for != worker
            ends = [s.stop for s in of(found.lines[stretch.waiting_for], COMPUTE)]
            # At its end a worker pushes one fragment after the other, without computing.
            if name != "fragments over servers":
                assert min(abs(end - stretch.stop) for end in ends) < 1e-9


@each("name", MODES)
def test_every_step_is_there_and_takes_as_long_as_it_should(name):
    for worker, line in enumerate(timeline(name).lines):
        steps = of(line, COMPUTE)
        # Backups overtake the slow worker, which then skips steps.
        if name != "sync with a backup" or worker != 1:
            assert len(steps) >= STEPS - (name == "sync with a backup")
        assert [stretch.waiting_for for stretch in steps] == list(range(len(steps)))
        factor = 3.0 if worker == 1 else 1.0
        assert all(0.9 * factor <= s.seconds <= 1.1 * factor for s in steps)


@each("name", ["sync", "sync on two shards", "allreduce", "local-sgd", "local-sgd over servers"])
def test_where_all_wait_for_the_slowest(name):
    found = timeline(name)
    for worker in (0, 2, 3):
        assert found.share(worker, WORKERS, waiting_for=1) > 0.5
        assert found.share(worker, WORKERS) == found.share(worker, WORKERS, waiting_for=1)
    assert found.share(1, WORKERS) < 0.02
    assert " of its time for worker 1" in lesson(found)


@each("name", ["async", "softsync"])
def test_where_nobody_waits(name):
    found = timeline(name)
    assert all(found.share(worker, WORKERS) == 0.0 for worker in range(4))
    assert lesson(found).startswith("no worker waited for another; ")
    mean, most = found.staleness
    assert 0 < mean <= most
    assert f"{mean:.1f} versions old when applied, at most {most}" in lesson(found)


def test_ssp_lets_workers_run_ahead_by_its_staleness_only():
    found = timeline("ssp")
    slowest = [s.stop for s in of(found.lines[1], COMPUTE)]
    for worker in (0, 2, 3):
        starts = [s.start for s in of(found.lines[worker], COMPUTE)]
        assert not [s for s in of(found.lines[worker], WORKERS) if s.stop < slowest[0]]
        for clock, start in enumerate(starts):
            if clock > 2:
                assert start > slowest[clock - 3]


def test_a_backup_saves_waiting_for_the_slowest_and_no_gradient_of_sync_is_stale():
    found = timeline("sync")
    assert timeline("sync with a backup").seconds < 0.6 * found.seconds
    assert found.staleness == (0.0, 0)
    assert "no gradient was stale" in lesson(found)
    assert timeline("local-sgd over servers").staleness is timeline("allreduce").staleness is None


@each("slow", [(), ((1, 3.0),), ((0, 1.4), (2, 0.5))])
@each("name", STREAMS)
def test_fragments_are_drawn_from_their_sending_to_their_arrival(name, slow):
    found = timeline(name, slow=slow)
    config, longest = found.config, 0.5  # both sums, around the ring of 4
    for line, sums in zip(found.lines, found.sums, strict=True):
        steps = of(line, COMPUTE)
        assert [it.fragment for it in sums] == [
            k % config.scheme.fragments for k in range(len(sums))
        ]
        for k, it in enumerate(sums):
            others = [theirs[k].sent for theirs in found.sums]
            assert (it.complete, others[it.last]) == (max(others), max(others))
            assert it.sent <= it.complete < it.taken
            between = [s for s in steps if it.sent < s.stop <= it.taken]
            if it.sent < steps[-1].stop - 3.5 * max(found.slow) and name != "eager":
                assert len(between) == config.scheme.sync_delay
        # It waits only for a mean that it needs, and no longer than a message after the last part.
        for stretch in line:
            if stretch.what != COMPUTE:
                assert any(it.sent <= stretch.start < stretch.stop <= it.taken for it in sums)
            if stretch.what == MESSAGES:
                assert stretch.seconds < longest


@each("name", MERGES)
def test_the_lesson_has_the_long_run_where_learners_wait_for_their_merge(name):
    text = lesson(timeline(name))
    assert ("in the long run" in text) == ("late" not in name and "fragments" not in name)


def test_the_long_run_is_that_of_a_long_job():
    config = TrainConfig(mode="local-sgd:local-steps=4,quorum=2,grace=0.5", servers=1, steps=200)
    found = run(config, workers=4, slow={1: 3.0})
    mean = sum(len(it.members) for it in found.merges) / len(found.merges)
    said = re.search(r"in the long run \S+ merges/step of mean size (\S+),", lesson(found))
    assert float(said[1]) == pytest.approx(mean, rel=0.2)


@each("name", MERGES)
def test_a_merge_has_its_quorum_then_its_window_and_no_push_is_in_two(name):
    found = timeline(name)
    quorum, grace = 2, found.config.scheme.grace
    pushes = [(it.worker, it.sent, one.fragment) for one in found.merges for it in one.members]
    sent = [it.message for it in found.passages if isinstance(it.message, Push)]
    assert len(pushes) == len(set(pushes)) == len(sent) // found.config.servers
    for one in found.merges:
        came = [it.came for it in one.members]
        assert came == sorted(came)
        assert one.first == came[0] <= one.opened <= one.made <= found.seconds
        assert len(one.members) < quorum or one.opened == came[quorum - 1]
        assert grace or one.made == max(came[-1], one.opened)
        if isinstance(grace, float) and one.is_over:
            assert one.made - one.opened == pytest.approx(grace)
        # No shard has it before: it is read after it is made.
        assert all(it.sent < it.came and one.made < it.taken for it in one.members)
    waits = [it for line in found.lines for it in of(line, WINDOW)]
    assert bool(waits) == any(it.is_over for it in found.merges)
    for wait in waits:
        assert any(it.opened - 0.1 < wait.start < wait.stop <= it.made for it in found.merges)


def test_merges_are_played_one_at_a_time_and_their_members_are_lit():
    found = timeline("windows on two shards")
    film = film_of(found)
    for one in found.merges:
        name = f"Merge {one.version} at "
        (number,) = (i for i, it in enumerate(film.frames) if it.caption.startswith(name))
        members = {it.worker for it in one.members}
        held = film.holds(number)
        assert {worker for worker in range(4) if held[worker][0].style != EMPTY} == members
    text = lanes_text(film)
    assert f"merge 1   at {found.merges[0].made:.2f}: workers 0, 2 and 3; waited " in text
    assert "then 0.50 until its window was over" in text
    # Both servers make each merge; the first one decides, and it is drawn there.
    assert "server 0" in text
    assert "server 1" not in text
    relays = [it.line for frame in film.frames for it in frame.messages if "in merge 1" in it.line]
    assert sorted(relays) == [
        f"server 0 → server 1: the push of worker {it.worker} is in merge 1"
        for it in sorted(found.merges[0].members)
    ]


@each("name", MODES)
def test_the_same_seed_the_same_timeline_which_can_be_written_and_drawn(name):
    found = timeline(name)
    assert timeline.__wrapped__(name) == found
    assert timeline(name, seed=1).lines != found.lines
    film = film_of(found)
    assert lanes_text(film).startswith(found.config.scheme.name)
    svg = draw(film).as_text()
    assert all(f">worker {worker}</text>" in svg for worker in range(4))
    assert svg.count("<rect") > sum(len(of(line, COMPUTE)) for line in found.lines)


HAND_MADE = Timeline(
    config=TrainConfig(mode="ssp:staleness=2", servers=1, steps=2),
    slow=(1.0, 3.0),
    lines=(
        (
            Stretch(0, 4, COMPUTE, 0), Stretch(4, 9, WORKERS, 1), Stretch(9, 11, MESSAGES, 0),
            Stretch(11, 15, COMPUTE, 1),
        ),
        (Stretch(0, 9, COMPUTE, 0), Stretch(9, 20, COMPUTE, 1)),
    ),
    seconds=20.0,
    staleness=(0.5, 1),
)  # fmt: skip
TEXT = """\
ssp (staleness 2) · 2 workers, 1 server · 2 steps each · worker 1 takes 3 × as long
worker 0  ████··1··--████
worker 1  ████████▌███████████
steps     0         10

█ computes (▌ end of a step)   ·0· waits for worker 0   - waits for messages

worker 0   53% computing    47% waiting   (33% for worker 1, 13% for messages)
worker 1  100% computing     0% waiting

worker 0 waited 33% of its time for worker 1; on average a worker computed 77% of its time; \
a gradient was 0.5 versions old when applied, at most 1"""


def test_the_text():
    assert lanes_text(film_of(HAND_MADE), across=20) == TEXT


def test_the_document():
    document = as_document(HAND_MADE)
    assert document.pop("lines")[0] == [
        {"start": 0, "stop": 4, "what": "compute", "step": 0},
        {"start": 4, "stop": 9, "what": "workers", "waiting_for": 1},
        {"start": 9, "stop": 11, "what": "messages"},
        {"start": 11, "stop": 15, "what": "compute", "step": 1},
    ]
    assert document == {
        "format": FORMAT, "mode": "ssp", "workers": 2, "servers": 1, "steps": 2,
        "slow": [1.0, 3.0], "seconds": 20.0, "sums": [], "merges": [],
        "lesson": lesson(HAND_MADE),
        "shares": [
            {
                "compute": 8 / 15, "waiting": 7 / 15, "workers": 5 / 15, "window": 0,
                "messages": 2 / 15,
            },
            {"compute": 1.0, "waiting": 0.0, "workers": 0.0, "window": 0, "messages": 0.0},
        ],
        "staleness": {"mean": 0.5, "max": 1},
    }  # fmt: skip
