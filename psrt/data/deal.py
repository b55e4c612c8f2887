"""Partition samples among workers by label, so that their data is non-IID: seeded. Pure.

A rule says how many samples of each label a worker gets; which ones is random. Every sample goes to
one worker, and every worker gets at least one: if the rule gave it none, the worker with most does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.partition import even_spans

#: Keeps the draws of the partition apart from those of the epochs, which begin with the seed, too.
_DEAL: Final = 0x6465616C


@dataclass(frozen=True, slots=True)
class Deal:
    """The samples of each worker."""

    #: By worker: (s,) intp, its samples, ascending; s ≥ 1, and together they are all samples.
    samples: tuple[np.ndarray, ...]
    #: By worker, the number of labels among its samples.
    labels: tuple[int, ...]
    #: The most samples of a step.
    batch_size: int
    #: Of the order of the epochs.
    seed: int

    @classmethod
    def sized(cls, rows: Sequence[tuple[int, int]], batch_size: int) -> Deal:
        """Return a partition that only has sizes, no samples.

        Args:
            rows: by worker, as ``rows`` has them.
            batch_size: the most samples of a step.
        """
        # Takes no memory, whatever sizes a file claims.
        samples = (np.broadcast_to(np.intp(0), size) for size, _ in rows)
        return cls(tuple(samples), tuple(labels for _, labels in rows), batch_size, 0)

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """By worker, the number of its samples, and of the labels among them."""
        return tuple((len(it), count) for it, count in zip(self.samples, self.labels, strict=True))

    @property
    def steps(self) -> int:
        """Steps of an epoch, the same for all workers: those of the worker with most samples."""
        return -(-max(map(len, self.samples)) // self.batch_size)

    def among(self, workers: Sequence[int]) -> Deal:
        """Return the partition among remaining workers, who share the samples of all others.

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

        They are spread evenly over the steps: ``b`` differs by at most one. So at each step a
        worker has its share of the samples of all workers, and a mean weighted by samples is that
        of all data. A worker with fewer samples than steps has none in most steps; workers differ
        in which.
        """
        own = self.samples[worker]
        order = np.random.default_rng((self.seed, epoch, worker + 1)).permutation(own)
        return np.split(order, self.seen(np.arange(1, self.steps), np.intp(worker)))

    def seen(self, step: np.ndarray, worker: np.ndarray | np.intp) -> np.ndarray:
        """Return the number of its samples that a worker has seen before a step; (k,) of each."""
        steps, own = self.steps, np.array([len(it) for it in self.samples])
        shift = worker * steps // len(self.samples)
        found: np.ndarray = (step * own[worker] + shift) // steps
        return found

    def sha256(self) -> str:
        """Return a digest by which the partitions of several processes can be compared."""
        digest = hashlib.sha256()
        for samples in self.samples:
            digest.update(np.append(samples, -1).astype("<i8").data)
        return digest.hexdigest()


def deal(
    labels: np.ndarray, *, workers: int, rule: str, number: float, batch_size: int, seed: int
) -> Deal:
    """Partition all samples.

    Args:
        labels: (N,) integers, the label of each sample.
        workers: W, at most N.
        rule: a key of ``RULES``.
        number: of the rule.
        batch_size: the most samples of a step.
        seed: of the draws, and of the order of the epochs.

    Raises:
        ConfigError: if there are fewer samples than workers, or the rule cannot be followed.
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
    """Give each worker K labels, and split a label evenly among the workers that have it.

    A worker takes, at random, K of the labels with the fewest workers, so the numbers of workers of
    two labels differ by at most one. It gets fewer than K if a label has fewer samples than
    workers.

    Args:
        sizes: (L,) the samples of each label, at least 1.
        workers: W.
        number: K, at most L, and at least ⌈L/W⌉, so that every label has a worker.
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
            f"data has {len(sizes)} labels, and each needs a worker"
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
    """Split each label in its own proportions, drawn from a Dirichlet distribution.

    With a large A all workers get the same, with a small A one worker gets nearly all of a label.

    Args:
        sizes: (L,) the samples of each label.
        workers: W.
        number: A, above 0, the concentration: W equal parameters of the distribution.
        rng: draws.

    Returns:
        (L, W) the samples of each label that each worker gets.

    Source: T.-M. H. Hsu, H. Qi and M. Brown, 2019 (arXiv:1909.06335), who draw each worker's
    proportions of labels. Here proportions are drawn by label, as by M. Yurochkin et al., ICML 2019
    (arXiv:1905.12022), so that every sample goes to one worker.
    """
    counts = np.empty((len(sizes), workers), np.intp)
    for row, size in zip(counts, sizes, strict=True):
        ends = np.rint(np.cumsum(rng.dirichlet(np.full(workers, number))) * size).astype(np.intp)
        ends[-1] = size  # whatever sum the shares have in floating point
        # Workers in random order per label: otherwise rounding would always favour the same ones.
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
