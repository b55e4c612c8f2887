"""One rank's part in the rounds of a topology of hosts, inside which ranks average. Pure."""

from __future__ import annotations

from psrt.topology.mixing import metropolis_weight
from psrt.topology.part import Part
from psrt.topology.registry import Topology


class HostPart(Part):
    """The ranks that one rank exchanges vectors with: the first rank of a host is its leader.

    Members send to their leader. It averages, mixes with the leaders of other hosts, and sends the
    result to its members. So a member exchanges only with its leader. A leader exchanges with other
    leaders, and also has members.

    **Departed ranks.** A host mixes as long as one of its ranks takes part. It weighs as much as
    the number of ranks that take part in a round: Metropolis–Hastings weights follow that number,
    so the mean over the remaining ranks stays. Other weights are those of hosts, whatever the
    number of their ranks. If a leader has died, its host has departed, and each of its members
    continues by itself.

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
        #: The leader of its host.
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
        """The ranks that it exchanges anything with, ascending."""
        if not self.leads:
            return (self.leader,)
        return tuple(sorted({*self.others, *self._members}))

    @property
    def others(self) -> tuple[int, ...]:
        """The leaders of other hosts that it exchanges anything with, ascending."""
        return super().peers

    @property
    def answered(self) -> tuple[int, ...]:
        """The ranks that send no second vector before they have been answered: its members."""
        return self._members

    def members(self, at: int) -> tuple[int, ...]:
        """Return its members that have not departed by round ``at``, ascending."""
        return self._here(self._members, at)

    def senders(self, at: int) -> tuple[int, ...]:
        """Return its leader or, if it leads, the leaders of other hosts that send to it."""
        return super().senders(at) if self.leads else self._here((self.leader,), at)

    def receivers(self, at: int) -> tuple[int, ...]:
        """Return its leader or, if it leads, the leaders of other hosts that it sends to."""
        return super().receivers(at) if self.leads else self._here((self.leader,), at)

    def share(self, sender: int, at: int, ranks: float, others: float) -> float:
        """Return the weight of another host's average in round ``at``.

        Args:
            sender: the other host's leader.
            at: the round.
            ranks: the number of this host's ranks that take part in the round.
            others: the number of the other host's.
        """
        if not self._is_metropolis:
            return self.weight(sender, at)
        degree = self._degrees[at % len(self._degrees)]
        return metropolis_weight(degree[self.rank], degree[sender], ranks, others)
