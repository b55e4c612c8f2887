"""A cell of a simulated job: some of its ranks, which train one part of a split model.

A cell has its own rank numbers, from 0, and its own role map, as on the communicator of a cell in a
job over MPI. So a rank does the same in a cell as in a job; here its number is translated to that
in the job. All cells share one virtual time, one scheduler and one network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, Union

from psrt.codec.times import FrameTimes
from psrt.core.stats import Sent
from psrt.simulation.costs import SimulationCosts
from psrt.simulation.port import VirtualPort
from psrt.simulation.rendezvous import RendezvousTable
from psrt.transport.port import RoleMap

if TYPE_CHECKING:
    from psrt.simulation.simulator import Simulator

#: What a port is in: a whole job, or a cell of one.
World: TypeAlias = Union["Simulator", "SimulatedCell"]


class SimulatedCell:
    """What the ports of a cell see of a simulator; see ``Simulator`` for each of its parts."""

    def __init__(self, job: Simulator, role_map: RoleMap, ranks: Sequence[int]) -> None:
        """Make the ports.

        Args:
            job: the simulator of all cells.
            role_map: the roles of the ranks of this cell.
            ranks: by rank in the cell, the rank in the job.
        """
        self.job = job
        self.role_map = role_map
        self.ranks = ranks
        self.costs = _by_rank_in(job.costs, ranks)
        self.rng, self.machine, self.network = job.rng, job.machine, job.network
        self.shared_memory, self.numerics = job.shared_memory, job.numerics
        self.after, self.at = job.after, job.at
        self.cores = None if job.cores is None else [job.cores[rank] for rank in ranks]
        #: Stays empty: a model that lacks a part cannot be trained, so a crash ends the job.
        self.crashed: dict[int, float] = {}
        self.rendezvous = RendezvousTable(self)
        self.ports = [VirtualPort(self, rank) for rank in range(role_map.size)]

    @property
    def time(self) -> float:
        """Virtual time in seconds."""
        return self.job.time

    @property
    def frames(self) -> FrameTimes | None:
        """What frames cost."""
        return self.job.frames

    def on_report(self, report: Sent) -> None:
        """Forward a report to the job."""
        self.job.on_report(report)

    def resume(self, rank: int) -> None:
        """Run a role up to its next await that takes time."""
        self.job.resume(self.ranks[rank])

    def wake(self, rank: int) -> None:
        """Resume a role that waits for an arrival."""
        port = self.ports[rank]
        if port.waiting:
            port.waiting = False
            self.resume(rank)

    def watch(self, rank: int, done: Callable[[], bool]) -> None:
        """Resume a role once ``done()``."""
        self.job.watch(self.ranks[rank], done)

    def touch(self, rank: int) -> None:
        """Mark a rank whose watched condition may have changed."""
        self.job.touch(self.ranks[rank])


def _by_rank_in(costs: SimulationCosts, ranks: Sequence[int]) -> SimulationCosts:
    """Return the costs of the job, addressed by rank in a cell."""
    compute, receive = costs.compute, costs.receive
    return replace(
        costs,
        compute=lambda rank, rng: compute(ranks[rank], rng),
        receive=None
        if receive is None
        else lambda rank, message, idle, rng: receive(ranks[rank], message, idle, rng),
    )
