"""What a worker is between two steps: whether it can be saved there, and what it waits for.

The defaults are those of schemes in which each step is a cut: all workers come there at the same
clock, and nothing is under way.
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
    #: Where workers come to a checkpoint at steps of their own, and no server sees all of them:
    #: called between two steps with the clock, and the step of the newest checkpoint that this
    #: worker was parked for; returns that of the next one, as ``Params.cut``. None costs nothing.
    call: Callable[[int, int], int] | None = None
    #: Whether it goes on without a neighbour that fell silent.
    has_lost: bool = False
    #: Bytes received of messages that will come once more where a run goes on from here.
    early_bytes: int = 0

    @property
    def at_cut(self) -> bool:
        """Whether, between this step and the next, what workers have is one state of the run.

        All workers come there at the same clock, and nothing is under way but what is ``saved``.
        """
        return True

    @property
    def cut(self) -> int:
        """The ``Params.cut`` that this worker is to ``park`` for; 0 for none."""
        return 0

    async def park(self, clock: int, /) -> None:
        """At a clock, wait until all are parked for the checkpoint; read what there is then."""
        return

    async def set_out(self) -> None:
        """Before the first step, wait for what is to be there by then where a run resumes."""
        return

    def go_on(self, clock: int, /) -> None:
        """Go on at a clock from a checkpoint, after what is ``saved`` was restored."""
        return

    def note_left(self, clock: int, /) -> None:
        """Record the end of a worker that had left before the checkpoint it went on from."""
        return
