"""Compiled collective calls, kept so that the next equal call finds its plan."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from psrt.collective.analysis.choose import Choice
from psrt.collective.analysis.machine import MachineCosts
from psrt.collective.analysis.pick import pick
from psrt.core.arrays import AnyArray
from psrt.core.errors import ConfigError
from psrt.mpi.arguments import ABSENT, fault_of, fault_of_blocks, overlap, stored

if TYPE_CHECKING:
    from psrt.mpi.collectives.executor import CollectiveExecutor, Work
    from psrt.mpi.collectives.plans.plan import Plan
    from psrt.mpi.links.segments import SegmentOffset

#: Calls on plain arrays that stay compiled, and bytes of arrays that are kept alive by that.
_MOST_PLAIN, _MOST_BYTES = 64, 1 << 28
#: What the name of a call that does not wait ends with; and the calls that are all-reduces.
_LATER = "_async"
_ALL_REDUCES = ("all_reduce", "all_reduce_async")
#: Arrays by which one compiled call is found without a look at where they are.
_MOST_SEEN = 8

#: What a compiled call is found by: where its numbers lie (the array's identity, or its place in a
#: window, and the address of the result where that goes elsewhere), what they are, then call, op,
#: algorithm, root, number.
_Key: TypeAlias = tuple[Any, ...]
#: What an array is seen by, with the call on it: its identity first, then the words of the call.
_Seen: TypeAlias = tuple[object, ...]


class _Asked(NamedTuple):
    """A call on one array, its arguments checked."""

    call: str
    signature: str
    #: (n,), this rank's, and where it lies in a window; None: in none.
    vector: AnyArray
    place: SegmentOffset | None
    op: str
    #: Of the all-reduce, after ``auto``; empty for other calls.
    name: str
    root: Any
    out: AnyArray | None


@dataclass(eq=False, slots=True)
class BoundCall:
    """A call on one array, or on one place in the windows, compiled."""

    key: _Key
    signature: str
    plan: Plan
    #: Makes the call and carries it out.
    run: Callable[[], None]
    #: Whether an array of it is one of the caller's own, which is kept alive by this.
    is_plain: bool
    nbytes: int
    #: Number of calls that this rank had refused by then.
    refusals: int
    #: The arrays that it was lately called with. They are held, so that no other array gets the
    #: identity of one of them; and referred to weakly as well, because numpy moves the memory of
    #: an array (``resize``) only if there is no weak reference.
    seen: dict[_Seen, tuple[object, ...]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class CallCache:
    """The compiled calls of one rank's communicator, and those that are under way."""

    #: Compiles calls and carries them out.
    executor: CollectiveExecutor
    #: Number of ranks on each host.
    hosts: tuple[int, ...]
    #: For ``auto``, the same on every rank.
    costs: MachineCosts
    _choices: dict[tuple[str, int, str, str], Choice] = field(default_factory=dict, init=False)
    #: What is compiled.
    bound: dict[_Key, BoundCall] = field(default_factory=dict, init=False)
    #: Array and call → what runs it, and the array's type and flags at that time; the flags
    #: change with its strides. ``all_reduce`` looks here by itself, so neither this dict
    #: nor ``under_way`` is ever replaced by another.
    seen: dict[_Seen, tuple[Callable[[], None], np.dtype[Any], int, BoundCall]] = field(
        default_factory=dict, init=False
    )
    #: Number of a start → its buffer, where its result goes if elsewhere, what is under way.
    under_way: dict[int, tuple[AnyArray, AnyArray | None, Work]] = field(
        default_factory=dict, init=False
    )
    #: Whether the communicator is closed.
    closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.executor.contexts.on_evict = self.evict
        self.executor.on_broken = self.seen.clear

    def find(
        self,
        call: str,
        buf: AnyArray,
        op: Any = ABSENT,
        algorithm: str = "auto",
        *,
        root: Any = ABSENT,
        number: int = 0,
        out: AnyArray | None = None,
    ) -> BoundCall:
        """Return the compiled call on buffers that nothing else is under way on."""
        self.executor.check()
        if self.under_way:
            self.let_finish(lambda key: self._in_use(key, buf) or self._in_use(key, out))
            for key in [key for key, (_, _, work) in self.under_way.items() if work.done]:
                del self.under_way[key]
        seen: _Seen = (id(buf), call, op, algorithm, root, number)
        if call == "all_reduce":
            seen = (id(buf), op, algorithm)  # as it looks there itself
        if isinstance(out, np.ndarray):  # with what may become of it in place
            seen += (id(out), out.dtype, out.flags.num)
        try:
            known = self.seen.get(seen)
        except TypeError:  # an operation such as MPI.SUM; the check of the arguments says so
            known = None
        if known is not None:
            _, kind, flags, bound = known
            alike = buf.dtype is kind and buf.flags.num == flags
            if alike and bound.refusals == self._refusals:
                return bound
        return self._bind(seen, call, buf, op, algorithm, root=root, number=number, out=out)

    def _in_use(self, key: int, array: AnyArray | None) -> bool:
        """Return whether what is under way by a number has memory in common with an array."""
        return any(one is not None and overlap(one, array) for one in self.under_way[key][:2])

    @property
    def _refusals(self) -> int:
        """The number of calls that this rank refused.

        It is part of every signature: a rank that retries a refused call must not match others
        that are still in the first attempt. If all have refused the same calls, all go on.
        """
        return len(self.executor.matcher.refused)

    def clear(self) -> None:
        """Forget every call, once all are complete."""
        for bound in list(self.bound.values()):
            self.forget(bound)

    def let_finish(self, which: Callable[[int], bool]) -> None:
        """Wait for the calls under way that are among ``which``."""
        for key in [key for key in self.under_way if which(key)]:
            *_, handle = self.under_way.pop(key)
            handle.wait()

    def evict(self, signature: str) -> None:
        """Forget what was compiled for a signature, once it is complete."""
        for bound in [bound for bound in self.bound.values() if bound.signature == signature]:
            self.forget(bound)

    def forget(self, bound: BoundCall) -> None:
        """Free a compiled call, once it is complete; the last one of a buffer releases it."""
        for seen in bound.seen:
            self.seen.pop(seen, None)
        del self.bound[bound.key]
        self.let_finish(lambda number: self.under_way[number][2].plan is bound.plan)
        self.executor.release(bound.plan)

    def _see(
        self, seen: _Seen, buf: AnyArray, bound: BoundCall, out: AnyArray | None = None
    ) -> None:
        """Remember the arrays that a compiled call is made with."""
        self.seen[seen] = (bound.run, buf.dtype, buf.flags.num, bound)
        bound.seen[seen] = (buf, weakref.ref(buf), out)
        if len(bound.seen) > _MOST_SEEN:  # new views of one place, again and again
            oldest = next(iter(bound.seen))
            del bound.seen[oldest]
            self.seen.pop(oldest, None)

    def _make_room(self) -> None:
        """Forget the oldest calls on plain arrays, which nothing else may keep alive.

        Those on arrays from ``empty`` cost nothing but themselves.
        """
        plain = [bound for bound in self.bound.values() if bound.is_plain]
        nbytes = {bound.key[0]: bound.nbytes for bound in plain}
        while len(plain) > _MOST_PLAIN or (len(nbytes) > 1 and sum(nbytes.values()) > _MOST_BYTES):
            oldest = plain.pop(0)
            nbytes.pop(oldest.key[0], None)
            self.forget(oldest)

    def _bind(
        self,
        seen: _Seen,
        call: str,
        buf: AnyArray,
        op: Any,
        algorithm: str,
        *,
        root: Any,
        number: int,
        out: AnyArray | None,
    ) -> BoundCall:
        """Check a call's arguments and find what is compiled for it, or compile it.

        An array from ``empty`` is known by its place, so new views of it find what older ones
        left; any other by its identity.

        Raises:
            ConfigError: if they are not valid; the other ranks get a ProtocolError.
        """
        size = sum(self.hosts)
        wrong = fault_of(buf, op, algorithm, root, size=size, in_place=out is None)
        if not wrong and call.removesuffix(_LATER) == "all_to_all":
            wrong = fault_of_blocks(buf, out, size=size)
        if self.closed:
            wrong = "the communicator is closed"
        if wrong:
            words = [str(word) for word in (op, root, algorithm) if word is not ABSENT]
            self.refuse(f"{call}({', '.join(words)})", wrong)
        vector = stored(buf)
        place = self.executor.segments.locate(vector)
        to = None if out is None else stored(out)
        where: object = place or id(buf)
        if to is not None:
            where = where, to.ctypes.data
        number = 0 if place is not None else number
        form = vector.ctypes.data, buf.dtype, buf.shape, buf.flags.c_contiguous
        key = (where, form, call, op, algorithm, root, number)
        bound = self.bound.get(key)
        if bound is not None and bound.refusals != self._refusals:
            self.forget(bound)
            bound = None
        if bound is None:
            bound = self._compile(key, call, buf, vector, place, to)
        self._see(seen, buf, bound, out)
        if bound.is_plain:
            self._make_room()
        return bound

    def _compile(
        self,
        key: _Key,
        call: str,
        buf: AnyArray,
        vector: AnyArray,
        place: SegmentOffset | None,
        out: AnyArray | None,
    ) -> BoundCall:
        """Compile a call on a buffer."""
        op, algorithm, root, number = key[-4:]
        name = ""
        if call in _ALL_REDUCES:
            name = self.pick(algorithm, vector.nbytes, vector.dtype, op).algorithm
        where = (
            "any array" if place is None else f"communicator.empty {place.segment}+{place.offset}"
        )
        words = [f"shape {buf.shape}", str(buf.dtype), where]
        words += [] if buf.flags.c_contiguous else ["columns first"]
        words += [op] if op is not ABSENT else []
        words += [f"root {root}"] if root is not ABSENT else []
        words += [name] if name else []
        words += ["to another array"] if out is not None else []
        words += [f"number {number}"] if call.endswith(_LATER) and place is None else []
        words += [f"after {self._refusals} refused calls"] if self._refusals else []
        signature = f"{call}({', '.join(words)})"
        op = "sum" if op is ABSENT else op
        plan = self._plan(_Asked(call, signature, vector, place, op, name, root, out))
        # What it keeps alive of the caller's own, though the buffer may be in a window.
        is_plain = place is None or out is not None
        nbytes = vector.nbytes * (1 if out is None else 2)
        run = self.executor.runner(signature, plan)
        bound = BoundCall(key, signature, plan, run, is_plain, nbytes, self._refusals)
        self.bound[key] = bound
        return bound

    def _plan(self, asked: _Asked) -> Plan:
        size = sum(self.hosts)
        if asked.op != "mean" or size == 1:
            return self._sum(asked)
        from psrt.mpi.collectives.plans.mean import Mean  # not above: it imports MPI

        def make(one: AnyArray, op: str) -> Plan:
            at = asked.place if one is asked.vector else None
            return self._sum(asked._replace(vector=one, op=op, place=at, out=None))

        mean = Mean(asked.vector, size, make)
        return mean.alone or mean

    def _sum(self, asked: _Asked) -> Plan:
        compiler = self.executor.compiler
        call, signature, vector, place, op, name, root, out = asked
        if name:
            return compiler.all_reduce(signature, vector, op, name, place)
        if call.removesuffix(_LATER) == "all_to_all":
            return compiler.all_to_all(signature, vector, out, place=place)
        phase = call.removesuffix(_LATER).replace("_", "-")
        if root is ABSENT:
            return compiler.phase(signature, phase, vector, op=op, place=place)
        # A call that returns at once must not wait for the other ranks.
        meet = not call.endswith(_LATER)
        return compiler.phase(signature, phase, vector, op=op, root=root, place=place, meet=meet)

    def pick(self, algorithm: str, nbytes: int, kind: np.dtype[Any], op: str) -> Choice:
        """Return the algorithm that a call of ``nbytes`` bytes runs."""
        key = (algorithm, nbytes, kind.name, op)
        if key not in self._choices:
            self._choices[key] = pick(algorithm, self.hosts, nbytes, kind, self.costs, op=op)
        return self._choices[key]

    def check_open(self, signature: str) -> None:
        """Raise a ``ConfigError`` if the communicator is closed."""
        if self.closed:
            self.refuse(signature, "the communicator is closed")

    def refuse(self, signature: str, why: str) -> NoReturn:
        """Refuse a call, and send the other ranks the reason.

        Raises:
            ConfigError: always.
        """
        if not self.closed:
            self.executor.matcher.refuse(signature, why)
            self.seen.clear()
        raise ConfigError(f"{signature}: {why}")
