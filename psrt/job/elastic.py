"""The number of workers, and their batches, of a job on the hosts that answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from psrt.config import TrainConfig, resolve
from psrt.config.regroup import bound_to_workers
from psrt.core.errors import ConfigError
from psrt.core.units import plural
from psrt.launch.hostfile import Host

#: The most hosts that a line names.
_SHOWN = 4


class Size(NamedTuple):
    """An attempt's ranks, servers included, and the batch of each worker."""

    ranks: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Elastic:
    """A job whose number of workers follows its hosts."""

    #: Need not be resolved.
    config: TrainConfig
    #: The size that it should have if all hosts answer.
    full: Size
    #: The number of ranks for which all hosts have cores.
    slots: int
    servers: int
    min_workers: int
    #: Whether a worker's batch is constant, if each update is of one worker; otherwise the batch
    #: times the number of workers is constant.
    keeps_batch: bool

    @classmethod
    def of(cls, config: TrainConfig, ranks: int, slots: int, samples: int, least: int) -> Elastic:
        """Return the elastic size of a job.

        Args:
            config: need not be resolved.
            ranks: their number if all hosts answer.
            slots: the number of ranks for which these have cores.
            samples: of a step of all workers; 0 for the config's.
            least: the fewest workers.

        Raises:
            ConfigError: if it cannot resume with another number of workers, or with so few.
        """
        given = resolve(config, ranks=ranks)
        if why := bound_to_workers(given):
            raise ConfigError(f"--elastic would resume with other workers, which {why}")
        servers = given.servers or 0
        workers = ranks - servers
        if least > workers:
            raise ConfigError(
                f"--min-workers {least} are more than the {plural(workers, 'worker')}"
            )
        keeps, batch = given.scheme.parks, given.batch_size
        if samples and not keeps:
            if samples % workers:
                raise ConfigError(
                    f"--elastic keeps the {samples} samples of a step, which cannot be split "
                    f"evenly among {workers} workers"
                )
            batch = samples // workers
        it = cls(config, Size(ranks, batch), slots, servers, least, keeps)
        # The smallest allowed number of workers among which the samples can be split evenly.
        it.checked(it._of(next(k for k in range(least, workers + 1) if it._shares(k))))
        return it

    def on(self, slots: int) -> Size | str:
        """Return the size on hosts with that many slots, or why there is none."""
        if slots >= self.slots:
            return self.full
        ranks = self.full.ranks
        # If there are more ranks than cores, the remaining cores keep the same ratio.
        ranks = ranks * slots // self.slots if ranks > self.slots else min(ranks, slots)
        workers = ranks - self.servers
        while workers > 0 and not self._shares(workers):
            workers -= 1
        if workers < self.min_workers:
            left = f"{plural(max(0, workers), 'worker')}"
            return f"that leaves {left}, --min-workers is {self.min_workers}"
        try:
            return self.checked(self._of(workers))
        except ConfigError as error:
            return str(error)

    @property
    def _samples(self) -> int:
        return self.full.batch_size * (self.full.ranks - self.servers)

    def _shares(self, workers: int) -> bool:
        """Whether the samples of a step can be split evenly among that many workers."""
        return self.keeps_batch or self._samples % workers == 0

    def _of(self, workers: int) -> Size:
        batch = self.full.batch_size if self.keeps_batch else self._samples // workers
        return Size(workers + self.servers, batch)

    def checked(self, size: Size) -> Size:
        """Return a size that the config's other knobs allow.

        Raises:
            ConfigError: if they do not.
        """
        resolve(replace(self.config, batch_size=size.batch_size), ranks=size.ranks)
        return size


def described(hosts: Sequence[Host], missing: Mapping[str, str]) -> str:
    """Return in words which hosts do not answer, and why.

    >>> described([Host("a", 1), Host("b", 1)], {"b": "timed out"})
    '1 of 2 hosts answers (b: timed out)'
    """
    there = len(hosts) - len(missing)
    names = [f"{name}: {why}" for name, why in list(missing.items())[:_SHOWN]]
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    verb = "answers" if there == 1 else "answer"
    return f"{there} of {plural(len(hosts), 'host')} {verb} ({'; '.join(names)}{more})"
