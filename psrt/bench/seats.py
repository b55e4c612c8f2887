"""Who takes part in a measurement, and on which hosts they are or count as being. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seats:
    """Ranks by host."""

    hosts: tuple[tuple[int, ...], ...]
    #: Whether ranks of one host only count as being on several: they then share no memory, and
    #: their messages go by MPI as they would between hosts, but over no wire.
    pretended: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of them, host by host."""
        return tuple(rank for host in self.hosts for rank in host)

    @property
    def apart(self) -> bool:
        """Whether no two of them are on a host, and there are several."""
        return len(self.hosts) == len(self.ranks) > 1

    def host_of(self, rank: int) -> int:
        """Return the number of a rank's host."""
        return next(number for number, host in enumerate(self.hosts) if rank in host)


def seats(present: Sequence[Sequence[int]], ranks: int, hosts: int) -> Seats | None:
    """Seat so many ranks on so many hosts, as many on each.

    Args:
        present: the ranks of each host that there is.
        ranks: how many are wanted.
        hosts: on how many hosts.

    Returns:
        Who sits where: on hosts of their own if there are enough, else all on the first one;
        None if the ranks cannot be spread evenly or are too few.

    >>> seats([[0, 1, 2, 3]], 4, 2)
    Seats(hosts=((0, 1), (2, 3)), pretended=True)
    >>> seats([[0, 1], [2, 3]], 2, 2), seats([[0, 1]], 4, 1)
    (Seats(hosts=((0,), (2,)), pretended=False), None)
    """
    each, left = divmod(ranks, hosts)
    if left or not each:
        return None
    roomy = [tuple(host[:each]) for host in present if len(host) >= each]
    # Rank 0 takes part in everything, since it tells of it.
    if len(roomy) >= hosts and len(present[0]) >= each:
        return Seats(tuple(roomy[:hosts]), pretended=False)
    if len(present[0]) < ranks:
        return None
    first = present[0]
    return Seats(
        tuple(tuple(first[i * each : (i + 1) * each]) for i in range(hosts)), pretended=True
    )
