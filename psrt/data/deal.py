"""Deal samples out to workers by their labels, so that their data is not alike: seeded. Pure.

A rule says how many samples of each label a worker gets; which ones is drawn. Every sample is dealt
once, and every worker gets at least one, taken from whoever has most where the rule gave it none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.partition import even_spans

#: Sets the draws of the deal apart from those of the epochs, which begin with the seed, too.
_DEAL: Final = 0x6465616C


@dataclass(frozen=True, slots=True)
class Deal:
    """The samples of each worker."""

    #: By worker: (s,) intp, its samples, ascending; s ≥ 1, and together they are all samples.
    samples: tuple[np.ndarray, ...]
    #: By worker, the number of labels among its samples.
    labels: tuple[int, ...]
    #: Samples of a step, at most.
    batch_size: int
    #: Of the order of the epochs.
    seed: int

    @classmethod
    def sized(cls, rows: Sequence[tuple[int, int]], batch_size: int) -> Deal:
        """Return a deal of which only numbers matter.

        Args:
            rows: by worker, as ``rows`` has them.
            batch_size: samples of a step, at most.
        """
        # Without memory, however many a file says that there are.
        samples = (np.broadcast_to(np.intp(0), size) for size, _ in rows)
        return cls(tuple(samples), tuple(labels for _, labels in rows), batch_size, 0)

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """By worker, the number of its samples, and that of the labels among them."""
        return tuple((len(it), count) for it, count in zip(self.samples, self.labels, strict=True))

    @property
    def steps(self) -> int:
        """Steps of an epoch, the same for all workers: those of who has most samples."""
        return -(-max(map(len, self.samples)) // self.batch_size)

    def among(self, workers: Sequence[int]) -> Deal:
        """Return the deal where only these workers are left: of what others had each gets a share.

        Args:
            workers: their numbers, ascending; at least one.
        """
        if len(workers) == len(self.samples):
            return self
        dealt = {worker: [self.samples[worker]] for worker in workers}
        for worker, samples in enumerate(self.samples):
            if worker in dealt:
                continue
            for heir, span in zip(workers, even_spans(len(samples), len(workers)), strict=True):
                dealt[heir].append(span.of(samples))
        none = np.empty(0, np.intp)
        return replace(
            self,
            samples=tuple(
                np.sort(np.concatenate(dealt.get(worker, [none])))
                for worker in range(len(self.samples))
            ),
        )

    def batches(self, worker: int, epoch: int) -> list[np.ndarray]:
        """Return a worker's samples of each step of an epoch, (b,) intp.

        They are spread evenly over the steps: ``b`` is the same for all of them, or one more in
        some. So at each step a worker has its share of what all see, and where a mean is weighted
        by samples it is that of all data. A worker with fewer samples than there are steps has none
        in most of them, each worker in others.
        """
        own = self.samples[worker]
        order = np.random.default_rng((self.seed, epoch, worker + 1)).permutation(own)
        return np.split(order, self.seen(np.arange(1, self.steps), np.intp(worker)))

    def seen(self, step: np.ndarray, worker: np.ndarray | np.intp) -> np.ndarray:
        """Return how many of its samples a worker has seen before a step; (k,) of each."""
        steps, own = self.steps, np.array([len(it) for it in self.samples])
        shift = worker * steps // len(self.samples)
        found: np.ndarray = (step * own[worker] + shift) // steps
        return found

    def sha256(self) -> str:
        """Return a digest by which deals of several processes can be compared."""
        digest = hashlib.sha256()
        for samples in self.samples:
            digest.update(np.append(samples, -1).astype("<i8").data)
        return digest.hexdigest()


def deal(
    labels: np.ndarray, *, workers: int, rule: str, number: float, batch_size: int, seed: int
) -> Deal:
    """Deal out all samples.

    Args:
        labels: (N,) integers, the label of each sample.
        workers: W, at most N.
        rule: a key of ``RULES``.
        number: of the rule.
        batch_size: samples of a step, at most.
        seed: of the draws, and of the order of the epochs.

    Raises:
        ConfigError: if there are fewer samples than workers, or the rule cannot be kept.
    """
    if workers > len(labels):
        raise ConfigError(
            f"{len(labels)} samples for {workers} workers, expected at least one for each"
        )
    rng = np.random.default_rng((seed, _DEAL))
    _, label, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    counts = RULES[rule](sizes, workers, number, rng)
    _fill(counts)
    by_label = np.split(np.argsort(label, kind="stable"), np.cumsum(sizes)[:-1])
    dealt: list[list[np.ndarray]] = [[] for _ in range(workers)]
    for samples, row in zip(by_label, counts, strict=True):
        drawn = np.split(rng.permutation(samples), np.cumsum(row)[:-1])
        for worker in np.flatnonzero(row):
            dealt[worker].append(drawn[worker])
    return Deal(
        tuple(np.sort(np.concatenate(parts)) for parts in dealt),
        tuple(len(parts) for parts in dealt),
        batch_size,
        seed,
    )


def by_label(
    sizes: np.ndarray, workers: int, number: float, rng: np.random.Generator
) -> np.ndarray:
    """Give each worker K labels, and cut a label evenly among the workers that have it.

    A worker takes, at random, K of those that the fewest others have, so of any two labels one has
    at most one worker more. It gets fewer than K where a label has fewer samples than workers.

    Args:
        sizes: (L,) the samples of each label, at least 1.
        workers: W.
        number: K, from ⌈L/W⌉, or some label would be nobody's, to L.
        rng: draws.

    Returns:
        (L, W) the samples of each label that each worker gets.

    Raises:
        ConfigError: if K is out of range.

    Source: label skew as of H. B. McMahan et al., AISTATS 2017 (arXiv:1602.05629), in the form of
    Q. Li, Y. Diao, Q. Chen and B. He, ICDE 2022 (arXiv:2102.02079).
    """
    each, least = int(number), -(-len(sizes) // workers)
    if not least <= each <= len(sizes):
        raise ConfigError(
            f"{each} labels for each of {workers} workers, expected {least} to {len(sizes)}: the "
            f"data has {len(sizes)} labels, and each must be somebody's"
        )
    has = np.zeros((len(sizes), workers), bool)
    for worker in range(workers):
        order = rng.permutation(len(sizes))
        fewest = np.argsort(has[order].sum(axis=1), kind="stable")
        has[order[fewest[:each]], worker] = True
    counts = np.zeros(has.shape, np.intp)
    for row, holders, size in zip(counts, has, sizes, strict=True):
        row[holders] = [span.size for span in even_spans(int(size), int(holders.sum()))]
    return counts


def dirichlet(
    sizes: np.ndarray, workers: int, number: float, rng: np.random.Generator
) -> np.ndarray:
    """Cut each label in proportions of its own, drawn from a Dirichlet distribution.

    With a large A all workers get the same, with a small one a label is nearly one worker's.

    Args:
        sizes: (L,) the samples of each label.
        workers: W.
        number: A, above 0, the concentration: W equal parameters of the distribution.
        rng: draws.

    Returns:
        (L, W) the samples of each label that each worker gets.

    Source: T.-M. H. Hsu, H. Qi and M. Brown, 2019 (arXiv:1909.06335), who draw each worker's
    proportions of labels; drawn by label, as by M. Yurochkin et al., ICML 2019 (arXiv:1905.12022),
    every sample is dealt once.
    """
    counts = np.empty((len(sizes), workers), np.intp)
    for row, size in zip(counts, sizes, strict=True):
        ends = np.rint(np.cumsum(rng.dirichlet(np.full(workers, number))) * size).astype(np.intp)
        ends[-1] = size  # whatever the shares add up to in floating point
        # Each label in an order of its own: rounding would else favour the same workers each time.
        row[rng.permutation(workers)] = np.diff(np.minimum(ends, size), prepend=0)
    return counts


#: By name: (sizes (L,), workers, number, generator) → counts (L, W).
RULES: Final[dict[str, Callable[[np.ndarray, int, float, np.random.Generator], np.ndarray]]] = {
    "by-label": by_label,
    "dirichlet": dirichlet,
}


def _fill(counts: np.ndarray) -> None:
    """Give each worker without samples one of the worker with most, of its most frequent label."""
    total = counts.sum(axis=0)
    for worker in np.flatnonzero(total == 0):
        richest = int(total.argmax())
        label = int(counts[:, richest].argmax())
        counts[label, richest] -= 1
        counts[label, worker] += 1
        total[richest] -= 1
        total[worker] += 1
