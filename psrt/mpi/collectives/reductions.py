"""The sums of a trainer: spans of the workers' gradients, with the update that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

from psrt.collective.analysis.machine import MachineCosts
from psrt.collective.analysis.pick import Coding, pick, pick_coded, pick_sharded
from psrt.collective.registry import by_hosts
from psrt.core.arrays import ITEMSIZE, AnyVector, Vector
from psrt.core.errors import ConfigError
from psrt.core.partition import Span, block_spans
from psrt.core.sharding import Sharing
from psrt.mpi.collectives.compiler import Coded
from psrt.mpi.collectives.executor import CollectiveExecutor, Work
from psrt.mpi.collectives.plans.direct import Sink
from psrt.mpi.collectives.plans.plan import Plan
from psrt.mpi.collectives.slots import SLOTS
from psrt.optim import BLOCK
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import Held, Reduction, Take, outliers

#: The signature of ``differing``.
_COMPARISON = "comparison of numbers"

#: From this size on the ranks of a host share one θ. A smaller θ is mostly in each core's own
#: cache, and lines that a peer has written must be fetched from its cache one by one. Measured on
#: two cores with 1 MiB each: sharing made a step of 2.7 MB an eighth slower, and was faster at 7
#: and 23 MB.
ONE_THETA_BYTES = 1 << 22


class Update(Sink):
    """Turns a block of sums into parameters."""

    scratch: AnyVector | None = None

    def __init__(self, take: Take, *, first: int) -> None:
        """Set up.

        Args:
            take: makes parameters of sums; see ``psrt.transport.port.Take``.
            first: the element of the parameters at which the reduced span starts.
        """
        #: Whether the trainer waits for this round. Other waits make progress on it, too, possibly
        #: before the trainer is ready to use the sums.
        self.asked = False
        self.gate = lambda: self.asked
        self._take = take
        self._first = first

    def write(self, span: Span, folded: AnyVector) -> None:
        """Update the block."""
        self._take(Span(span.start + self._first, span.stop + self._first), folded)


class UpdateForAll(Update):
    """Turns a block of sums into parameters, for other ranks of the host, too."""

    def __init__(self, take: Take, thetas: Sequence[Vector], own: int, *, first: int) -> None:
        """Set up.

        Args:
            take: as in ``Update``.
            thetas: (n,) each, the parameters of ranks of the host, in shared memory; one if they
                share it.
            own: the index of this rank's.
            first: as in ``Update``.
        """
        super().__init__(take, first=first)
        self.scratch = np.empty(BLOCK, np.float32)
        self._own = thetas[own].view(np.uint8).data
        self._others = [t.view(np.uint8).data for r, t in enumerate(thetas) if r != own]

    def write(self, span: Span, folded: AnyVector) -> None:
        """Update the block, and copy it to ranks that have their own θ."""
        super().write(span, folded)
        at, end = span.start + self._first, span.stop + self._first
        source = self._own[4 * at : 4 * end]
        for theta in self._others:
            theta[4 * at : 4 * end] = source


@dataclass(eq=False)
class Reductions:
    """Makes the reductions and gathers of one rank's port."""

    #: Runs them.
    executor: CollectiveExecutor
    #: Costs of the machine, for ``auto``.
    costs: MachineCosts
    #: The gradient: in a window, at the same place on every rank.
    gradient: Vector
    #: The parameters: likewise, until the host shares one θ, see ``share_theta``.
    theta: Vector
    #: Whether θ is the same memory on all ranks of this host.
    _one_theta: bool = field(default=False, init=False)
    _made: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._numbers = np.zeros(self.executor.layout.size, np.int64)
        # Plans that are compiled here stay in use to the end, so none may be evicted.
        self.executor.contexts.on_evict = _refuse
        self._gather = self.executor.compiler.phase(
            _COMPARISON, "all-gather", self._numbers, place=None
        )

    def choice(
        self, algorithm: str, n: int, *, coded: Coding | None, sharded: Sharing | None
    ) -> tuple[str, str]:
        """See ``Port.choice``."""
        hosts = [len(ranks) for ranks in self.executor.layout.hosts]
        if sharded is not None:
            alone = sharded is Sharing.PARAMETERS
            part = pick_sharded(algorithm, hosts, ITEMSIZE * n, self.costs, alone=alone)
            return part.algorithm, part.why
        if coded is not None:
            found = pick_coded(algorithm, hosts, coded, self.costs)
            return found.algorithm, found.why
        choice = pick(algorithm, hosts, ITEMSIZE * n, np.dtype(np.float32), self.costs)
        return choice.algorithm, choice.why

    def share_theta(self, algorithm: str) -> Vector:
        """See ``Port.share_theta``; return the parameters to work with."""
        large = self.theta.nbytes >= ONE_THETA_BYTES
        if large and by_hosts(algorithm) and not self._one_theta:
            thetas, _ = self._thetas()
            self._one_theta, self.theta = True, thetas[0]
            self.executor.meet("one θ a host")
        return self.theta

    def owned(self, span: Span, algorithm: str) -> Span:
        """See ``Port.owned``."""
        start, stop = self.executor.compiler.owned(span.size, algorithm)
        return Span(span.start + start, span.start + stop)

    def make(
        self,
        span: Span,
        algorithm: str,
        take: Take | None,
        codec: SumCodec | None,
        held: Held | None,
    ) -> Reduction:
        """See ``Port.reduction``."""
        at = span if held is None else Span(held.at, held.at + span.size)
        executor, vector = self.executor, at.of(self.gradient)
        place = executor.segments.locate(vector)
        update: Update | None = None
        # On one host, algorithms by host give each rank its own slice anyway.
        apart = held is not None and not (by_hosts(algorithm) and len(executor.layout.hosts) == 1)
        if take is not None and apart and by_hosts(algorithm):
            # Parameters from other hosts arrive in the first θ of a host, and are copied from
            # there.
            thetas, own = self._thetas()
            ends = [thetas[0], *([thetas[own]] if own else [])]
            update = UpdateForAll(take, ends, len(ends) - 1, first=span.start)
        elif take is not None and apart:
            update = Update(take, first=span.start)
        elif take is not None and by_hosts(algorithm):
            update = UpdateForAll(take, *self._thetas(), first=span.start)
        coded = None if codec is None else Coded(codec, span)
        signature = f"reduction {self._made} of {span} by {algorithm}{' in frames' * bool(coded)}"
        self._made += 1
        if apart:
            assert held is not None
            assert update is not None, "a sharded reduction has a take"
            plan = executor.compiler.sharded(
                signature, vector, algorithm, update, self._spread(span, algorithm, held)
            )
            return ExecutorReduction(executor, plan, signature, update, None, span, vector)
        plan = executor.compiler.all_reduce(
            signature, vector, "sum", algorithm, place, update, coded
        )
        take = None if update is not None else take
        return ExecutorReduction(executor, plan, signature, update, take, span, vector)

    def gather(self, span: Span, algorithm: str, at: int) -> Reduction:
        """See ``Port.gather``."""
        executor, vector = self.executor, self.theta[at : at + span.size]
        signature = f"gathering {self._made} of {span} by {algorithm}"
        self._made += 1
        plan = executor.compiler.gather(signature, vector, algorithm)
        return ExecutorReduction(executor, plan, signature, None, None, span, vector)

    def _spread(self, span: Span, algorithm: str, held: Held) -> list[Vector]:
        """Return where owners write the parameters of a span, on this rank or its host."""
        if not held.spreads:
            return []
        thetas = self._thetas()[0] if by_hosts(algorithm) else [self.theta]
        return [span.of(theta) for theta in thetas]

    def _thetas(self) -> tuple[list[Vector], int]:
        """Return the θ of each rank of this host, and the index of this rank's."""
        if self._one_theta:
            return [self.theta], 0
        at = self.executor.segments.locate(self.theta)
        assert at is not None, "θ is in a window"
        return self.executor.segments.views(at, self.theta), self.executor.layout.local_rank

    def differing(self, number: int) -> list[int]:
        """See ``Port.differing``."""
        self._numbers[self.executor.layout.rank] = number
        self.executor.call(_COMPARISON)
        self.executor.run(self._gather)
        return outliers(self._numbers.tolist())

    def close(self) -> None:
        """Drop views of others' memory."""
        self.gradient = self.theta = np.zeros(0, np.float32)


