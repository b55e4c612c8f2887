"""One rank's part in the rounds of a topology, also after other ranks depart. Pure."""

from __future__ import annotations

from psrt.topology.registry import HostLevel, Topology


class Part:
    """The ranks that a rank sends to and receives from in each round, and the weights.

    A departed rank takes part in no round from its last clock on. A rank renormalises weights from
    what it knows of its own neighbours: it adds the weight of a departed sender to its own. So rows
    add up to 1, and columns, too, if the matrix is symmetric (``folded``). Under push-sum it keeps
    the share of a departed receiver, so that columns add up to 1.

    >>> from psrt.topology import topology_of
    >>> part = Part(topology_of("ring", 4), 0)
    >>> part.senders(0), round(part.own(0), 3)
    ((1, 3), 0.333)
    >>> part.leave(3, 0)
    >>> part.senders(0), round(part.own(0), 3)
    ((1,), 0.667)
    """

    def __init__(self, topology: Topology, rank: int, level: HostLevel | None = None) -> None:
        """Set up for a rank of a verified topology, or of the level of its hosts."""
        self.topology, self.rank = topology, rank
        #: By rank, the first round without it.
        self.left: dict[int, int] = {}
        rounds = level or topology
        graphs, matrices = rounds.graphs, rounds.matrices
        self._senders = [graph.senders[rank] for graph in graphs]
        # Starting after its own number: if all began with the lowest, links would be used unevenly.
        self._receivers = [
            tuple(sorted(graph.receivers[rank], key=lambda j: (j - rank) % topology.size))
            for graph in graphs
        ]
        #: By round of the period: the weights of a rank's row, and of its column.
        self._rows = [
            {j: float(matrix[rank, j]) for j in (rank, *senders)}
            for matrix, senders in zip(matrices, self._senders, strict=True)
        ]
        self._columns = [
            {j: float(matrix[j, rank]) for j in receivers}
            for matrix, receivers in zip(matrices, self._receivers, strict=True)
        ]

    @property
    def peers(self) -> tuple[int, ...]:
        """The ranks that it sends to or receives from in any round, ascending."""
        found = {j for ranks in (*self._senders, *self._receivers) for j in ranks}
        return tuple(sorted(found))

    @property
    def answered(self) -> tuple[int, ...]:
        """The ranks that send no second vector before they have been answered."""
        return ()

    def leave(self, rank: int, clock: int) -> None:
        """Note that a rank takes no part in the rounds from ``clock`` on."""
        self.left[rank] = clock

    def takes_part(self, rank: int, at: int) -> bool:
        """Return whether a rank takes part in round ``at``, as far as is known."""
        clock = self.left.get(rank)
        return clock is None or at < clock

    def senders(self, at: int) -> tuple[int, ...]:
        """Return the ranks that send to it in round ``at`` and have not departed, ascending."""
        return self._here(self._senders[at % len(self._senders)], at)

    def receivers(self, at: int) -> tuple[int, ...]:
        """Return the ranks that it sends to in round ``at``, in order, without departed ones."""
        return self._here(self._receivers[at % len(self._receivers)], at)

    def weight(self, sender: int, at: int) -> float:
        """Return the weight of a sender's values in round ``at``."""
        return self._rows[at % len(self._rows)][sender]

    def own(self, at: int) -> float:
        """Return the weight of its own values in round ``at``."""
        period = at % len(self._rows)
        row, column = self._rows[period], self._columns[period]
        others = column if self.topology.push_sum else row
        gone = (others[j] for j in others if j != self.rank and not self.takes_part(j, at))
        return row[self.rank] + sum(gone)

    def _here(self, ranks: tuple[int, ...], at: int) -> tuple[int, ...]:
        if not self.left:
            return ranks
        return tuple(rank for rank in ranks if self.takes_part(rank, at))
