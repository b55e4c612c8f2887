"""Streaming local SGD: when each fragment is sent; ``psrt.core.partition`` has its layers. Pure.

A period of H steps averages the whole model, one fragment at a time: fragment f of F after the step
⌈(f + 1)·H/F⌉ of the period, so that the last fragment ends it. Each message has 1/F of the model;
a period sends as many bytes as without fragments.

Source: Douillard et al., "Streaming DiLoCo with Overlapping Communication", 2025, arXiv:2501.18512.
"""

from __future__ import annotations

from typing import NamedTuple


class FragmentPeriod(NamedTuple):
    """When fragments are sent and when they arrive, counted in steps of one worker.

    >>> period = FragmentPeriod(local_steps=8, fragments=3)
    >>> [period.due(step) for step in range(1, 9)]
    [None, None, 0, None, None, 1, None, 2]
    """

    #: H, steps of a period.
    local_steps: int
    #: F, at most H: a step sends one fragment or none.
    fragments: int = 1
    #: T, steps from the sending of a fragment to its arrival, at most H.
    delay: int = 0
    #: The epoch until which H = 1: each step averages the whole model, and nothing is delayed.
    post_local_epoch: float = 0.0

    def due(self, step: int) -> int | None:
        """Return the fragment that is sent after a step of a period, None for none.

        Args:
            step: of the period, from 1 to H.
        """
        # If ⌈(f + 1)·H/F⌉ = step for any f, then f + 1 = ⌊step·F/H⌋: with g = f + 1,
        # g·H/F ≤ step gives g ≤ step·F/H, and step < g·H/F + 1 gives g > step·F/H − F/H ≥
        # step·F/H − 1, since F ≤ H.
        count = step * self.fragments // self.local_steps
        before = (step - 1) * self.fragments // self.local_steps
        return count - 1 if count > before else None

    def is_early(self, progress: float) -> bool:
        """Return whether a step is before the epoch until which H = 1.

        Args:
            progress: epochs finished before this step.
        """
        return progress < self.post_local_epoch
