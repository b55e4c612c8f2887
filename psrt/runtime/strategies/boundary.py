"""The state of a worker between two steps: whether it can be saved, and what it waits for.

The defaults are those of schemes in which each step is a cut: all workers reach it at the same
clock, and nothing is in flight.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, Protocol


class Boundary(Protocol):
    """A scheme, as far as checkpoints go; clocks are averages where workers train alone."""

    #: What a checkpoint keeps, see ``psrt.checkpoint.state``.
    saved: ClassVar[tuple[str, ...]] = ()
    by_element: ClassVar[tuple[str, ...]] = ()
    #: Called with the clock of those that train, after each round that this worker joins when it is
    #: done itself: its state is part of a cut then, too. None costs nothing.
    at_round: Callable[[int], Awaitable[object]] | None = None
    #: If workers reach a checkpoint at different steps, and no server sees all of them: called
    #: between two steps with the clock and the step of the newest checkpoint that this worker was
    #: parked for; returns that of the next one, as ``Params.cut``. None costs nothing.
    call: Callable[[int, int], int] | None = None
    #: Whether it has continued without a neighbour that stopped responding.
    has_lost: bool = False
    #: Bytes of received messages that will be sent again if a run resumes from here.
    early_bytes: int = 0

    @property
    def at_cut(self) -> bool:
        """Whether, between this step and the next, what workers have is one state of the run.

        All workers reach it at the same clock, and nothing is in flight except what is ``saved``.
        """
        return True

    @property
    def cut(self) -> int:
        """The ``Params.cut`` that this worker must ``park`` for; 0 for none."""
        return 0

    async def park(self, clock: int, /) -> None:
        """At a clock, wait until all are parked for the checkpoint; then read the parameters."""
        return

    async def set_out(self) -> None:
        """Before the first step of a resumed run, wait for what must have arrived by then."""
        return

    def go_on(self, clock: int, /) -> None:
        """Resume at a clock from a checkpoint, after what is ``saved`` was restored."""
        return

    def note_left(self, clock: int, /) -> None:
        """Record the end of a worker that had left before the checkpoint of the resumed run."""
        return
