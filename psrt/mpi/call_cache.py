"""Keeps compiled collective calls, so that the next equal call finds its plan."""

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

#: The most calls on plain arrays that stay compiled, and the most bytes of arrays kept alive by it.
_MOST_PLAIN, _MOST_BYTES = 64, 1 << 28
#: The suffix of non-blocking calls; and the names of the all-reduces.
_LATER = "_async"
_ALL_REDUCES = ("all_reduce", "all_reduce_async")
#: The most array objects for which one compiled call is found without computing their addresses.
_MOST_SEEN = 8

#: The key of a compiled call: where its numbers lie (the array's identity or its place in a window,
#: and the address of a separate result), their type and shape, then call, op, algorithm, root,
#: number.
_Key: TypeAlias = tuple[Any, ...]
#: The key of an array object with a call on it: its identity first, then the words of the call.
_Seen: TypeAlias = tuple[object, ...]


class _Asked(NamedTuple):
    """A call on one array, its arguments checked."""

    call: str
    signature: str
    #: (n,), this rank's vector, and its place in a window; None if it is in none.
    vector: AnyArray
    place: SegmentOffset | None
    op: str
    #: The all-reduce, with ``auto`` resolved; empty for other calls.
    name: str
    root: Any
    out: AnyArray | None


@dataclass(eq=False, slots=True)
class BoundCall:
    """A call on one array, or on one place in the windows, compiled."""

    key: _Key
    signature: str
    plan: Plan
    #: Makes the call and runs its plan.
    run: Callable[[], None]
    #: Whether this keeps an array of the caller's alive.
    is_plain: bool
    nbytes: int
    #: The number of calls that this rank had refused when this was compiled.
    refusals: int
    #: The arrays of recent calls. They are held, so that no new array can get the identity of one
    #: of them. There is a weak reference as well, because numpy moves the memory of an array
    #: (``resize``) only if it has no weak reference.
    seen: dict[_Seen, tuple[object, ...]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class CallCache:
    """The compiled calls of one rank's communicator, and the calls in progress."""

    #: Compiles and runs calls.
    executor: CollectiveExecutor
    #: The number of ranks on each host.
    hosts: tuple[int, ...]
    #: The machine's costs, for ``auto``; the same on every rank.
    costs: MachineCosts
    _choices: dict[tuple[str, int, str, str], Choice] = field(default_factory=dict, init=False)
    #: The compiled calls.
    bound: dict[_Key, BoundCall] = field(default_factory=dict, init=False)
    #: Array and call → the function that runs it, and the array's type and flags at that time;
    #: the flags change with its strides. ``all_reduce`` reads this dict directly, so neither it
    #: nor ``under_way`` may ever be replaced by another object.
    seen: dict[_Seen, tuple[Callable[[], None], np.dtype[Any], int, BoundCall]] = field(
        default_factory=dict, init=False
    )
    #: The number of a start → its buffer, the array of its result if separate, its handle.
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
        """Return the compiled call on buffers that no other call in progress uses."""
        self.executor.check()
        if self.under_way:
            self.let_finish(lambda key: self._in_use(key, buf) or self._in_use(key, out))
            for key in [key for key, (_, _, work) in self.under_way.items() if work.done]:
                del self.under_way[key]
        seen: _Seen = (id(buf), call, op, algorithm, root, number)
        if call == "all_reduce":
            seen = (id(buf), op, algorithm)  # the key under which ``all_reduce`` looks
        if isinstance(out, np.ndarray):  # its address, type and shape, which may change in place
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
        """Return whether the call in progress with this number shares memory with an array."""
        return any(one is not None and overlap(one, array) for one in self.under_way[key][:2])

    @property
    def _refusals(self) -> int:
        """The number of calls that this rank refused.

        It is part of every signature: a rank that retries a refused call must not match ranks that
        are still in the first attempt. If all have refused the same calls, all can continue.
        """
        return len(self.executor.matcher.refused)

    def clear(self) -> None:
        """Forget every call, once all are complete."""
        for bound in list(self.bound.values()):
            self.forget(bound)

    def let_finish(self, which: Callable[[int], bool]) -> None:
        """Wait for the calls in progress that are among ``which``."""
        for key in [key for key in self.under_way if which(key)]:
            *_, handle = self.under_way.pop(key)
            handle.wait()

    def evict(self, signature: str) -> None:
        """Drop the compiled calls of a signature, once they are complete."""
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
        """Remember an array of a compiled call, for the quick look-up."""
        self.seen[seen] = (bound.run, buf.dtype, buf.flags.num, bound)
        bound.seen[seen] = (buf, weakref.ref(buf), out)
        if len(bound.seen) > _MOST_SEEN:  # a loop that makes a new view of one place each time
            oldest = next(iter(bound.seen))
            del bound.seen[oldest]
            self.seen.pop(oldest, None)

    def _make_room(self) -> None:
        """Drop the oldest calls on plain arrays, which may be all that keeps those alive.

        Calls on arrays from ``empty`` keep nothing else alive.
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
        """Check a call's arguments, and find its compiled call or compile it.

        An array from ``empty`` is identified by its place, so new views find the plan of older
        ones; any other array by its identity.

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
        # A separate result is kept alive, too, even if the buffer is in a window.
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
        # A non-blocking call must not wait for the other ranks.
        meet = not call.endswith(_LATER)
        return compiler.phase(signature, phase, vector, op=op, root=root, place=place, meet=meet)

    def pick(self, algorithm: str, nbytes: int, kind: np.dtype[Any], op: str) -> Choice:
        """Return the algorithm of a call on ``nbytes`` bytes."""
        key = (algorithm, nbytes, kind.name, op)
        if key not in self._choices:
            self._choices[key] = pick(algorithm, self.hosts, nbytes, kind, self.costs, op=op)
        return self._choices[key]

    def check_open(self, signature: str) -> None:
        """Raise a ``ConfigError`` if the communicator is closed."""
        if self.closed:
            self.refuse(signature, "the communicator is closed")

    def refuse(self, signature: str, why: str) -> NoReturn:
        """Refuse a call, and send the reason to the other ranks.

        Raises:
            ConfigError: always.
        """
        if not self.closed:
            self.executor.matcher.refuse(signature, why)
            self.seen.clear()
        raise ConfigError(f"{signature}: {why}")
