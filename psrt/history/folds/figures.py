"""Staleness of gradients, skew of reads, and waiting of workers: parts of a summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psrt.core.stats import Stats


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of small whole numbers; zeros and {} if there were none."""

    #: The mean of the numbers, and the largest.
    mean: float
    max: int
    #: Number → its count.
    histogram: dict[int, int]

    @classmethod
    def of(cls, pairs: Iterable[Sequence[int]]) -> Counts:
        """Return the statistics of (number, count) pairs; counts of equal numbers add up.

        >>> Counts.of([(0, 1), (2, 2), (2, 1)])
        Counts(mean=1.5, max=2, histogram={0: 1, 2: 3})
        """
        found: dict[int, int] = {}
        for number, count in pairs:
            found[number] = found.get(number, 0) + count
        found = {number: found[number] for number in sorted(found) if found[number]}
        total = sum(found.values())
        mean = sum(number * count for number, count in found.items()) / total if total else 0.0
        return cls(mean, max(found, default=0), found)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Counts:
        """Rebuild it from JSON, whose keys are text."""
        found = {int(number): int(count) for number, count in values["histogram"].items()}
        return cls(values["mean"], values["max"], found)


@dataclass(frozen=True, slots=True)
class Gap:
    """‖θ_now − θ_read‖/√n of the gradients for which it was measured, one in eight or so.

    In gossip by pairs, ‖θ_j − θ_i‖/√n of each average.
    """

    #: Mean and largest ‖θ_now − θ_read‖/√n, and the number of gradients, about one in eight.
    mean: float
    max: float
    count: int

    @classmethod
    def of(cls, gaps: tuple[int, float, float]) -> Gap:
        """Return the statistics of ``Stats.gaps``: count, sum, maximum."""
        count, whole, largest = gaps
        return cls(whole / count if count else 0.0, largest, count)


@dataclass(frozen=True, slots=True)
class Staleness:
    """The staleness of the applied gradients; zeros and () without pushes.

    In gossip by pairs, the staleness of averages, each counted on both sides: τ is 0 at the
    answering worker, and at the asking worker the number of its steps since its offer.
    """

    #: Mean τ over all pushes and shards.
    mean: float
    #: Largest τ.
    max: int
    #: ``histogram[τ]`` is the number of pushes with staleness τ; the last entry is not 0.
    histogram: tuple[int, ...]
    #: The same by worker, all shards together.
    by_worker: tuple[Counts, ...] = ()
    #: The same by shard, all workers together.
    by_shard: tuple[Counts, ...] = ()
    #: The effect of staleness on the parameters.
    gap: Gap = Gap(0.0, 0.0, 0)

    @classmethod
    def of(cls, histogram: Sequence[int] | np.ndarray) -> Staleness:
        """Return the statistics of counts by τ.

        Args:
            histogram: ``(k,)`` counts, ``histogram[τ]`` pushes with staleness τ; trailing zeros
                are cut off.

        >>> Staleness.of(np.array([1, 0, 3, 0])).histogram
        (1, 0, 3)
        """
        counts = np.trim_zeros(np.asarray(histogram), "b")
        if not counts.size:
            return cls(0.0, 0, ())
        mean = float(np.arange(counts.size) @ counts / counts.sum())
        return cls(mean, counts.size - 1, tuple(int(count) for count in counts))

    @classmethod
    def of_ranks(cls, ranks: Iterable[Stats]) -> Staleness:
        """Merge the counters of workers that count, or those of the shards, in their order."""
        ranks = tuple(ranks)
        shards = sorted((it for it in ranks if it.shard >= 0), key=lambda it: it.shard)
        by_workers = [it for it in ranks if it.shard < 0 and it.staleness]
        shards = [] if by_workers else shards
        counting = by_workers or shards
        if not counting:
            return cls.of(())
        both = Stats.merged(counting)
        total = cls.of(both.histogram)
        return cls(
            total.mean,
            total.max,
            total.histogram,
            tuple(Counts.of(found.items()) for found in both.staleness),
            tuple(
                Counts.of(pair for found in shard.staleness for pair in found.items())
                for shard in shards
            ),
            Gap.of(both.gaps),
        )

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Staleness:
        """Return what JSON made of it."""
        return cls(
            values["mean"],
            values["max"],
            tuple(values["histogram"]),
            tuple(map(Counts.from_values, values["by_worker"])),
            tuple(map(Counts.from_values, values["by_shard"])),
            Gap(**{name: values["gap"][name] for name in Gap.__slots__}),
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting time of one worker, in seconds, by cause."""

    worker: int
    #: All causes together.
    seconds: float
    #: ``seconds`` as a share of its time from the first step to the last.
    share: float
    #: For other workers: a gate, quorum or window held its answer back.
    for_workers: float
    #: For a server's work on its own push.
    for_server: float
    #: For messages in flight and in a server's queue.
    for_messages: float
    #: In sums over all workers.
    for_reduce: float
    #: Seconds of ``for_workers`` by the worker whose push released the answer; not those until a
    #: window was over.
    waiting_for: dict[int, float]

    @classmethod
    def of(cls, stats: Stats) -> Waiting:
        """Return the waiting time of the worker that counted ``stats``."""
        waited = stats.waited
        seconds = sum(waited.values())
        return cls(
            stats.worker,
            seconds,
            seconds / stats.seconds if stats.seconds > 0 else 0.0,
            waited["workers"],
            waited["server"],
            waited["messages"],
            waited["reduce"],
            dict(sorted(stats.waited_for.items())),
        )

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Waiting:
        """Return what JSON made of it."""
        found = {name: values[name] for name in cls.__slots__}
        by_worker = values["waiting_for"].items()
        found["waiting_for"] = {int(worker): float(s) for worker, s in by_worker}
        return cls(**found)
