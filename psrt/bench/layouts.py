"""The ranks that take part in a measurement, and their hosts, real or pretended. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psrt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks by host."""

    hosts: tuple[tuple[int, ...], ...]
    #: Whether ranks of one host are treated as several hosts: they then share no memory, and their
    #: messages go through MPI as between hosts, but over no wire.
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


def layout(present: Sequence[Sequence[int]], ranks: int, hosts: int) -> Layout | None:
    """Place ranks on hosts, the same number on each.

    Args:
        present: by real host, its ranks.
        ranks: number of ranks to place.
        hosts: number of hosts to place them on.

    Returns:
        The ranks on hosts of their own if there are enough, else all on the first one; None if the
        ranks cannot be spread evenly or are too few.

    >>> layout([[0, 1, 2, 3]], 4, 2)
    Layout(hosts=((0, 1), (2, 3)), pretended=True)
    >>> layout([[0, 1], [2, 3]], 2, 2), layout([[0, 1]], 4, 1)
    (Layout(hosts=((0,), (2,)), pretended=False), None)
    """
    each, left = divmod(ranks, hosts)
    if left or not each:
        return None
    large = [tuple(host[:each]) for host in present if len(host) >= each]
    # Rank 0 takes part in everything, since it reports.
    if len(large) >= hosts and len(present[0]) >= each:
        return Layout(tuple(large[:hosts]), pretended=False)
    if len(present[0]) < ranks:
        return None
    first = present[0]
    return Layout(
        tuple(tuple(first[i * each : (i + 1) * each]) for i in range(hosts)), pretended=True
    )


def layouts(
    present: Sequence[Sequence[int]], ranks: Sequence[int], hosts: Sequence[int]
) -> list[Layout]:
    """Return a layout for each number of ranks on each number of hosts that is possible.

    Raises:
        ConfigError: if none is.
    """
    found = [layout(present, p, h) for h in hosts for p in ranks]
    if not any(found):
        raise ConfigError(
            f"{sum(map(len, present))} ranks cannot place {_either(ranks)} ranks evenly on "
            f"{_either(hosts)} hosts"
        )
    return [placed for placed in found if placed is not None]


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))
