"""Every collective, one row each: a new all-reduce is one file with its schedule and one row here.

``ALGORITHMS[name](rank, size, n)`` yields what ``rank`` does, in order, to all-reduce ``n``
elements among ``size`` ranks; ``PHASES[name](rank, size, n, root)`` does so for the collectives
that an all-reduce is composed of. All code that uses schedules by name reads this registry: flags
and their help, the choice of ``auto``, prices, explanations, plots, tests.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from psrt.collective import spec
from psrt.collective.schedule import Algorithm, Schedule
from psrt.collective.schedules.all_gather import all_gather_steps
from psrt.collective.schedules.all_pairs import (
    all_pairs_seconds,
    all_pairs_steps,
    all_pairs_workspace,
)
from psrt.collective.schedules.all_to_all import all_to_all_steps
from psrt.collective.schedules.binary_blocks import binary_block_steps, binary_blocks_seconds
from psrt.collective.schedules.broadcast import broadcast_steps
from psrt.collective.schedules.butterfly import butterfly_seconds, butterfly_steps
from psrt.collective.schedules.double_tree import double_tree_seconds, double_tree_steps
from psrt.collective.schedules.gather import gather_steps
from psrt.collective.schedules.halving_doubling import (
    halving_doubling_seconds,
    halving_doubling_steps,
)
from psrt.collective.schedules.naive import naive_seconds, naive_steps, naive_workspace
from psrt.collective.schedules.reduce import reduce_steps
from psrt.collective.schedules.reduce_scatter import reduce_scatter_steps
from psrt.collective.schedules.ring import ring_owned, ring_seconds, ring_steps
from psrt.collective.schedules.root import root_seconds, root_steps
from psrt.collective.schedules.scatter import scatter_steps
from psrt.collective.schedules.segmented_ring import segmented_ring_seconds, segmented_ring_steps
from psrt.collective.schedules.tree import tree_seconds, tree_steps
from psrt.core.partition import Span
from psrt.core.ways import Way
from psrt.rows.registry import Registry
from psrt.rows.values import AUTO as AUTO


def _always(size: int) -> bool:
    return True


#: By name. On a tie ``auto`` prefers the first, and plots choose colours by position.
ALGORITHMS: Final = Registry(
    "all-reduce",
    "psrt.all_reduces",
    Algorithm,
    (
        Algorithm(
            "butterfly",
            butterfly_steps,
            "recursive doubling; fewest rounds; short vectors",
            closed_form=butterfly_seconds,
            shares_link=True,
        ),
        Algorithm(
            "halving-doubling",
            halving_doubling_steps,
            "sends the least in few rounds where p is a power of two; else folds to one first",
            closed_form=halving_doubling_seconds,
            shares_link=True,
            busy=lambda p: p.bit_count() == 1,
        ),
        Algorithm(
            "ring",
            ring_steps,
            "chunks go around twice; sends the least; long vectors",
            closed_form=ring_seconds,
            ordered=True,
            owned=ring_owned,
            busy=_always,
        ),
        Algorithm(
            "segmented-ring",
            segmented_ring_steps,
            "a ring in segments, folded while others travel; very long vectors",
            closed_form=segmented_ring_seconds,
            overlaps=True,
            busy=_always,
        ),
        Algorithm(
            "tree",
            tree_steps,
            "binomial reduce and broadcast; short vectors, any p",
            closed_form=tree_seconds,
        ),
        Algorithm(
            "double-tree",
            double_tree_steps,
            "two binary trees at once, pipelined; long vectors on many ranks",
            closed_form=double_tree_seconds,
            bounded=True,
            overlaps=True,
        ),
        Algorithm(
            "halving-doubling-blocks",
            binary_block_steps,
            "halving-doubling in blocks of powers of two; medium and long vectors, even p",
            closed_form=binary_blocks_seconds,
            shares_link=True,
            busy=_always,
        ),
        Algorithm(
            "all-pairs",
            all_pairs_steps,
            "each chunk straight to its owner and back; sends the least; with codecs, too",
            closed_form=all_pairs_seconds,
            shares_link=True,
            ways=(Way.TWO_PHASES,),
            workspace=all_pairs_workspace,
            busy=_always,
        ),
        Algorithm(
            "naive",
            naive_steps,
            "all send all to all and fold in rank order; the baseline",
            closed_form=naive_seconds,
            shares_link=True,
            ways=(Way.GATHERED,),
            workspace=naive_workspace,
            busy=_always,
        ),
        Algorithm(
            "root",
            root_steps,
            "rank 0 receives all, one by one, and sends the sum back",
            closed_form=root_seconds,
        ),
    ),
)

#: By name: the collectives that an all-reduce is composed of, and related ones.
PHASES: dict[str, Schedule] = {
    phase.name: phase
    for phase in (
        Schedule(
            "reduce-scatter",
            reduce_scatter_steps,
            "rank r ends with the fold of chunk r; around a ring",
            specify=spec.reduce_scatter,
            least=lambda p: ((p - 1) / p, (p - 1) / p),
            busy=_always,
        ),
        Schedule(
            "all-gather",
            all_gather_steps,
            "rank r starts with chunk r, all end with all; around a ring",
            specify=spec.all_gather,
            least=lambda p: ((p - 1) / p, 0.0),
            busy=_always,
        ),
        Schedule(
            "broadcast",
            broadcast_steps,
            "all end with the root's vector; down a binomial tree",
            specify=spec.broadcast,
            least=lambda p: (1.0, 0.0),
            rooted=True,
        ),
        Schedule(
            "reduce",
            reduce_steps,
            "the root ends with the fold; up a binomial tree",
            specify=spec.reduce,
            least=lambda p: (1.0, (p - 1) / p),
            rooted=True,
        ),
        Schedule(
            "scatter",
            scatter_steps,
            "rank r ends with chunk r of the root's vector; down a binomial tree",
            specify=spec.scatter,
            least=lambda p: ((p - 1) / p, 0.0),
            rooted=True,
        ),
        Schedule(
            "gather",
            gather_steps,
            "the root ends with chunk r of each rank r; up a binomial tree",
            specify=spec.gather,
            least=lambda p: ((p - 1) / p, 0.0),
            rooted=True,
        ),
        Schedule(
            "all-to-all",
            all_to_all_steps,
            "rank r starts with row r and ends with column r; pairwise exchange",
            specify=spec.all_to_all,
            least=lambda p: ((p - 1) / p**2, 0.0),
            busy=_always,
        ),
    )
}

#: Every schedule by its name.
SCHEDULES: Final[Mapping[str, Schedule]] = ChainMap(PHASES, ALGORITHMS)  # type: ignore[arg-type]

#: Folds in shared memory inside a host, and between hosts by the fastest schedule.
NODE = "node"
#: The largest vector in bytes of which, on one host, every rank folds all; of larger ones, a slice.
ONE_SHOT_BYTES = 8192
#: Joins, in a name, the part inside a host and the schedule between hosts.
PLUS = "node+"
#: The MPI library's own all-reduce.
LIBRARY = "mpi"
#: The schedule that groups of ranks share of which some are on one host and others are not.
ANYWHERE = "ring"


class AllReduces(Collection[str]):
    """Names of all-reduces: some that are not schedules, and schedules, also between hosts."""

    def __init__(self, others: tuple[str, ...], holds: Callable[[Algorithm], bool]) -> None:
        self._others, self._schedules = others, ALGORITHMS.where(holds)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (
            name in self._others or name.removeprefix(PLUS) in self._schedules
        )

    def __iter__(self) -> Iterator[str]:
        names = tuple(self._schedules)
        return iter((*self._others, *names, *(PLUS + name for name in names)))

    def __bool__(self) -> bool:
        return True  # does not need to look for other packages

    def __len__(self) -> int:
        return len(self._others) + 2 * len(self._schedules)


#: All names that a user may ask for.
ALL_REDUCES: Final = AllReduces((AUTO, NODE, LIBRARY), lambda row: True)


def by_hosts(name: str | None) -> bool:
    """Return whether an all-reduce folds in the shared memory of each host.

    Such an all-reduce first gives each rank its own part of the sums, which can be updated there.

    >>> by_hosts("node"), by_hosts("node+ring"), by_hosts("ring"), by_hosts(None)
    (True, True, False, False)
    """
    return name is not None and (name == NODE or name.startswith(PLUS))


def schedules_for(algorithm: str) -> tuple[str, ...]:
    """Return the schedules that an all-reduce may resolve to: psrt's own, and a named one.

    Each rank chooses by itself, so ``auto`` takes no schedule of another package: on some hosts
    that package may be missing. Nor does it look for one.

    >>> schedules_for("auto") == schedules_for("node+ring") == ALGORITHMS.own
    True
    """
    own, name = ALGORITHMS.own, algorithm.removeprefix(PLUS)
    is_theirs = name not in (*own, AUTO, NODE, LIBRARY) and name in ALGORITHMS
    return (*own, name) if is_theirs else own


#: All-reduces that first give each rank its own part of the sums.
SHARDING: Final = AllReduces((AUTO, NODE), lambda row: row.owned is not None)


def shares_evenly(name: str | None) -> bool:
    """Return whether an all-reduce that first gives ranks their parts gives all the same number.

    >>> [shares_evenly(it) for it in ("node", "ring", "node+ring", "tree")]
    [True, True, False, False]
    """
    return name == NODE or (
        name is not None and name in ALGORITHMS and ALGORITHMS[name].owned is not None
    )


def owned_by(name: str, rank: int, size: int, n: int) -> Span:
    """Return the part of n elements whose sums a rank finishes, in a schedule with halves."""
    owned = ALGORITHMS[name].owned
    assert owned is not None, f"{name} has no halves"
    return owned(rank, size, n)
