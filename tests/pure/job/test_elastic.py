"""How many workers a job goes on with: never another number of samples in a step."""

import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.job.elastic import Elastic, Size

SYNC = TrainConfig(mode="sync", servers=1, batch_size=12)


def test_the_samples_of_a_step_stay():
    """Four workers and a server on five hosts of one slot."""
    it = Elastic.of(SYNC, ranks=5, slots=5, samples=0, least=1)
    sizes = [it.on(slots) for slots in (5, 4, 3, 2)]
    assert sizes == [Size(5, 12), Size(4, 16), Size(3, 24), Size(2, 48)]
    # Three of the five would be 9.6 samples each: two go on.
    it = Elastic.of(SYNC, ranks=6, slots=6, samples=0, least=1)
    assert [it.on(slots) for slots in (6, 5, 4)] == [Size(6, 12), Size(5, 15), Size(4, 20)]
    it = Elastic.of(TrainConfig(mode="allreduce", batch_size=1), 8, 8, 0, 1)
    assert [it.on(slots).ranks for slots in range(8, 0, -1)] == [8, 4, 4, 4, 4, 2, 2, 1]


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("slots", [1, 3, 4, 8, 12])
def test_whatever_is_there_the_samples_of_a_step_are_the_same(ranks, slots):
    it = Elastic.of(TrainConfig(mode="allreduce", batch_size=6), ranks, slots, 0, 1)
    for left in range(1, slots + 1):
        size = it.on(left)
        if isinstance(size, str):  # more ranks than cores, as many on each
            assert ranks * left // slots == 0
            continue
        assert size.ranks * size.batch_size == ranks * 6
        assert size.ranks <= max(ranks, left)
        assert left < slots or size == Size(ranks, 6)


def test_no_fewer_than_are_wanted():
    it = Elastic.of(SYNC, ranks=5, slots=5, samples=0, least=3)
    assert it.on(4) == Size(4, 16)
    assert it.on(3) == "that leaves 2 workers, --min-workers is 3"
    assert it.on(0) == "that leaves 0 workers, --min-workers is 3"


def test_ranks_beyond_the_cores_are_shared_out_as_before():
    it = Elastic.of(TrainConfig(mode="allreduce", batch_size=6), 6, 3, 0, 1)
    assert [it.on(slots) for slots in (3, 2, 1)] == [Size(6, 6), Size(4, 9), Size(2, 18)]


def test_more_cores_than_ranks_are_spare():
    it = Elastic.of(SYNC, ranks=3, slots=6, samples=0, least=1)
    assert [it.on(slots).ranks for slots in (6, 4, 3, 2)] == [3, 3, 3, 2]


def test_what_was_saved_says_the_samples():
    """It was saved with two workers of 24 while a host was away."""
    assert Elastic.of(SYNC, ranks=5, slots=5, samples=48, least=1).full == Size(5, 12)
    with pytest.raises(ConfigError, match="keeps the 50 samples of a step, which 4 workers"):
        Elastic.of(SYNC, ranks=5, slots=5, samples=50, least=1)


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        ({"mode": "gossip"}, "other workers, which --mode gossip cannot have"),
        ({"mode": "allreduce", "parallel": "pipeline:2"}, "which --parallel"),
        (
            {"mode": "allreduce", "record": True, "out": "x"},
            "--record cannot have, since they make no one history",
        ),
        ({"mode": "allreduce", "codec": "int8"}, "--codec int8 cannot have without servers"),
    ],
)
def test_what_cannot_go_on_with_others_is_refused_at_once(knobs, line):
    with pytest.raises(ConfigError, match=line):
        Elastic.of(TrainConfig(**knobs), ranks=4, slots=4, samples=0, least=1)


def test_more_than_there_are_cannot_be_the_fewest():
    with pytest.raises(ConfigError, match="--min-workers 5 are more than the 4 workers"):
        Elastic.of(SYNC, ranks=5, slots=5, samples=0, least=5)
