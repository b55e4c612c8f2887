"""The prover: shows that a schedule meets its spec, or where it does not. Pure: no numbers.

``prove`` runs the schedules of all ranks by rendezvous (``rendezvous.py``) on sets of contributions
(``provenance.py``) instead of numbers. If it ends without an error, then for these p and n,

- every rank ends with the contents of the spec, each contribution counted exactly once;
- ranks that end with the same fold bracket it in the same way, so they end with the same bits if
  a + b and b + a have the same bits;
- nothing is sent, folded or copied before it is defined;
- every send has a receive of the same size, and there is no deadlock;
- spans are within bounds, and no span that is being sent is overwritten.

**Limits.** A proof holds for the p and n that were tried. These schedules depend on n only through
their spans, so a few n with empty, ragged and even chunks stand for all; for a new schedule that
has to be checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psrt.collective.analysis.provenance import Flaw, Provenance, Run, joined, own, ranks_text
from psrt.collective.analysis.rendezvous import RankState, ScheduleError, Traffic, run
from psrt.collective.spec import CollectiveSpec, Postcondition
from psrt.collective.step import Step
from psrt.core.errors import ConfigError
from psrt.core.partition import Span


def prove(spec: CollectiveSpec, plan: Sequence[Iterable[Step]]) -> Traffic:
    """Show that ``plan`` meets ``spec``.

    Args:
        spec: the contents that ranks start with and must end with.
        plan: by rank, its steps.

    Returns:
        Its rounds, messages and elements.

    Raises:
        ScheduleError: if it does not meet the spec.
        ConfigError: if the plan is for another number of ranks.

    >>> from psrt.collective import ALGORITHMS
    >>> ring = ALGORITHMS["ring"]
    >>> proof = prove(ring.spec(3, 6), ring.plan(3, 6))
    >>> proof.rounds, proof.messages, proof.sent
    (4, 12, (8, 8, 8))
    >>> prove(ring.spec(2, 2), [steps[:-1] for steps in ring.plan(2, 2)])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    psrt...ScheduleError: rank 0: ends with rank 0 in element 0, owed ranks 0, 1
    """
    if len(plan) != spec.size:
        raise ConfigError(f"steps of {len(plan)} ranks, expected {spec.size}")
    steps = [list(its) for its in plan]
    memory = _Contributions(steps, spec)
    traffic = run(steps, memory, empty_messages=True)
    _check_ends(memory, spec)
    return traffic


class _Contributions:
    """The contents of all ranks, and the rules of a step: nothing undefined may be used."""

    def __init__(self, plan: Sequence[Sequence[Step]], spec: CollectiveSpec) -> None:
        """Check every step by itself, and set up the contents at the start."""
        self._ranks = [_begin(rank, steps, spec) for rank, steps in enumerate(plan)]
        self._arrived: list[Sequence[Run]] = [()] * spec.size
        self._size = spec.size

    def post(self, rank: RankState) -> None:
        """Do nothing: contents change only when a message goes through."""

    def local(self, rank: RankState) -> None:
        """Fold or copy."""
        self._take(rank, self._read(rank))

    def carry(self, sender: RankState, receiver: RankState) -> None:
        """Read the content sent; it is still that before the step, which is not over."""
        self._arrived[receiver.rank] = self._read(sender)

    def end(self, rank: RankState) -> None:
        """Fold or copy the content received."""
        if rank.step.receive_from is not None:
            self._take(rank, self._arrived[rank.rank])

    def owed(self, rank: int, due: Postcondition) -> list[Run]:
        """Return a rank's final content, after a check that it is the one required."""
        span, source = due
        expected = (1 << self._size) - 1 if source is None else 1 << source
        try:
            runs = self._ranks[rank].read(span)
        except Flaw as flaw:
            raise ScheduleError(rank, f"ends where {flaw}, owed {ranks_text(expected)}") from None
        place = span.start
        for length, element, ranks, _ in runs:
            if ranks != expected:
                found = f"ends with {ranks_text(ranks)} in element {element}"
                raise ScheduleError(rank, f"{found}, owed {ranks_text(expected)}")
            if element != place:
                raise ScheduleError(rank, f"ends with element {element} at place {place}")
            place += length
        return joined(runs)

    def _read(self, rank: RankState) -> Sequence[Run]:
        try:
            return self._ranks[rank.rank].read(rank.step.send)
        except Flaw as flaw:
            raise rank.error(f"is to send, but {flaw}") from None

    def _take(self, rank: RankState, runs: Sequence[Run]) -> None:
        step = rank.step
        if not step.combine:
            self._ranks[rank.rank].write(step.receive, runs)
            return
        try:
            self._ranks[rank.rank].fold(step.receive, runs)
        except Flaw as flaw:
            raise rank.error(str(flaw)) from None


def _begin(rank: int, steps: Sequence[Step], spec: CollectiveSpec) -> Provenance:
    """Return the memory at the start, with slots between the ends of all spans used later."""
    has, owed = spec.has[rank], spec.owed[rank]
    cuts = {cut for span in (*has, *(due.span for due in owed)) for cut in span}
    for index, step in enumerate(steps):
        if wrong := _wrong_alone(rank, step, spec):
            raise ScheduleError(rank, wrong, index, step)
        cuts.update(step.send)
        cuts.update(step.receive)
    memory = Provenance(cuts)
    for span in has:
        memory.write(span, [own(rank, span)])
    return memory


def _check_ends(memory: _Contributions, spec: CollectiveSpec) -> None:
    """Check that all ranks end with the required contents, and equal folds with equal bits."""
    folds: dict[Span, tuple[int, list[Run]]] = {}
    for rank, owed in enumerate(spec.owed):
        for due in owed:
            runs = memory.owed(rank, due)
            if due.source is None:
                other, same = folds.setdefault(due.span, (rank, runs))
                if runs != same:
                    why = f"folds {due.span} in another bracketing than rank {other}: other bits"
                    raise ScheduleError(rank, why)


def _wrong_alone(rank: int, step: Step, spec: CollectiveSpec) -> str | None:
    """Return the error of a step of ``rank`` taken by itself, or None."""
    to, (start, stop), source, (first, last), combine = step
    local = to == rank
    if local != (source == rank):
        return "is its own peer on one side only"
    if to is None and source is None:
        return "neither sends nor receives"
    if to is not None:
        if not 0 <= to < spec.size:
            return f"rank {to} is not one of {spec.size}"
        if not (0 <= start <= stop <= spec.n or (local and _in_workspace(step.send, spec))):
            return f"sends from [{start}, {stop}), not within the vector of {spec.n}"
    if source is not None:
        if not 0 <= source < spec.size:
            return f"rank {source} is not one of {spec.size}"
        if not (0 <= first <= last <= spec.n or _in_workspace(step.receive, spec)):
            return f"[{first}, {last}) is in neither the vector of {spec.n} nor the workspace"
        if to is not None and (local or not combine) and start < last and first < stop:
            return "overwrites what is being sent"
    if local and stop - start != last - first:
        return "spans of different size within one rank"
    return None


def _in_workspace(span: Span, spec: CollectiveSpec) -> bool:
    return spec.n <= span.start <= span.stop <= spec.n + spec.workspace
