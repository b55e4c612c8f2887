"""One rank's part in the rounds of a topology of hosts, whose ranks average inside. Pure."""

from __future__ import annotations

from psrt.topology.mixing import metropolis_weight
from psrt.topology.part import Part
from psrt.topology.registry import Topology


class HostPart(Part):
    """Whom a rank exchanges what with: the first rank of a host leads it.

    Its members send to whoever leads them, which averages, mixes with those who lead the other
    hosts, and sends to its members what came of it. So a rank sends to, and receives from, whoever
    leads it, or, if it leads, the others that lead; and one that leads has members as well.

    **Who has left.** A host mixes as long as one of its ranks takes part, and weighs as many ranks
    as do so in a round: Metropolis–Hastings weights follow, so that the mean of those that are left
    stays. Other weights are those of hosts, whatever the number of their ranks. Where whoever leads
    has died, its host has left, and its members go on alone, each by itself.

    >>> from psrt.topology import topology_of
    >>> part = HostPart(topology_of("ring", 6, hosts=[0, 0, 0, 1, 2, 2]), 0)
    >>> part.members(0), part.senders(0), part.share(4, 0, 3, 2)
    ((1, 2), (3, 4), 0.2222222222222222)
    """

    def __init__(self, topology: Topology, rank: int) -> None:
        """Set up for a rank of a verified topology of hosts."""
        level = topology.hosts
        assert level is not None, "a topology of hosts"
        super().__init__(topology, rank, level)
        self._is_metropolis = level.is_metropolis
        self._degrees = [[len(it) for it in graph.senders] for graph in level.graphs]
        #: Whoever leads its host.
        self.leader = level.first[rank]
        self._members = tuple(
            it for it, first in enumerate(level.first) if first == rank and it != rank
        )

    @property
    def leads(self) -> bool:
        """Whether it leads its host."""
        return self.leader == self.rank

    @property
    def peers(self) -> tuple[int, ...]:
        """Those that it exchanges anything with, ascending."""
        if not self.leads:
            return (self.leader,)
        return tuple(sorted({*self.others, *self._members}))

    @property
    def others(self) -> tuple[int, ...]:
        """Those that lead other hosts, and that it exchanges something with, ascending."""
        return super().peers

    @property
    def answered(self) -> tuple[int, ...]:
        """Those that send no second vector before they have been answered: its members."""
        return self._members

    def members(self, at: int) -> tuple[int, ...]:
        """Return its members that have not left by round ``at``, ascending."""
        return self._here(self._members, at)

    def senders(self, at: int) -> tuple[int, ...]:
        """Return whoever leads it, or, if it leads, those of other hosts that send to it."""
        return super().senders(at) if self.leads else self._here((self.leader,), at)

    def receivers(self, at: int) -> tuple[int, ...]:
        """Return whoever leads it, or, if it leads, those of other hosts that it sends to."""
        return super().receivers(at) if self.leads else self._here((self.leader,), at)

    def share(self, sender: int, at: int, ranks: float, others: float) -> float:
        """Return the weight of what another host has in round ``at``.

        Args:
            sender: whoever leads it.
            at: the round.
            ranks: the number of ranks of this host that take part in the round.
            others: of those of the other one.
        """
        if not self._is_metropolis:
            return self.weight(sender, at)
        degree = self._degrees[at % len(self._degrees)]
        return metropolis_weight(degree[self.rank], degree[sender], ranks, others)
