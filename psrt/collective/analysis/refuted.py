"""What a refuted schedule raises: which rank, which step, and why, for people. Pure."""

from __future__ import annotations

from psrt.collective.step import Step
from psrt.errors import PsrtError


class RefutedError(PsrtError):
    """A schedule does not do what it owes; the text says which rank, which step, and why."""

    def __init__(self, rank: int, why: str, index: int | None = None, step: Step | None = None):
        """Tell it.

        Args:
            rank: that is at fault, or the first to notice.
            why: what is wrong.
            index: of the step among the rank's own; None at the end of all.
            step: that one.
        """
        where = "" if step is None else f", step {index} ({in_words(rank, step)})"
        super().__init__(f"rank {rank}{where}: {why}")
        self.rank, self.why, self.index, self.step = rank, why, index, step


def in_words(rank: int, step: Step) -> str:
    """Tell a step of ``rank`` to people.

    >>> from psrt.partition import Span
    >>> in_words(0, Step(1, Span(0, 4), 2, Span(4, 8), True))
    'sends [0, 4) to 1, folds what 2 sends into [4, 8)'
    >>> in_words(0, Step.local(0, Span(4, 8), Span(0, 4), combine=False))
    'copies [4, 8) to [0, 4)'
    """
    send, receive = (f"[{span.start}, {span.stop})" for span in (step.send, step.receive))
    if step.is_local(rank):
        return f"folds {send} into {receive}" if step.combine else f"copies {send} to {receive}"
    words = [] if step.send_to is None else [f"sends {send} to {step.send_to}"]
    if step.receive_from is not None:
        how = "folds" if step.combine else "copies"
        words.append(f"{how} what {step.receive_from} sends into {receive}")
    return ", ".join(words) or "nothing"
