"""One way of computing, through the roles of a run, and what is read of it beside time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cuts.chain import FixedChain
from psrt.config import TrainConfig
from psrt.config.axes import axes_of
from psrt.core.arrays import Vector
from psrt.core.errors import ProtocolError
from psrt.job.build import worker_role
from psrt.job.cut import cut_problem
from psrt.job.launcher import Launcher
from psrt.job.setup import set_up
from psrt.model.stage_memory import StageShape
from psrt.mpi.cores import kept_on
from psrt.mpi.port import MpiPort
from psrt.mpi.stage_links import MpiStageLinks
from psrt.runtime.cut_problem import CutProblem
from psrt.transport import drive, quietly

#: Rate of plain SGD.
LR = 0.01


class CutScheme:
    """One way of computing, through the same roles as a run."""

    def __init__(
        self,
        launcher: Launcher,
        rank: int,
        problem: FixedChain,
        knobs: dict[str, Any],
        *,
        longer: int = 1,
    ) -> None:
        """Set up; collective over the ranks of the launcher.

        Args:
            launcher: of one way.
            rank: of this process in it.
            problem: the whole model and a batch.
            knobs: of the way.
            longer: how many times as many steps to take as are asked for.
        """
        self._launcher, self._longer = launcher, longer
        copies = axes_of(knobs.get("parallel", "data:1")).data or 1
        rows = problem.rows // copies
        config = TrainConfig(steps=1, lr=LR, batch_size=rows, **knobs)
        self._setup = setup = set_up(launcher, config, problem)
        self._port = launcher.ports(setup)[rank]
        self._problem: Any = problem
        self._rank = rank
        self._links: MpiStageLinks | None = None
        #: By turn, of a step: seconds beside waits for other stages, those waits, and bytes sent.
        self.awake: list[float] = []
        self.waited: list[float] = []
        self.sent: list[float] = []
        #: Bytes of vectors and activations, as they are counted in a run.
        self.memory = 0.0
        if setup.cut is not None:
            links = launcher.links(setup, setup.cut)[rank]
            self._links = links if isinstance(links, MpiStageLinks) else None
            self._make = partial(
                cut_problem, problem=problem, cut=setup.cut, rank=rank, links=links
            )
            self._problem = self._make(setup.config)
        self._initial = launcher.spread(self._port, setup.initial, setup.cut)

    @property
    def _waited(self) -> float:
        return 0.0 if self._links is None else self._links.waited

    @property
    def _bytes_sent(self) -> int:
        return self._port.bytes_sent + (0 if self._links is None else self._links.bytes_sent)

    def run(self, steps: int) -> float:
        """Train a number of steps from the start; return the seconds that they took."""
        port, setup = self._port, self._setup
        shares = port.role_map.held_theta is not None
        if not shares:
            np.copyto(port.theta, self._initial)
        steps *= self._longer
        config = replace(setup.config, steps=steps)
        if self._longer > 1:  # it knows from the beginning when it is drained
            self._problem = self._make(config)
        worker = worker_role(
            port,
            config,
            self._problem,
            number=setup.role_map.worker_of(self._rank),
        )
        if shares:
            worker.strategy.load(self._initial)
        worker.checks_gradient = False  # which takes as long as several steps
        waited, sent = self._waited, self._bytes_sent
        with kept_on(port.cores if isinstance(port, MpiPort) else None):
            drive(quietly(worker.run()))
        if worker.clock != config.steps:
            raise ProtocolError(f"a worker took {worker.clock} steps, expected {config.steps}")
        waited = self._waited - waited
        self.waited.append(waited / steps)
        self.awake.append((worker.seconds - waited) / steps)
        self.sent.append((self._bytes_sent - sent - worker.collected) / steps)
        self.memory = sum(worker.stats.memory)
        return worker.seconds / self._longer

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's parameters, their gradient, and activations, by count."""
        both = 2 * self._port.theta.nbytes
        if not isinstance(self._problem, CutProblem):
            layers = self._problem.layers()
            return both + StageShape(rows=self._problem.rows, given=True).activation_bytes(layers)
        return both + sum(it.activation_bytes + it.scratch_bytes for it in self._problem.chunks)

    def result(self) -> Vector | None:
        """Return the parameters of the whole model at the first rank; collective."""
        if not isinstance(self._problem, CutProblem):
            return self._port.theta
        return drive(self._problem.links.gather(self._port.theta))

    def close(self) -> None:
        """Free what was made; collective."""
        self._launcher.close()
