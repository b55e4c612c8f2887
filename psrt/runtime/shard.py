"""One shard: its span of the parameters in versions, and what it keeps for its policy's sake."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from psrt.messages import Push
from psrt.optim import StalenessRate, clip_factor
from psrt.runtime.updater import Contribution, Updater
from psrt.transport.port import Vector


class Shard:
    """The numbers of a server. It computes what the policy decided, and counts.

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
        """
        self.buffers = buffers
        self._updater = updater
        self._payload = payload
        self._by_samples = by_samples
        self._rate = rate
        self._clip_norm = clip_norm
        #: Which buffer holds the newest version.
        self.newest = 0
        #: Updates applied.
        self.version = 0
        #: Pushes that were dropped.
        self.dropped = 0
        #: How many applied pushes had staleness τ, at index τ.
        self.histogram: list[int] = []
        #: Whether a gradient by itself is taken as it is.
        self._plain = rate is None and clip_norm is None
        self._kept: Vector | None = None
        self._kept_pushes = 0
        #: What each worker read last, kept only if the rate asks for it.
        self._reads: list[Vector] | None = None
        np.copyto(buffers[0], initial)
        if rate is not None and rate.needs_read:
            self._reads = [initial.copy() for _ in range(workers)]

    @property
    def theta(self) -> Vector:
        """(span,) the newest version."""
        return self.buffers[self.newest]

    def keep(self, push: Push) -> None:
        """Add a gradient to the sum of those that wait while their workers go on."""
        if self._kept is None:
            self._kept = np.empty(self.theta.size, np.float32)
        if not self._kept_pushes:
            self._kept.fill(0.0)
        self._updater.accumulate(self._kept, self._term(push, self._scale(push)), self.theta)
        self._kept_pushes += 1

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
        if self._plain and len(pushes) == 1 and not self._kept_pushes and pushes[0].samples:
            push = pushes[0]
            old, new = self.buffers[self.newest], self.buffers[buffer]
            self._updater.step(old, self._payload(push.worker), new, push.progress, ready)
            self.newest = buffer
        else:
            self._combine(pushes, buffer, ready)
        for push in pushes:
            self._count(self.version - push.version)
        self.version += 1

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

    def drop(self) -> None:
        """Count a push that is not used."""
        self.dropped += 1

    def read_by(self, worker: int) -> None:
        """Note that this worker is sent the newest version."""
        if self._reads is not None:
            np.copyto(self._reads[worker], self.theta)

    def _by_sample_terms(self, pushes: Sequence[Push]) -> list[Contribution]:
        """Return Σ m_i G_i / Σ m_i as terms; nothing where there are no samples at all."""
        total = sum(push.samples for push in pushes)
        return [
            self._term(push, push.samples / total * self._clipping(push))
            for push in pushes
            if push.samples
        ]

    def _equal_terms(self, pushes: Sequence[Push]) -> list[Contribution]:
        """Return (1/quorum) Σ r(τ_l) G_l as terms, the kept ones summed already."""
        share = 1.0 / len(pushes)
        fresh = pushes[self._kept_pushes :]
        terms = [self._term(push, share * self._scale(push)) for push in fresh]
        if self._kept_pushes:
            assert self._kept is not None
            terms.insert(0, Contribution(self._kept, share))
            self._kept_pushes = 0  # the next keep starts the sum again
        return terms

    def _term(self, push: Push, weight: float) -> Contribution:
        read = None if self._reads is None else self._reads[push.worker]
        return Contribution(self._payload(push.worker), weight, read)

    def _scale(self, push: Push) -> float:
        """Return r(τ) times the clipping factor."""
        scale = self._clipping(push)
        if self._rate is not None:
            scale *= self._rate.scale(self.version - push.version)
        return scale

    def _clipping(self, push: Push) -> float:
        return 1.0 if self._clip_norm is None else clip_factor(push.norm, self._clip_norm)

    def _count(self, staleness: int) -> None:
        histogram = self.histogram
        if staleness >= len(histogram):
            histogram += [0] * (staleness + 1 - len(histogram))
        histogram[staleness] += 1
