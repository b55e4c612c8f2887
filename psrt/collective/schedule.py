"""What a row of the registry says of a collective: its steps, its price, its promises. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from psrt.collective import spec
from psrt.collective.costs import ClosedForm, LinkCosts
from psrt.collective.spec import CollectiveSpec
from psrt.collective.step import Step
from psrt.errors import ConfigError

#: p ≥ 2 → the bytes that some rank must at least send or receive, and combine, as shares of n.
Least = Callable[[int], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A collective as data: what each rank does, and what it must come to.

    Calling it yields the steps of one rank, whether it has a root or not.

    >>> from psrt.collective.registry import PHASES
    >>> [step.receive_from for step in PHASES["reduce"](1, 3, 10, root=1)]
    [2, 0]
    """

    #: Its key, and how users call it.
    name: str
    #: ``(rank, size, n)``, and ``root`` behind it if ``rooted`` → what ``rank`` does, in order.
    steps: Callable[..., Iterator[Step]]
    #: One line for people.
    summary: str
    #: ``(size, n, root)`` → what the steps must do.
    specify: Callable[[int, int, int], CollectiveSpec] = field(kw_only=True)
    #: What no schedule of this kind can undercut; ``psrt.explain.totals`` derives it.
    least: Least = field(kw_only=True)
    #: Whether one rank, any, is the only source or destination.
    rooted: bool = field(default=False, kw_only=True)

    @property
    def kind(self) -> str:
        """What it does, which for all but the all-reduces is its name."""
        return self.name

    def __call__(self, rank: int, size: int, n: int, root: int = 0) -> Iterator[Step]:
        """Yield what ``rank`` of ``size`` does, in order, on ``n`` elements.

        Raises:
            ConfigError: if ``root`` is no rank, or given where there is none.
        """
        self._check(size, root)
        return self.steps(rank, size, n, root) if self.rooted else self.steps(rank, size, n)

    def plan(self, size: int, n: int, root: int = 0) -> list[list[Step]]:
        """Return the steps of all ranks."""
        return [list(self(rank, size, n, root)) for rank in range(size)]

    def spec(self, size: int, n: int, root: int = 0) -> CollectiveSpec:
        """Return what the plan must do."""
        self._check(size, root)
        return self.specify(size, n, root)

    def _check(self, size: int, root: int) -> None:
        if root and not self.rooted:
            raise ConfigError(f"{self.name} has no root, got rank {root}")
        if not 0 <= root < size:
            raise ConfigError(f"root {root} of {self.name} is none of {size} ranks")


def _no_workspace(size: int, n: int) -> int:
    return 0


def _least_of_all_reduce(p: int) -> tuple[float, float]:
    return 2 * (p - 1) / p, (p - 1) / p


@dataclass(frozen=True, slots=True)
class Algorithm(Schedule):
    """An all-reduce, and what its executor and its price must know of it.

    >>> from psrt.collective.registry import ALGORITHMS
    >>> len(list(ALGORITHMS["ring"](0, 4, 100)))
    6
    """

    specify: Callable[[int, int, int], CollectiveSpec] = field(
        default=spec.all_reduce, kw_only=True
    )
    least: Least = field(default=_least_of_all_reduce, kw_only=True)
    #: What it costs, beside its steps in the schedule's file.
    closed_form: ClosedForm = field(kw_only=True)
    #: Whether the closed form is an upper bound and not what the clocks of `price` read.
    bounded: bool = field(default=False, kw_only=True)
    #: Whether all ranks of a host talk to other hosts at once, and so share the host's wire; in a
    #: ring and in the trees about one of them does, as the ranks of a host follow each other.
    shares_link: bool = field(default=False, kw_only=True)
    #: Whether it is written so that an executor may fold one step's receipt while the next one's
    #: bytes travel.
    overlaps: bool = field(default=False, kw_only=True)
    #: Whether its steps take the ``order`` in which the ranks stand.
    ordered: bool = field(default=False, kw_only=True)
    #: ``(size, n)`` → elements that must be there behind the vector.
    workspace: Callable[[int, int], int] = field(default=_no_workspace, kw_only=True)

    @property
    def kind(self) -> str:
        """What it does."""
        return "all-reduce"

    def spec(self, size: int, n: int, root: int = 0) -> CollectiveSpec:
        """Return what the plan must do."""
        self._check(size, root)
        return spec.all_reduce(size, n, workspace=self.workspace(size, n))

    def seconds(self, size: int, nbytes: float, costs: LinkCosts, *, itemsize: int = 4) -> float:
        """Return what it takes, in closed form.

        Args:
            size: ranks, p ≥ 1.
            nbytes: bytes of the vector; none take no time, since empty messages are left out.
            costs: of the machine.
            itemsize: bytes of an element, which the number of segments and blocks depends on.

        >>> from psrt.collective.registry import ALGORITHMS
        >>> ALGORITHMS["ring"].seconds(4, 1000, LinkCosts(alpha=1.0, beta=0.01, gamma=0.002))
        22.5
        """
        if size == 1 or nbytes == 0:
            return 0.0
        return self.closed_form(size, nbytes, costs, itemsize)
