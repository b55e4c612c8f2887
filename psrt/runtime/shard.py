"""One shard: the versions of its span of the parameters, and the gradients saved for its policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.errors import CheckpointError
from psrt.core.messages import Push
from psrt.history.folds.shard import ShardFold
from psrt.optim import StalenessRate
from psrt.runtime.elastic import CentreUpdater, ForceSums
from psrt.runtime.gap import GapMeter
from psrt.runtime.updater import Contribution, Updater
from psrt.runtime.watched import WatchedUpdater


class Note(NamedTuple):
    """The scalar factors of one push in an update."""

    #: r(τ), the scalar staleness factor.
    factor: float
    #: ‖θ_now − θ_read‖/√n; −1 if it was not measured.
    gap: float


_PLAIN = Note(1.0, -1.0)


class Shard:
    """The parameters of a server: computes the updates that the policy decides.

    Each version is in a buffer. An update may overwrite the newest version only if no worker reads
    it any more. Otherwise the next version goes into a free buffer, so no reader sees a torn
    vector.
    """

    saved = ("version", "counts", "_updater", "_rate", "_gap", "_reads", "_owed", "_owed_notes")
    by_element = ("_reads", "_owed")
    per_worker = ("_reads",)

    def __init__(
        self,
        buffers: Sequence[Vector],
        initial: Vector,
        updater: Updater,
        *,
        payload: Callable[[int], Vector],
        workers: int,
        by_samples: bool,
        whole: bool = False,
        weigh: Callable[[Push], float] | None = None,
        keeps_reads: bool = False,
        rate: StalenessRate | None = None,
        gaps: bool = False,
    ) -> None:
        """Hold version 0.

        Args:
            buffers: (span,) float32 each, the memory of the versions.
            initial: (span,) float32, the initial parameters; copied.
            updater: makes the next version.
            payload: worker → its gradient (span,), valid until the worker is answered.
            workers: W.
            by_samples: whether an update weights gradients by their samples (rounds) or equally.
            whole: whether it gives each the weight 1 instead.
            weigh: returns the weight of a push in a weighted mean instead.
            keeps_reads: whether the updater needs what each worker read last, as some rates do.
            rate: the staleness-aware learning rate; None for a constant one.
            gaps: whether to measure how far parameters move between read and update.
        """
        #: Updates applied.
        self.version = 0
        #: The factors of each push of the newest update, in the order of summation.
        self.notes: list[Note] = []
        #: Gaps of pushes that have not been answered, by worker.
        self.fresh_gaps: dict[int, float] = {}
        #: The counters of the shard.
        self.counts = ShardFold(workers)
        self.buffers = buffers
        self._updater = updater
        self._payload = payload
        self._by_samples, self._whole, self._weigh = by_samples, whole, weigh
        self._rate = rate
        #: Index of the buffer with the newest version.
        self.newest = 0
        self._gap = GapMeter(initial.size) if gaps else None
        #: Whether a single gradient is applied unscaled.
        self._plain = rate is None and not keeps_reads
        self._kept: Vector | None = None
        #: The notes of the pushes saved since the last update.
        self._kept_notes: list[Note] = []
        #: The parameters that each worker read last, kept only if the rate needs them.
        self._reads: list[Vector] | None = None
        np.copyto(buffers[0], initial)
        if keeps_reads or (rate is not None and rate.needs_read):
            self._reads = [initial.copy() for _ in range(workers)]

    @property
    def _owed(self) -> Vector | None:
        """(span,) the sum of the pushes saved since the last update; None if there are none."""
        return self._kept if self._kept_notes else None

    @_owed.setter
    def _owed(self, total: Vector | None) -> None:
        self._kept = total

    @property
    def _owed_notes(self) -> tuple[float, ...]:
        """Their notes, field by field."""
        return tuple(field for note in self._kept_notes for field in note)

    @_owed_notes.setter
    def _owed_notes(self, fields: tuple[float, ...]) -> None:
        rows = [fields[i : i + len(_PLAIN)] for i in range(0, len(fields), len(_PLAIN))]
        if rows and len(rows[-1]) != len(_PLAIN):
            raise CheckpointError(f"notes of a shard's sum are invalid: {fields}")
        self._kept_notes = [Note(*row) for row in rows]

    @property
    def saved_gradients(self) -> int:
        """The number of gradients in the sum that the next update begins with."""
        return len(self._kept_notes)

    @property
    def theta(self) -> Vector:
        """(span,) the newest version."""
        return self.buffers[self.newest]

    @property
    def force_sums(self) -> ForceSums | None:
        """What the newest update did, if the updater moves a centre or merges, and records it."""
        updater = self._updater
        if isinstance(updater, WatchedUpdater):
            return updater.sums
        return updater.sums if isinstance(updater, CentreUpdater) and updater.watches else None

    @property
    def lr(self) -> float:
        """The learning rate of the newest update."""
        return self._updater.lr

    def keep(self, push: Push) -> None:
        """Add a gradient to the sum of those saved while their workers continue."""
        if self._kept is None:
            self._kept = np.empty(self.theta.size, np.float32)
        if not self._kept_notes:
            self._kept.fill(0.0)  # now, not after the update, which may still read it
        # Every update takes all pending pushes, so version, rate and θ do not change before this
        # push's own update: the saved sum is the one that the update would have computed.
        note = self._note(push)
        self._updater.accumulate(self._kept, self._term(push, note.factor), self.theta)
        self._kept_notes.append(note)

    def apply(self, pushes: Sequence[Push], buffer: int) -> None:
        """Write the next version into ``buffers[buffer]``.

        Args:
            pushes: the round or quorum, the saved ones first.
            buffer: one without readers; it may be that of the newest version.
        """
        if self._plain and len(pushes) == 1 and not self._kept_notes and pushes[0].samples:
            # The usual case of async: no sum and no copy, the optimizer reads the worker's memory.
            push = pushes[0]
            self.notes = [_PLAIN if self._gap is None else self._note(push)]
            old, new = self.buffers[self.newest], self.buffers[buffer]
            self._updater.step(old, self._payload(push.worker), new, push.progress)
            self.newest = buffer
        else:
            self._combine(pushes, buffer)
        self.count(pushes)

    def count(self, pushes: Sequence[Push]) -> None:
        """Count the staleness of an update's pushes, and its version."""
        # τ relative to the version on arrival, so before the version is raised.
        version, applied = self.version, self.counts.applied
        for push in pushes:
            applied(push.worker, version - push.version)
        self.version = version + 1

    def _combine(self, pushes: Sequence[Push], buffer: int) -> None:
        if self._whole:
            terms = self._whole_terms(pushes)
        elif self._weigh is not None:
            terms = self._weighted_terms(pushes, self._weigh)
        else:
            terms = self._by_sample_terms(pushes) if self._by_samples else self._equal_terms(pushes)
        if terms:
            # The mean, as in an all-reduce; exact if all are at the same point.
            progress = pushes[0].progress
            if any(push.progress != progress for push in pushes):
                progress = sum(push.progress for push in pushes) / len(pushes)
            out = self.buffers[buffer]
            self._updater.apply(self.theta, terms, out, progress=progress)
            self.newest = buffer

    def forget(self, worker: int) -> None:
        """Drop the measurement of a worker that has left."""
        if self._gap is not None:
            self._gap.forget(worker)

    def read_by(self, worker: int, read: Vector | None = None) -> None:
        """Remember what this worker reads: the newest version, or what its frame decodes to."""
        theta = self.theta if read is None else read
        # Copied at the reply, not at the next push: by then the buffer may hold another version.
        if self._gap is not None:
            self._gap.read_by(worker, self.version, theta)
        if self._reads is not None:
            np.copyto(self._reads[worker], theta)

    def _by_sample_terms(self, pushes: Sequence[Push]) -> list[Contribution]:
        """Return the terms of Σ m_i G_i / Σ m_i; none if there are no samples at all."""
        self.notes = [_PLAIN] * len(pushes)
        # Dividing by the samples present keeps the mean right for uneven last batches and for
        # workers without data. All pushes of a round have τ = 0, so no staleness rate applies.
        total = sum(push.samples for push in pushes)
        return [self._term(push, push.samples / total) for push in pushes if push.samples]

    def _weighted_terms(
        self, pushes: Sequence[Push], weigh: Callable[[Push], float]
    ) -> list[Contribution]:
        """Return the terms of Σ w_i r(τ_i) Δ_i / Σ w_i, of pushes that have samples.

        The rate scales a difference, not its weight: of a merge of one learner, or of several that
        are equally stale, it would cancel.
        """
        self.notes = [self._note(push) for push in pushes]
        weights = [weigh(push) if push.samples else 0.0 for push in pushes]
        total = math.fsum(weights)
        return [
            self._term(push, weight / total * note.factor)
            for push, weight, note in zip(pushes, weights, self.notes, strict=True)
            if push.samples
        ]

    def _whole_terms(self, pushes: Sequence[Push]) -> list[Contribution]:
        """Return the terms of the sum over pushes that have samples."""
        self.notes = [self._note(push) for push in pushes]
        return [self._term(push, 1.0) for push in pushes if push.samples]

    def _equal_terms(self, pushes: Sequence[Push]) -> list[Contribution]:
        """Return the terms of (1/quorum) Σ r(τ_l) G_l, with the saved ones already summed."""
        share = 1.0 / len(pushes)
        kept, self._kept_notes = self._kept_notes, []  # the next keep starts the sum again
        # The saved pushes come first: pending pushes are in order of arrival, and one is saved
        # unless it completes the quorum.
        fresh = pushes[len(kept) :]
        notes = [self._note(push) for push in fresh]
        terms = [
            self._term(push, share * note.factor) for push, note in zip(fresh, notes, strict=True)
        ]
        if kept:
            assert self._kept is not None
            terms.insert(0, Contribution(self._kept, share))
        self.notes = kept + notes
        return terms

    def _term(self, push: Push, weight: float) -> Contribution:
        read = None if self._reads is None else self._reads[push.worker]
        return Contribution(self._payload(push.worker), weight, read)

    def _note(self, push: Push) -> Note:
        """Compute the factors of a push; exactly once each, since a rate may keep state."""
        # The gap compares θ right before the update; GapMeter follows one push at a time.
        gap = -1.0
        if self._gap is not None:
            gap = self._gap.measure(push.worker, push.version, self.theta)
            if gap >= 0.0:
                self.counts.moved(gap)
                self.fresh_gaps[push.worker] = gap
        factor = 1.0 if self._rate is None else self._rate.scale(self.version - push.version)
        return Note(factor, gap)