def _refuse(signature: str) -> None:
    """Raise an error: there is no slot for another reduction."""
    raise ConfigError(
        f"too many buckets of gradient to sum: there is room for {SLOTS} sums inside and "
        "between hosts; larger bucket-bytes make fewer"
    )


@dataclass(eq=False)
class ExecutorReduction(Reduction):
    """One span's sum over MPI, again and again."""

    executor: CollectiveExecutor
    plan: Plan
    signature: str
    update: Update | None
    take: Take | None
    span: InitVar[Span]
    vector: InitVar[Vector]
    _handle: Work | None = field(default=None, init=False)

    def __post_init__(self, span: Span, vector: Vector) -> None:
        # Every rank holds all sums, so every rank takes all blocks.
        blocks = block_spans(vector.size, BLOCK) if self.take is not None else ()
        self._blocks = [(Span(span.start + a, span.start + b), vector[a:b]) for a, b in blocks]

    def begin(self) -> None:
        """Start the sum."""
        self.executor.call(self.signature)
        if self.update is not None:
            self.update.asked = False
        self._handle = self.executor.start(self.plan)

    def poll(self) -> bool:
        """Make progress without waiting."""
        handle = self._handle
        if handle is None:
            return True
        self._ask()
        if not handle.test():
            return False
        self._end()
        return True

    async def finish(self) -> None:
        """Wait for the end of the round."""
        handle = self._handle
        if handle is not None:
            self._ask()
            handle.wait()
            self._end()

    def _ask(self) -> None:
        if self.update is not None:
            self.update.asked = True

    def _end(self) -> None:
        self._handle = None
        if self.take is not None:
            for span, sums in self._blocks:
                self.take(span, sums)
