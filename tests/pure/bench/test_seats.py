"""Ranks are seated on hosts of their own where there are some, else on one that counts as many."""

import pytest

from psrt.bench.seats import Seats, seats

HERE = [[0, 1, 2, 3]]
TWO_HOSTS = [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("present", "ranks", "hosts", "expected"),
    [
        (HERE, 2, 1, Seats(((0, 1),), pretended=False)),
        (HERE, 4, 4, Seats(((0,), (1,), (2,), (3,)), pretended=True)),
        (HERE, 4, 2, Seats(((0, 1), (2, 3)), pretended=True)),
        (HERE, 5, 1, None),
        (HERE, 3, 2, None),
        (HERE, 2, 4, None),
        (TWO_HOSTS, 4, 2, Seats(((0, 1), (3, 4)), pretended=False)),
        (TWO_HOSTS, 3, 3, Seats(((0,), (1,), (2,)), pretended=True)),
        (TWO_HOSTS, 4, 1, None),
        ([[0], [1, 2, 3]], 2, 1, None),
    ],
)
def test_seats(present, ranks, hosts, expected):
    assert seats(present, ranks, hosts) == expected


def test_whoever_tells_takes_part():
    for ranks in range(1, 6):
        for hosts in range(1, 6):
            found = seats(TWO_HOSTS, ranks, hosts)
            assert found is None or found.ranks[0] == 0
            assert found is None or len(found.ranks) == ranks


def test_host_of_a_rank_and_apart():
    pairs = Seats(((0, 1), (3, 4)), pretended=False)
    assert [pairs.host_of(rank) for rank in pairs.ranks] == [0, 0, 1, 1]
    assert not pairs.apart
    assert Seats(((0,), (1,)), pretended=True).apart
    assert not Seats(((0,),), pretended=False).apart
