"""The recorded run that a replay repeats: its config, message order and final parameters.

``history.replay`` orders the messages of a shard; the rest is here, the same for a replay over MPI
and for one in simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from psrt.config import TrainConfig
from psrt.config.names import AUTO, LIBRARY, PAIRS
from psrt.core.arrays import Vector
from psrt.core.errors import ConfigError, ReplayError
from psrt.core.files import keep_apart, read_text
from psrt.data import Deal
from psrt.history import History, Kind
from psrt.history.differences import differences
from psrt.history.pair_replay import PairScript
from psrt.history.reading import read_cells
from psrt.history.replay import Script
from psrt.job.provenance import history_header
from psrt.job.recorded import as_tuned, recorded_header, refusal, root_of, unconfirmed
from psrt.report import Summary, parameters_sha256
from psrt.report.environment import environment_differences
from psrt.report.files import SUMMARY
from psrt.runtime.problem import Problem
from psrt.topology import Topology
from psrt.transport.port import RoleMap


class CellReplay(NamedTuple):
    """What a cell repeats."""

    #: The all-reduces of gradients or parameters, and of the control values, if ``auto`` chose
    #: them: a config has only one for all.
    algorithm: str | None
    control_algorithm: str | None
    #: Scripts by shard, or by worker in gossip by pairs.
    scripts: Sequence[Script | PairScript]

    @classmethod
    def of(cls, history: History, *, chosen: bool) -> CellReplay:
        """Return what a replay of a history must repeat.

        Args:
            history: of the cell.
            chosen: whether ``auto`` chose the all-reduces.
        """
        header = history.header
        algorithms = (header.algorithm, header.control_algorithm) if chosen else (None, None)
        if header.mode.variant == PAIRS:
            return cls(*algorithms, [PairScript.of(*it) for it in enumerate(history.workers)])
        return cls(*algorithms, [Script.of(*it) for it in enumerate(history.shards)])


class Replay:
    """A recorded run, as the reference of its replay."""

    def __init__(self, run: str) -> None:
        """Read the history.

        Args:
            run: the recorded run's folder.

        Raises:
            ConfigError: if there is no history, it is damaged, or it cannot be repeated at all.
        """
        self.run = run
        self.header = recorded_header(run)
        self._root = root_of(run)
        _, histories = read_cells(run)
        if not self.header.numerics:
            raise ConfigError(
                f"--replay {run}: it was simulated without numerics, there are no numbers to repeat"
            )
        died = (
            worker * max(1, len(self.header.cells)) + cell
            for cell, history in enumerate(histories)
            for worker, events in enumerate(history.workers)
            if not (events["kind"] == Kind.LEAVE).any()
        )
        for worker in died:
            how = "died" if self.header.simulated else "went missing"
            raise ConfigError(
                f"--replay {run}: worker {worker} {how} in it, which a replay cannot repeat"
            )
        if any(history.has_stops for history in histories):
            raise ConfigError(
                f"--replay {run}: workers stopped for checkpoints in it, which a replay cannot "
                "repeat"
            )
        #: By cell, its all-reduces and the messages that each of its shards received, in order; in
        #: gossip by pairs, what each worker did with others. A model that is not split is one cell.
        self.cells: Sequence[CellReplay] = [
            CellReplay.of(history, chosen=self.header.algorithm_chosen) for history in histories
        ]
        #: SHA-256 of the run's final parameters.
        summary = self._summary()
        self.parameters_sha256 = summary.parameters_sha256
        self._environment = summary.environment

    @property
    def ranks(self) -> int:
        """The number of ranks of the run."""
        return len(self.header.workers) + len(self.header.server_ranks)

    def pinned(self, config: TrainConfig) -> TrainConfig:
        """Return the config with the choices that ``auto`` made in the recorded run.

        Raises:
            ConfigError: if the replay would overwrite the run.
        """
        if config.out is not None:
            keep_apart(config.out, "--replay", self._root)
        if config.tune and self.header.tuned:
            config = replace(config, **as_tuned(self.header, config.mode))
        if self.header.algorithm_chosen and config.allreduce in (None, AUTO):
            config = replace(config, allreduce=self.header.algorithm, machine_costs=None)
        if config.shards_per_server in (None, AUTO):
            config = replace(config, shards_per_server=self.header.knob("shards_per_server"))
        if config.parallel is not None and config.stages in (None, AUTO):
            config = replace(config, stages=self.header.knob("stages"))
        if config.codec is not None and config.codec_everywhere is None:
            # Whether it was in effect; the hosts of the replay do not matter.
            config = replace(config, codec_everywhere=self.header.knob("codec_everywhere"))
        return config

    def check_ranks(self, ranks: int) -> None:
        """Check the number of ranks of the job.

        Raises:
            ConfigError: if it is not that of the run.
        """
        if ranks != self.ranks:
            servers, workers = len(self.header.server_ranks), len(self.header.workers)
            who = f"{_many(servers, 'server')} and " if servers else ""
            raise ConfigError(
                f"--replay {self.run}: the run had {who}{_many(workers, 'worker')}: start "
                f"{_many(self.ranks, 'rank')}, not {ranks}"
            )

    def check(
        self,
        config: TrainConfig,
        role_map: RoleMap,
        *,
        initial: Vector,
        problem: Problem | None,
        hosts: tuple[int, ...],
        deal: Deal | None = None,
        topology: Topology | None = None,
    ) -> None:
        """Check that the run about to start is the recorded one.

        Args:
            config: resolved and ``pinned``.
            role_map: the ranks of workers and servers.
            initial: (n,) float32, the initial parameters.
            problem: the model and data to train.
            hosts: number of the host of each rank.
            deal: the samples of each worker; None if samples are not assigned.
            topology: the neighbours of workers; None without.

        Raises:
            ConfigError: one line that lists every difference.
        """
        now = history_header(
            config,
            role_map,
            initial=initial,
            problem=problem,
            files=(),
            deal=deal,
            topology=topology,
            hosts=hosts,
        )
        if found := differences(now, self.header):
            raise refusal(self.run, found)

    def plan(self) -> str:
        """Return the line printed before the replay."""
        unsure = unconfirmed(self.run)
        return f"{self._plan()}; {unsure}" if unsure else self._plan()

    def _plan(self) -> str:
        if self.header.algorithm == LIBRARY:
            return (
                f"replay of {self.run}: it summed by {LIBRARY}, in an order of the library's own; "
                "the same bits are likely, but not certain"
            )
        scripts = [script for cell in self.cells for script in cell.scripts]
        if not scripts:
            return f"replay of {self.run}"
        messages = sum(map(len, scripts))
        if not self.header.servers:
            return f"replay of {self.run}: {messages} offers and averages in their recorded order"
        return f"replay of {self.run}: {messages} messages to servers in their recorded order"

    def elsewhere(self, environment: Mapping[str, Any]) -> list[str]:
        """Return the differences of the environment, which may cause different bits."""
        return environment_differences(environment, self._environment)

    def verdict(self, theta: Vector) -> str:
        """Return the line printed at the end.

        Args:
            theta: (n,) the final parameters.

        Raises:
            ReplayError: if they differ from those of the run.
        """
        sha256 = parameters_sha256(np.asarray(theta))
        if sha256 == self.parameters_sha256:
            return f"replay: the same parameters to the bit (sha256 {sha256})"
        raise ReplayError(
            f"the replay of {self.run} ended with other parameters: sha256 {sha256} instead of "
            f"{self.parameters_sha256}"
        )

    def _summary(self) -> Summary:
        path = self._root / SUMMARY
        try:
            return Summary.from_json(read_text(str(path)))
        except ConfigError as error:
            raise ConfigError(
                f"--replay {self.run}: its final parameters are not known: {error}"
            ) from None


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
