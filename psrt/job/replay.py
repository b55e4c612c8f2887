"""A recorded run that is to be repeated: what must be as it was, its order, and how it ended.

``history.replay`` puts the messages of a shard in order; this is the rest, the same for a replay
over MPI and for one in virtual time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from psrt.arrays import Vector
from psrt.config import TrainConfig
from psrt.errors import ConfigError, ReplayError
from psrt.files import keep_apart, read_text
from psrt.history import Kind, read_history
from psrt.history.differences import differences
from psrt.history.replay import Script
from psrt.job.provenance import history_header
from psrt.job.recorded import recorded_header, refusal, root_of, unconfirmed
from psrt.report import Summary, parameters_sha256
from psrt.report.files import SUMMARY
from psrt.runtime.problem import Problem
from psrt.transport.port import RoleMap


class Replay:
    """What the replay of one run is held to."""

    def __init__(self, run: str) -> None:
        """Read the history.

        Args:
            run: the recorded run's folder.

        Raises:
            ConfigError: if it is none, is damaged, or cannot be repeated at all.
        """
        self.run = run
        self.header = recorded_header(run)
        self._root = root_of(run)
        history = read_history(run)
        if not self.header.numerics:
            raise ConfigError(
                f"--replay {run}: it was simulated without numerics, there are no numbers to repeat"
            )
        for worker, events in enumerate(history.workers):
            if not (events["kind"] == Kind.LEAVE).any():
                raise ConfigError(
                    f"--replay {run}: worker {worker} died in it, which a replay cannot repeat"
                )
        #: What each shard took.
        self.scripts = [Script.of(shard, events) for shard, events in enumerate(history.shards)]
        #: SHA-256 of the parameters that it ended with.
        self.parameters_sha256 = self._summary().parameters_sha256

    @property
    def ranks(self) -> int:
        """How many ranks it had."""
        return len(self.header.workers) + len(self.header.servers)

    @property
    def extras(self) -> str | None:
        """The all-reduce of the extras, where ``auto`` chose it: the config has only one name."""
        return self.header.extras if self._chosen else None

    @property
    def _chosen(self) -> bool:
        return self.header.config.get("allreduce") == "auto" and self.header.algorithm is not None

    def pinned(self, config: TrainConfig) -> TrainConfig:
        """Return the config with what the recorded run chose by itself.

        Raises:
            ConfigError: if the replay would write over the run.
        """
        if config.out is not None:
            keep_apart(config.out, "--replay", self._root)
        if self._chosen and config.allreduce in (None, "auto"):
            config = replace(config, allreduce=self.header.algorithm, machine_costs=None)
        return config

    def check_ranks(self, ranks: int) -> None:
        """Check the number of ranks of the job.

        Raises:
            ConfigError: if it is not that of the run.
        """
        if ranks != self.ranks:
            servers, workers = len(self.header.servers), len(self.header.workers)
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
    ) -> None:
        """Check that the run that is about to be will be the recorded one.

        Args:
            config: resolved and ``pinned``.
            role_map: who is who.
            initial: (n,) the parameters that training starts from.
            problem: what is trained.
            hosts: number of the host of each rank.

        Raises:
            ConfigError: one line with all that differs.
        """
        now = history_header(
            config, role_map, initial=initial, problem=problem, files=(), hosts=hosts
        )
        if found := differences(now, self.header):
            raise refusal(self.run, found)

    def plan(self) -> str:
        """Return what is said before it begins."""
        unsure = unconfirmed(self.run)
        return f"{self._plan()}; {unsure}" if unsure else self._plan()

    def _plan(self) -> str:
        if self.header.algorithm == "mpi":
            return (
                f"replay of {self.run}: it summed by mpi, whose order is the library's own; the "
                "same bits are likely but not certain"
            )
        if not self.scripts:
            return f"replay of {self.run}"
        messages = sum(map(len, self.scripts))
        return f"replay of {self.run}: {messages} messages to servers in their recorded order"

    def verdict(self, theta: Vector) -> str:
        """Return what is said at the end.

        Args:
            theta: (n,) the final parameters.

        Raises:
            ReplayError: if they are others than those of the run.
        """
        sha256 = parameters_sha256(np.asarray(theta))
        if sha256 == self.parameters_sha256:
            return f"replay: the same parameters to the bit (sha256 {sha256})"
        raise ReplayError(
            f"the replay of {self.run} came to other parameters: sha256 {sha256} instead of "
            f"{self.parameters_sha256}"
        )

    def _summary(self) -> Summary:
        path = self._root / SUMMARY
        try:
            return Summary.from_json(read_text(str(path)))
        except ConfigError as error:
            raise ConfigError(
                f"--replay {self.run}: what it came to is not known: {error}"
            ) from None


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
