"""With how many workers a job goes on, but never with another number of samples in a step."""

from __future__ import annotations

import pytest

from psrt.config import TrainConfig
from psrt.core.errors import ConfigError
from psrt.job.elastic import Elastic, Size
from support.cases import each

SYNC = TrainConfig(mode="sync", servers=1, batch_size=12)
ALL = TrainConfig(mode="allreduce", batch_size=6)


@each(
    ("config", "ranks", "slots", "wanted"),
    [
        # Four workers and a server on five hosts of one slot.
        (SYNC, 5, 5, {5: Size(5, 12), 4: Size(4, 16), 3: Size(3, 24), 2: Size(2, 48)}),
        # Three of the five would be 9.6 samples each: two go on.
        (SYNC, 6, 6, {6: Size(6, 12), 5: Size(5, 15), 4: Size(4, 20)}),
        (SYNC, 3, 6, {6: Size(3, 12), 4: Size(3, 12), 3: Size(3, 12), 2: Size(2, 24)}),
        # More ranks than cores.
        (ALL, 6, 3, {3: Size(6, 6), 2: Size(4, 9), 1: Size(2, 18)}),
        (ALL, 8, 8, {7: Size(6, 8), 5: Size(4, 12), 3: Size(3, 16), 1: Size(1, 48)}),
    ],
)
def test_the_samples_of_a_step_stay(config, ranks, slots, wanted):
    it = Elastic.of(config, ranks, slots, samples=0, least=1)
    assert {left: it.on(left) for left in wanted} == wanted


def test_no_fewer_than_are_wanted():
    it = Elastic.of(SYNC, ranks=5, slots=5, samples=0, least=3)
    assert it.on(4) == Size(4, 16)
    assert it.on(3) == "that leaves 2 workers, --min-workers is 3"
    with pytest.raises(ConfigError, match="--min-workers 5 are more than the 4 workers"):
        Elastic.of(SYNC, ranks=5, slots=5, samples=0, least=5)


def test_what_was_saved_says_the_samples():
    """It was saved with two workers of 24 while a host was away."""
    assert Elastic.of(SYNC, ranks=5, slots=5, samples=48, least=1).full == Size(5, 12)
    line = "keeps the 50 samples of a step, which cannot be split evenly among 4 workers"
    with pytest.raises(ConfigError, match=line):
        Elastic.of(SYNC, ranks=5, slots=5, samples=50, least=1)


@each(
    ("knobs", "line"),
    [
        ({"mode": "gossip"}, "other workers, which --mode gossip does not allow"),
        (
            {"mode": "allreduce", "record": True, "out": "x"},
            "--record does not allow: a history has one set of workers",
        ),
    ],
)
def test_what_cannot_go_on_with_others_is_refused_at_once(knobs, line):
    with pytest.raises(ConfigError, match=line):
        Elastic.of(TrainConfig(**knobs), ranks=4, slots=4, samples=0, least=1)
