"""Crowds too large to explore: hypothesis chooses what happens next, and shrinks what fails."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from support.crowd import Mode, crowd_of

MODES = [
    ("sync", {}),
    ("sync", {"backup": 1}),
    ("sync", {"backup": 2}),
    ("local-sgd", {}),
    ("async", {}),
    ("async", {"late": 2}),
    ("ssp", {"staleness": 0}),
    ("ssp", {"staleness": 2}),
    ("ssp", {"staleness": 3, "late": 3}),
    ("softsync", {"softsync": 1}),
    ("softsync", {"softsync": 2}),
    ("softsync", {"softsync": 3, "late": 1}),
]


def moves(crowd, steps, mortal):
    """Return what can happen next, as (method, arguments)."""
    can = crowd.arrivals()
    for worker in sorted(crowd.idle):
        can.append(("leave", (worker,)))
        if crowd.clock[worker] < steps:
            can += [("push", (worker,)), ("push", (worker, 0))]
    return can + list(crowd.deaths()) * mortal


#: How much rather hypothesis lets something happen than another.
WEIGHTS = {"arrive": 12, "push": 6, "leave": 1, "die": 0.2}


@pytest.mark.parametrize(("name", "knobs"), MODES)
@settings(max_examples=40)
@given(
    data=st.data(),
    workers=st.integers(3, 6),
    shards=st.integers(1, 3),
    steps=st.integers(1, 6),
    mortal=st.booleans(),
    seed=st.randoms(use_true_random=False),
)
def test_any_order_of_events_keeps_the_rules(
    name, knobs, data, workers, shards, steps, mortal, seed
):
    """The first events are hypothesis's choice, the many that follow its generator's."""
    those = crowd_of(Mode(name, **knobs), workers, shards)
    happened = 0
    while can := moves(those, steps, mortal):
        if happened < 25:
            move, arguments = data.draw(st.sampled_from(can))
        else:
            weights = [WEIGHTS[move] for move, _ in can]
            [(move, arguments)] = seed.choices(can, weights)
        getattr(those, move)(*arguments)
        happened += 1
    those.check_end()
    event(f"{happened // 50 * 50} events or more")
