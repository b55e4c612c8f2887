"""Ranks are placed on hosts of their own where there are some, else on one that counts as many."""

import pytest

from psrt.bench.race import Layout, layout, layouts
from psrt.errors import ConfigError

HERE = [[0, 1, 2, 3]]
TWO_HOSTS = [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("present", "ranks", "hosts", "expected"),
    [
        (HERE, 2, 1, Layout(((0, 1),), pretended=False)),
        (HERE, 4, 4, Layout(((0,), (1,), (2,), (3,)), pretended=True)),
        (HERE, 4, 2, Layout(((0, 1), (2, 3)), pretended=True)),
        (HERE, 5, 1, None),
        (HERE, 3, 2, None),
        (HERE, 2, 4, None),
        (TWO_HOSTS, 4, 2, Layout(((0, 1), (3, 4)), pretended=False)),
        (TWO_HOSTS, 3, 3, Layout(((0,), (1,), (2,)), pretended=True)),
        (TWO_HOSTS, 4, 1, None),
        ([[0], [1, 2, 3]], 2, 1, None),
    ],
)
def test_layout(present, ranks, hosts, expected):
    assert layout(present, ranks, hosts) == expected


def test_rank_0_reports_and_so_takes_part():
    for ranks in range(1, 6):
        for hosts in range(1, 6):
            found = layout(TWO_HOSTS, ranks, hosts)
            assert found is None or found.ranks[0] == 0
            assert found is None or len(found.ranks) == ranks


def test_host_of_a_rank_and_apart():
    pairs = Layout(((0, 1), (3, 4)), pretended=False)
    assert [pairs.host_of(rank) for rank in pairs.ranks] == [0, 0, 1, 1]
    assert not pairs.apart
    assert Layout(((0,), (1,)), pretended=True).apart
    assert not Layout(((0,),), pretended=False).apart


def test_layouts_that_cannot_be_are_left_out_and_none_at_all_is_an_error():
    assert [len(found.hosts) for found in layouts(HERE, (2, 3, 9), (1, 2))] == [1, 1, 2]
    with pytest.raises(ConfigError, match="4 ranks cannot place 5 or 7 ranks evenly on 1 or 2"):
        layouts(HERE, (5, 7), (1, 2))
