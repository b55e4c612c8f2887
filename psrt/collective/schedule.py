"""The row of a collective in the registry: its steps, its price, its guarantees. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from psrt.collective import spec
from psrt.collective.costs import ClosedForm, LinkCosts
from psrt.collective.spec import CollectiveSpec
from psrt.collective.step import Step
from psrt.core.errors import ConfigError
from psrt.core.partition import Span
from psrt.core.ways import Way

#: p ≥ 2 → lower bounds of the bytes that some rank sends or receives, and of those it combines, as
#: fractions of n.
Least = Callable[[int], tuple[float, float]]


def _never(size: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Schedule:
    """A collective as data: the steps of each rank, and the result required of them.

    Calling it yields the steps of one rank.

    >>> from psrt.collective.registry import PHASES
    >>> [step.receive_from for step in PHASES["reduce"](1, 3, 10, root=1)]
    [2, 0]
    """

    #: Its key, and its name for users.
    name: str
    #: ``(rank, size, n)``, followed by ``root`` if ``rooted`` → the steps of ``rank``, in order.
    steps: Callable[..., Iterator[Step]]
    #: One line for the help text.
    summary: str
    #: ``(size, n, root)`` → the result required of the steps.
    specify: Callable[[int, int, int], CollectiveSpec] = field(kw_only=True)
    #: Lower bounds of every schedule of this kind; ``psrt.views.explain.explanation`` derives them.
    least: Least = field(kw_only=True)
    #: Whether any one rank, the root, is the only source or destination.
    rooted: bool = field(default=False, kw_only=True)
    #: Number of ranks → whether (nearly) all ranks send and receive in all rounds. Then no rank may
    #: wait for an answer of a rank that is busy sending: see ``psrt.mpi.links.pieces``. Elsewhere
    #: messages are announced: early ones would take the link from those that a rank waits for.
    busy: Callable[[int], bool] = field(default=_never, kw_only=True)

    @property
    def kind(self) -> str:
        """Name of the collective; the same as ``name`` except for all-reduces."""
        return self.name

    def __call__(self, rank: int, size: int, n: int, root: int = 0) -> Iterator[Step]:
        """Yield the steps of one rank, in order.

        Args:
            rank: from 0 to ``size`` - 1.
            size: number of ranks, ≥ 1.
            n: number of elements of the vector, ≥ 0.
            root: the root's rank; None takes rank 0 if the collective has a root.

        Raises:
            ConfigError: if ``root`` is not a rank, or the collective has no root.
        """
        self._check(size, root)
        return self.steps(rank, size, n, root) if self.rooted else self.steps(rank, size, n)

    def plan(self, size: int, n: int, root: int = 0) -> list[list[Step]]:
        """Return the steps of all ranks; the arguments are those of a call."""
        return [list(self(rank, size, n, root)) for rank in range(size)]

    def spec(self, size: int, n: int, root: int = 0) -> CollectiveSpec:
        """Return what the plan must do."""
        self._check(size, root)
        return self.specify(size, n, root)

    def _check(self, size: int, root: int) -> None:
        if root and not self.rooted:
            raise ConfigError(f"{self.name} has no root, got rank {root}")
        if not 0 <= root < size:
            raise ConfigError(f"root {root} of {self.name} is not one of {size} ranks")


def _no_workspace(size: int, n: int) -> int:
    return 0


def _least_of_all_reduce(p: int) -> tuple[float, float]:
    return 2 * (p - 1) / p, (p - 1) / p


@dataclass(frozen=True, slots=True)
class Algorithm(Schedule):
    """An all-reduce, with the properties that its executor and its price depend on.

    >>> from psrt.collective.registry import ALGORITHMS
    >>> len(list(ALGORITHMS["ring"](0, 4, 100)))
    6
    """

    specify: Callable[[int, int, int], CollectiveSpec] = field(
        default=spec.all_reduce, kw_only=True
    )
    least: Least = field(default=_least_of_all_reduce, kw_only=True)
    #: Its cost in closed form, derived in the schedule's file.
    closed_form: ClosedForm = field(kw_only=True)
    #: Whether the closed form is an upper bound of `price`, instead of equal to it.
    bounded: bool = field(default=False, kw_only=True)
    #: Whether all ranks of a host send to other hosts at the same time and so share the host's
    #: wire; in a ring and in trees about one does, since the ranks of a host are consecutive.
    shares_link: bool = field(default=False, kw_only=True)
    #: Whether an executor may fold the bytes received in one step while those of the next travel.
    overlaps: bool = field(default=False, kw_only=True)
    #: Whether its steps take an ``order`` of the ranks.
    ordered: bool = field(default=False, kw_only=True)
    #: The ways in which it sums a codec's frames; the first one that the codec has, too, is taken.
    #: In ``TWO_PHASES`` each number must travel once as it is, to the rank that folds it, and once
    #: folded (``psrt.transport.two_phase_sum``). In ``GATHERED`` it travels only as it is, to all
    #: (``psrt.transport.gathered_sum``).
    ways: tuple[Way, ...] = field(default=(Way.STRAIGHT,), kw_only=True)
    #: ``(size, n)`` → number of elements of workspace behind the vector.
    workspace: Callable[[int, int], int] = field(default=_no_workspace, kw_only=True)
    #: ``(rank, size, n)`` → the part whose sums a rank finishes. Only if every sum is finished, by
    #: one rank, before any sum is passed on: see ``halves``. None elsewhere.
    owned: Callable[[int, int, int], Span] | None = field(default=None, kw_only=True)

    @property
    def kind(self) -> str:
        """Name of the collective."""
        return "all-reduce"

    def spec(self, size: int, n: int, root: int = 0) -> CollectiveSpec:
        """Return what the plan must do."""
        self._check(size, root)
        return spec.all_reduce(size, n, workspace=self.workspace(size, n))

    def halves(self, rank: int, size: int, n: int) -> tuple[list[Step], list[Step]]:
        """Return the steps of a reduce-scatter to the owners, and of the all-gather that follows.

        Together they are the all-reduce. Between the two an owner may replace its sums by something
        else, such as the parameters that an optimizer makes of them. Only with ``owned``.

        >>> from psrt.collective.registry import ALGORITHMS
        >>> [len(half) for half in ALGORITHMS["ring"].halves(0, 4, 100)]
        [3, 3]
        """
        assert self.owned is not None, f"{self.name} has no halves"
        steps = list(self(rank, size, n))
        folded = 1 + max((i for i, step in enumerate(steps) if step.combine), default=-1)
        return steps[:folded], steps[folded:]

    def seconds(self, size: int, nbytes: float, costs: LinkCosts, *, itemsize: int = 4) -> float:
        """Return the time that it takes, in closed form, in seconds.

        Args:
            size: number of ranks, p ≥ 1.
            nbytes: bytes of the vector; 0 takes no time, since empty messages are left out.
            costs: α, β and γ of every message.
            itemsize: bytes of an element, on which the number of segments and blocks depends.

        >>> from psrt.collective.registry import ALGORITHMS
        >>> ALGORITHMS["ring"].seconds(4, 1000, LinkCosts(alpha=1.0, beta=0.01, gamma=0.002))
        22.5
        """
        if size == 1 or nbytes == 0:
            return 0.0
        return self.closed_form(size, nbytes, costs, itemsize)
