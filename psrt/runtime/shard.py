"""One shard: its span of the parameters in versions, and what it keeps for its policy's sake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from psrt.arrays import Vector
from psrt.messages import Push
from psrt.optim import StalenessRate, clip_factor
from psrt.runtime.gap import GapMeter
from psrt.runtime.updater import Contribution, Updater
from psrt.stats import Stats


class Note(NamedTuple):
    """What became of one push in an update."""

    #: r(τ), the scalar staleness factor.
    factor: float
    #: ‖θ_now − θ_read‖/√n; −1 where it was not measured.
    gap: float


_PLAIN = Note(1.0, -1.0)


class Shard:
    """The numbers of a server: it computes what the policy decided.

    A version is a buffer. An update may write over the newest version only if nobody reads it any
    more; otherwise the next version goes into a free buffer, so no reader sees a torn vector.
    """

    def __init__(
        self,
        buffers: Sequence[Vector],
        initial: Vector,
        updater: Updater,
        *,
        payload: Callable[[int], Vector],
        workers: int,
        by_samples: bool,
        rate: StalenessRate | None = None,
        clip_norm: float | None = None,
        gaps: bool = False,
    ) -> None:
        """Hold version 0.

        Args:
            buffers: (span,) float32 each, room for versions.
            initial: (span,) the parameters to start from; copied.
            updater: makes the next version.
            payload: tells where the gradient of a worker lies until it is answered.
            workers: W.
            by_samples: whether an update weighs gradients by their samples (rounds) or equally.
            rate: the staleness-aware learning rate; None is constant.
            clip_norm: longest gradient of a worker, l2; None does not clip.
            gaps: whether parameters may have moved between read and update, which is then measured.
        """
        #: Updates applied.
        self.version = 0
        #: What became of each push of the newest update, in the order of their summation.
        self.notes: list[Note] = []
        #: Gaps of pushes that have not been answered, by worker.
        self.fresh_gaps: dict[int, float] = {}
        #: What was counted.
        self.stats = Stats(staleness=[{} for _ in range(workers)])
        self.buffers = buffers
        self._updater = updater
        self._payload = payload
        self._by_samples = by_samples
        self._rate = rate
        self._clip_norm = clip_norm
        #: Which buffer holds the newest version.
        self.newest = 0
        self._gap = GapMeter(initial.size) if gaps else None
        #: Whether a gradient by itself is taken as it is.
        self._plain = rate is None and clip_norm is None
        self._kept: Vector | None = None
        #: Of the pushes that were kept since the last update.
        self._kept_notes: list[Note] = []
        #: What each worker read last, kept only if the rate asks for it.
        self._reads: list[Vector] | None = None
        np.copyto(buffers[0], initial)
        if rate is not None and rate.needs_read:
            self._reads = [initial.copy() for _ in range(workers)]

    @property
    def theta(self) -> Vector:
        """(span,) the newest version."""
        return self.buffers[self.newest]

    @property
    def lr(self) -> float:
        """The learning rate of the newest update."""
        return self._updater.lr

    def keep(self, push: Push) -> None:
        """Add a gradient to the sum of those that wait while their workers go on."""
        if self._kept is None:
            self._kept = np.empty(self.theta.size, np.float32)
        if not self._kept_notes:
            self._kept.fill(0.0)  # now and not after the update, which may still read it
        # No update passes a waiting push by, so the rate and θ are those of its application, too:
        # what is added up here is what the update would have added up.
        note = self._note(push)
        term = self._term(push, note.factor * self._clipping(push))
        self._updater.accumulate(self._kept, term, self.theta)
        self._kept_notes.append(note)

    def apply(
        self,
        pushes: Sequence[Push],
        buffer: int,
        ready: Callable[[int], None] | None = None,
    ) -> None:
        """Make the next version, in ``buffers[buffer]``, out of these pushes and those kept.

        Args:
            pushes: the round or quorum; those that were kept come first.
            buffer: the newest version's own if nobody reads it, else a free one.
            ready: called with the number of elements that are there, where the span has several
                blocks.
        """
        if self._plain and len(pushes) == 1 and not self._kept_notes and pushes[0].samples:
            # The usual push of async: no sum, no copy, the optimizer reads the gradient where it
            # lies.
            push = pushes[0]
            self.notes = [_PLAIN if self._gap is None else self._note(push)]
            old, new = self.buffers[self.newest], self.buffers[buffer]
            self._updater.step(old, self._payload(push.worker), new, push.progress, ready)
            self.newest = buffer
        else:
            self._combine(pushes, buffer, ready)
        self.count(pushes)

    def count(self, pushes: Sequence[Push]) -> None:
        """Count an update that these pushes made: the next version."""
        version, by_worker = self.version, self.stats.staleness
        for push in pushes:
            found, staleness = by_worker[push.worker], version - push.version
            found[staleness] = found.get(staleness, 0) + 1
        self.version = version + 1

    def _combine(
        self, pushes: Sequence[Push], buffer: int, ready: Callable[[int], None] | None
    ) -> None:
        terms = self._by_sample_terms(pushes) if self._by_samples else self._equal_terms(pushes)
        if terms:
            # The mean, as in an all-reduce; to the bit where all are at the same point.
            progress = pushes[0].progress
            if any(push.progress != progress for push in pushes):
                progress = sum(push.progress for push in pushes) / len(pushes)
            out = self.buffers[buffer]
            self._updater.apply(self.theta, terms, out, progress=progress, ready=ready)
            self.newest = buffer

    def forget(self, worker: int) -> None:
        """Note that this worker has left."""
        if self._gap is not None:
            self._gap.forget(worker)

    def read_by(self, worker: int) -> None:
        """Note that this worker is sent the newest version."""
        # Copied at the answer, not at the push: by then the buffer of that version is another
        # one's.
        if self._gap is not None:
            self._gap.read_by(worker, self.version, self.theta)
        if self._reads is not None:
            np.copyto(self._reads[worker], self.theta)

    def _by_sample_terms(self, pushes: Sequence[Push]) -> list[Contribution]:
        """Return Σ m_i G_i / Σ m_i as terms; nothing where there are no samples at all."""
        self.notes = [_PLAIN] * len(pushes)
        # The divisor is what was really there, so uneven last batches and workers without data
        # change nothing; all pushes of a round are of its version, so no rate has anything to say.
        total = sum(push.samples for push in pushes)
        return [
            self._term(push, push.samples / total * self._clipping(push))
            for push in pushes
            if push.samples
        ]

    def _equal_terms(self, pushes: Sequence[Push]) -> list[Contribution]:
        """Return (1/quorum) Σ r(τ_l) G_l as terms, the kept ones summed already."""
        share = 1.0 / len(pushes)
        kept, self._kept_notes = self._kept_notes, []  # the next keep starts the sum again
        # Those that were kept come first: a push waits in the order of arrival, and is kept if the
        # next one did not complete the quorum.
        fresh = pushes[len(kept) :]
        notes = [self._note(push) for push in fresh]
        terms = [
            self._term(push, share * (note.factor * self._clipping(push)))
            for push, note in zip(fresh, notes, strict=True)
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
        """Weigh a push that is about to be used; once for each, for a rate may remember it."""
        # The gap is of parameters right before the update, and of one push at a time: see GapMeter.
        gap = -1.0
        if self._gap is not None:
            gap = self._gap.measure(push.worker, push.version, self.theta)
            if gap >= 0.0:
                count, total, largest = self.stats.gaps
                self.stats.gaps = count + 1, total + gap, max(largest, gap)
                self.fresh_gaps[push.worker] = gap
        factor = 1.0 if self._rate is None else self._rate.scale(self.version - push.version)
        return Note(factor, gap)

    def _clipping(self, push: Push) -> float:
        return 1.0 if self._clip_norm is None else clip_factor(push.norm, self._clip_norm)
