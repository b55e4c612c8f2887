"""Runs in virtual time of a problem that keeps books, in a world that writes down what is sent."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from psrt.config import TrainConfig
from psrt.core.messages import Message
from psrt.job.virtual import SimulatedRun, simulate
from psrt.simulation import SimulationCosts, Simulator


class Read(NamedTuple):
    """A worker starts to compute."""

    worker: int
    clock: int
    contents: np.ndarray  # (S, W, C): how often the step of a worker at a clock is in a shard


class Sent(NamedTuple):
    """A message is handed over."""

    time: float
    source: int
    to: int
    message: Message


class Ledger:
    """A problem whose parameters say which gradients they are made of.

    There is one parameter for each shard, worker and clock. A gradient is −1 at its own places
    and 0 elsewhere, so that with a learning rate of 1 an update adds 1 there, exactly.
    """

    def __init__(self, steps: Sequence[int], shards: int, *, empty: Sequence[tuple[int, int]] = ()):
        self.steps = tuple(steps)
        self.shape = shards, len(self.steps), max(self.steps)
        self.empty = frozenset(empty)  # (worker, clock) without samples
        self.log: list[Read | Sent] = []

    @property
    def reads(self) -> list[Read]:
        return [entry for entry in self.log if isinstance(entry, Read)]

    def initial(self) -> np.ndarray:
        return np.zeros(self.shape, np.float32).ravel()

    def batches(self, worker: int, workers: int, epoch: int) -> list[tuple[int, int]]:
        return [(worker, clock) for clock in range(self.steps[worker])]

    def samples(self, batch: tuple[int, int]) -> int:
        return int(batch not in self.empty)

    def loss_and_grad(self, theta: np.ndarray, batch: tuple[int, int], out: np.ndarray) -> float:
        self.log.append(Read(*batch, theta.reshape(self.shape).copy()))
        out.fill(0)
        out.reshape(self.shape)[:, batch[0], batch[1]] = -1
        return 0.0

    def evaluate(self, theta: np.ndarray) -> dict[str, float]:
        return {}


class RecordingWorld(Simulator):
    """Writes down every message that is sent."""

    def __init__(self, *arguments: Any, log: list[Any], **options: Any):
        super().__init__(*arguments, **options)
        for port in self.ports:
            self.listen(port, log)

    def listen(self, port: Any, log: list[Any]) -> None:
        send = port.send

        def heard(to: int, message: Message, *region: int) -> None:
            log.append(Sent(self.time, port.rank, to, message))
            send(to, message, *region)

        port.send = heard


class Recording(NamedTuple):
    run: SimulatedRun
    log: list[Any]


#: What computing and sending may take, from all alike to very uneven.
COSTS = {
    "exponential": SimulationCosts(),
    "all alike": SimulationCosts(compute=lambda *_: 1e-3, latency=lambda _: 1e-4),
    "slow links": SimulationCosts(latency=lambda rng: rng.exponential(1e-2), per_byte=1e-6),
    "now and then stuck": SimulationCosts(
        compute=lambda _, rng: 1e-3 * rng.pareto(1.1), latency=lambda rng: 1e-4 * rng.pareto(0.9)
    ),
    "the last rank is slow": SimulationCosts(
        compute=lambda rank, rng: rng.exponential(2e-2 if rank == 4 else 1e-3)
    ),
}


def record(
    config: TrainConfig,
    problem: Any = None,
    *,
    workers: int,
    seed: int = 0,
    costs: str = "exponential",
    world: type[RecordingWorld] = RecordingWorld,
) -> Recording:
    """Train in virtual time and keep what happened; a ledger's reads go into the same log."""
    log = getattr(problem, "log", [])
    made: Any = functools.partial(world, log=log)
    run = simulate(config, problem, workers=workers, seed=seed, costs=COSTS[costs], world=made)
    return Recording(run, log)
