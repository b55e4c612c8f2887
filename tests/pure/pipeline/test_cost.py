"""Prices: clocks and closed forms agree; what is dear, and by how much; the best cuts of layers."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.pipeline import PIPELINES, Kind
from psrt.pipeline.balance import balanced, imbalance
from psrt.pipeline.cost import StageCosts, bound, price
from psrt.pipeline.schedule import Passes

#: f, b and w; which of them is the least matters to zero-bubble.
TIMES = ((1.0, 1.0, 1.0), (2.0, 3.0, 5.0), (4.0, 1.0, 2.0), (3.0, 3.0, 2.0))
STAGES, BATCHES = (1, 2, 3, 5), (1, 2, 5, 8)


def alike(subject, stages, micro_batches, times, **more):
    """Price stages that are equally dear, their times those of one micro-batch."""
    virtual = stages * subject.chunks
    cost = StageCosts(*(it * micro_batches / subject.chunks for it in times))
    plan = subject.plan(stages, micro_batches)
    return price(plan, [cost] * virtual, [1] * micro_batches, **more)


def test_the_closed_form_of_the_bubble_is_what_the_clocks_say(subject):
    for stages in STAGES:
        for micro_batches in BATCHES:
            for times in TIMES:
                found = alike(subject, stages, micro_batches, times)
                due = subject.row.bubble(
                    stages,
                    micro_batches,
                    subject.chunks,
                    deferred=subject.deferred,
                    passes=Passes(*times),
                )
                assert found.bubble == pytest.approx(due, abs=1e-12)
                busy = micro_batches * sum(times)
                assert found.busy == pytest.approx([busy] * stages)
                assert found.seconds == pytest.approx(busy / (1 - due))


def test_messages_are_as_long_as_their_rows_and_their_border():
    """Of 3 rows and 1, at borders of 4 and 40 bytes a row; a gradient is as its activation."""
    costs = [StageCosts(4, 4, 4, nbytes=16), StageCosts(4, 4, 4, nbytes=160), StageCosts(4, 4, 4)]
    found = price(PIPELINES["gpipe"].plan(3, 2), costs, [3, 1], beta=0.25)
    starts = [[run.start for run in runs] for runs in found.runs]
    # Each pass 3 and 1; messages 3 and 1 at the first border, 30 and 10 behind.
    assert starts[1][:2] == [3 + 3, 6 + 3]
    assert starts[2] == [9 + 30, 39 + 10, 50, 53, 56, 57]
    assert starts[1][2:] == [53 + 30, 86, 83 + 10, 94]
    assert starts[0] == [0, 3, 86 + 3, 95]
    assert (found.messages, found.nbytes, found.alive) == (8, 2 * 176, (2, 2, 2))
    found = price(PIPELINES["gpipe"].plan(2, 2), costs[::2], [3, 1], alpha=0.5, beta=0.25)
    assert found.runs[1][0].start == 3 + 0.5 + 3


def dear(kind, rows):
    """Half as fast in products of less than 4 rows, backward alone."""
    return 2.0 if rows < 4 and kind is not Kind.FORWARD else 1.0


def test_small_products_are_dear_and_deferred_ones_are_not():
    costs = [StageCosts(4, 4, 4)] * 2
    row = PIPELINES["gpipe"]
    together = price(row.plan(2, 2), costs, [2, 2], slowdown=dear)
    assert together.busy == (20.0, 20.0)
    assert price(row.plan(2, 2), costs, [6, 6], slowdown=dear).busy == (12.0, 12.0)
    deferred = price(row.plan(2, 2, deferred=True), costs, [2, 2], slowdown=dear)
    assert deferred.busy == (16.0, 16.0)


def test_the_bound_of_a_cut_by_hand():
    """Dearest 8 of 12, M = 4 of 2 rows, whose backward passes take twice as long."""
    costs = [StageCosts(4, 2, 2), StageCosts(1, 1, 2)]
    found = bound(PIPELINES["1f1b"], costs, [2] * 4, slowdown=dear)
    assert found.balance == 12 / 8
    assert found.efficiency == 8 / 12
    assert found.bubble == pytest.approx(12 / 14)
    assert found.speedup == pytest.approx(1.5 * 12 / 14 * 8 / 12)
    late = bound(PIPELINES["1f1b"], costs, [2] * 4, deferred=True, slowdown=dear)
    assert late.efficiency == 8 / 10
    assert late.bubble == pytest.approx(10 / 12)


def test_the_bound_of_equal_stages_is_what_the_clocks_say(subject):
    for stages, micro_batches in ((1, 3), (2, 8), (4, 8), (3, 2)):
        costs = [StageCosts(2, 3, 5)] * (stages * subject.chunks)
        rows = [2] * micro_batches
        took = price(subject.plan(stages, micro_batches), costs, rows, slowdown=dear).seconds
        found = bound(
            subject.row, costs, rows, subject.chunks, deferred=subject.deferred, slowdown=dear
        )
        assert found.speedup == pytest.approx(10 * len(costs) / took)


def all_cuts(layers, stages):
    for inner in combinations(range(1, layers), stages - 1):
        yield tuple(Span(a, b) for a, b in pairwise((0, *inner, layers)))


def merit(costs, cut):
    stages = [sum(costs[a:b]) for a, b in cut]
    return max(stages), sum(it * it for it in stages)


def test_no_cut_is_better():
    rng = random.Random(1)
    for layers in range(1, 9):
        for stages in range(1, layers + 1):
            for most in (1, 3, 20):
                costs = [rng.randrange(int(most + 1)) * most for _ in range(layers)]
                cut = balanced(costs, stages)
                assert [it.start for it in cut] + [layers] == [0, *(it.stop for it in cut)]
                assert all(it.size for it in cut)
                assert merit(costs, cut) == min(merit(costs, it) for it in all_cuts(layers, stages))
    assert [it.size for it in balanced([8, 1, 1, 1], 3)] == [1, 1, 2]  # the later ones are longer
    assert imbalance([1, 1, 4], (Span(0, 2), Span(2, 3))) == pytest.approx(4 / 3)

    with pytest.raises(ConfigError, match="costs of 3 virtual stages, expected"):
        price(PIPELINES["gpipe"].plan(2, 2), [StageCosts(1, 1, 1)] * 3, [1, 1])
