"""Communicator: collectives for anyone with numpy buffers, no trainer needed."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from psrt.arrays import AnyArray
from psrt.collective import OPS
from psrt.collective.analysis.choose import Choice
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts
from psrt.collective.analysis.pick import library_reduces, pick
from psrt.collective.registry import ALL_REDUCES, AUTO, LIBRARY
from psrt.errors import ConfigError
from psrt.partition import even_spans

if TYPE_CHECKING:
    from mpi4py import MPI

    from psrt.mpi.collectives.executor import Work
    from psrt.mpi.collectives.plans.plan import Plan
    from psrt.mpi.links.segments import SegmentOffset

#: Element types that can be reduced.
DTYPES = ("float16", "float32", "float64", "int32", "int64")
#: Unfinished operations on plain arrays alike that may be under way at a time.
_INSTANCES = 8
#: Calls on plain arrays that stay compiled, and bytes of arrays that are kept alive by that.
_MOST_PLAIN, _MOST_BYTES = 64, 1 << 28
#: What the name of a call that does not wait ends with; and the calls that are all-reduces.
_LATER = "_async"
_ALL_REDUCES = ("all_reduce", "all_reduce_async")
#: Arrays by which one compiled call is found without a look at where they are.
_MOST_SEEN = 8

#: What a compiled call is found by: where its numbers lie (the array's identity, or its place in a
#: window), what they are, then call, op, algorithm, root, number.
_Key: TypeAlias = tuple[Any, ...]
#: What an array is seen by, with the call on it: its identity first, then the words of the call.
_Seen: TypeAlias = tuple[object, ...]
#: The operation of a call that has none, or its root.
_ABSENT: Any = object()


@dataclass(eq=False, slots=True)
class _Bound:
    """A call on one array, or on one place in the windows, compiled."""

    key: _Key
    signature: str
    plan: Plan
    #: Makes the call and carries it out.
    run: Callable[[], None]
    #: Whether the array is one of the caller's own, which is kept alive by this.
    is_plain: bool
    nbytes: int
    #: Calls that this rank had refused by then.
    refusals: int
    #: The arrays that it was lately called with. They are held, so that no other array gets the
    #: identity of one of them; and referred to weakly as well, because numpy moves the memory of
    #: an array (``resize``) only if there is no weak reference.
    seen: dict[_Seen, tuple[AnyArray, object]] = field(default_factory=dict)


class Communicator:
    """Ranks that reduce numpy arrays together. Collective to make and to close.

    Every rank makes the same calls in the same order, on arrays of the same shape and type. What
    is compiled for a call is kept, and with it an array of the caller's own: up to 64 calls, and
    256 MiB of arrays that nobody else may hold any more. Arrays from ``empty`` live until the end
    anyway.

    >>> communicator = psrt.Communicator()                                  # doctest: +SKIP
    >>> buffer = communicator.empty(1000)                                   # doctest: +SKIP
    >>> buffer[:] = communicator.rank                                       # doctest: +SKIP
    >>> communicator.all_reduce(buffer)                                      # doctest: +SKIP
    """

    def __init__(
        self,
        comm: MPI.Comm | None = None,
        *,
        timeout_s: float = 60.0,
        machine_costs: MachineCosts | None = None,
        host: int | None = None,
    ) -> None:
        """Set up, and start MPI if nobody has.

        Args:
            comm: the ranks, duplicated; None takes all ranks of the job.
            timeout_s: longest that a call waits for another rank.
            machine_costs: for ``auto``, the same on every rank; None takes psrt's own.
            host: ranks that give the same number count as being on one host if they really are;
                None leaves it to MPI.

        Raises:
            ConfigError: if there is no MPI library.
        """
        from psrt.mpi.start import world  # isort: skip  # starts MPI
        from psrt.mpi.collectives.executor import CollectiveExecutor

        self._executor = CollectiveExecutor(
            world() if comm is None else comm, timeout_s=timeout_s, host=host
        )
        self._costs = machine_costs or DEFAULT_COSTS
        layout = self._executor.layout
        #: This rank.
        self.rank = layout.rank
        #: Ranks in all.
        self.size = layout.size
        #: Number of ranks on each host.
        self.hosts = tuple(len(ranks) for ranks in layout.hosts)
        self._executor.contexts.on_evict = self._evict
        self._executor.on_broken = lambda: self._seen.clear()
        self._bound: dict[_Key, _Bound] = {}
        #: Array and call → what runs it, and what the array was then: its type, and its flags,
        #: which tell of other strides, too.
        self._seen: dict[_Seen, tuple[Callable[[], None], np.dtype[Any], int, _Bound]] = {}
        self._choices: dict[tuple[str, int, str, str], Choice] = {}
        self._closed = False
        #: Number of a start → its buffer, and what is under way on it.
        self._under_way: dict[int, tuple[AnyArray, Work]] = {}
        self._started = 0

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> AnyArray:
        """Return a new array, zero at first, that the ranks of this host can see; collective.

        Collectives on it copy nothing through MPI inside the host. It lives until the communicator
        is closed and must not be used afterwards.

        Args:
            shape: the same on every rank.
            dtype: one of ``DTYPES``, the same on every rank.

        Raises:
            ConfigError: if there is no such array.
            ProtocolError: if the ranks do not ask for the same.
        """
        signature = f"empty({shape}, {dtype})"
        if self._closed:
            self._refuse(signature, "the communicator is closed")
        try:
            kind = np.dtype(dtype)
            lengths = [operator.index(n) for n in (shape if isinstance(shape, tuple) else (shape,))]
        except TypeError as error:
            self._refuse(signature, str(error))
        if kind.name not in DTYPES or not kind.isnative or min(lengths, default=0) < 0:
            self._refuse(signature, f"no array of {kind} and shape {shape} can be reduced")
        count = math.prod(lengths)
        self._executor.meet(f"empty({tuple(lengths)}, {kind})")
        segment = self._executor.segments.make(count * kind.itemsize)
        buffer = self._executor.segments.buffers(segment)[self._executor.layout.local_rank]
        return buffer.view(kind).reshape(shape)

    def all_reduce(self, buf: AnyArray, op: str = "sum", algorithm: str = "auto") -> AnyArray:
        """Reduce ``buf`` over all ranks, in place: every rank ends with the same bits.

        Args:
            buf: contiguous and writeable, of one of ``DTYPES``; the same shape on every rank.
                Fastest where it comes from ``empty``.
            op: sum, mean, min, max or prod; and, or, xor of the bits of integers. The mean of
                integers is rounded down.
            algorithm: ``auto`` picks by size, ranks, hosts and costs (see ``choice``); ``node``
                folds in shared memory; a name of ``psrt.collective.ALGORITHMS`` runs that
                schedule over all ranks, ``node+`` and a name runs it between hosts; ``mpi`` is
                the library's own, which promises less: the order of its sums is its own, and the
                ranks may end with different numbers where the op is min or max and one of them
                has a NaN or a -0.0. ``auto`` does not take it for these.

        Returns:
            ``buf``.

        Raises:
            ConfigError: if this rank's arguments will not do; the other ranks get a ProtocolError.
            ProtocolError: on every rank, if they do not call the same; the communicator is then
                of no use any more.
            TransportError: if a rank does not come within the deadline.
        """
        try:
            run, kind, flags, _ = self._seen[id(buf), op, algorithm]
        except KeyError:
            run = None
        # An array may have become another one in place, as by ``buf.dtype = np.int32``.
        if run is None or buf.dtype is not kind or buf.flags.num != flags or self._under_way:
            run = self._find("all_reduce", buf, op, algorithm).run
        run()
        return buf

    def reduce_scatter(self, buf: AnyArray, op: str = "sum") -> AnyArray:
        """Reduce ``buf`` over all ranks and leave each with its chunk of the result.

        Args:
            buf: as in ``all_reduce``; the chunks of the other ranks are of no use afterwards.
            op: as in ``all_reduce``.

        Returns:
            This rank's chunk, a flat view of ``buf``: the ``rank``-th of
            ``psrt.partition.even_spans(buf.size, size)``, of the elements as they are stored.

        Raises:
            as ``all_reduce``.
        """
        self._find("reduce_scatter", buf, op).run()
        return self._chunk(buf)

    def all_gather(self, buf: AnyArray) -> AnyArray:
        """Fill ``buf`` with every rank's chunk of it, as ``reduce_scatter`` cuts and leaves them.

        Returns:
            ``buf``.

        Raises:
            as ``all_reduce``.
        """
        self._find("all_gather", buf).run()
        return buf

    def broadcast(self, buf: AnyArray, root: int = 0) -> AnyArray:
        """Fill ``buf`` with that of rank ``root``.

        Returns:
            ``buf``.

        Raises:
            as ``all_reduce``.
        """
        self._find("broadcast", buf, root=root).run()
        return buf

    def reduce(self, buf: AnyArray, op: str = "sum", root: int = 0) -> AnyArray:
        """Reduce ``buf`` over all ranks into that of rank ``root``.

        Args:
            buf: as in ``all_reduce``; those of the other ranks are of no use afterwards.
            op: as in ``all_reduce``.
            root: the same on every rank.

        Returns:
            ``buf``.

        Raises:
            as ``all_reduce``.
        """
        self._find("reduce", buf, op, root=root).run()
        return buf

    def scatter(self, buf: AnyArray, root: int = 0) -> AnyArray:
        """Leave each rank with its chunk of rank ``root``'s ``buf``.

        Args:
            buf: as in ``all_reduce``. What it holds elsewhere than in the own chunk is of no use
                afterwards, but at ``root``, where nothing changes.
            root: the same on every rank.

        Returns:
            This rank's chunk, a view, as ``reduce_scatter`` returns it.

        Raises:
            as ``all_reduce``.
        """
        self._find("scatter", buf, root=root).run()
        return self._chunk(buf)

    def gather(self, buf: AnyArray, root: int = 0) -> AnyArray:
        """Fill rank ``root``'s ``buf`` with every rank's chunk, as ``scatter`` cuts them.

        Args:
            buf: as in ``all_reduce``. The other ranks keep their own chunk; what else their arrays
                hold is of no use afterwards.
            root: the same on every rank.

        Returns:
            ``buf``.

        Raises:
            as ``all_reduce``.
        """
        self._find("gather", buf, root=root).run()
        return buf

    def all_to_all(self, buf: AnyArray) -> AnyArray:
        """Hand each rank the block that every rank has for it.

        Args:
            buf: a table of size × size blocks, the same shape on every rank. Rank r fills row r,
                where block (r, j) is for rank j, and ends with column r. With the shape (size,
                size, …) these are ``buf[r]`` and ``buf[:, r]``; any other array is cut like
                ``even_spans``, and each of its chunks is cut so again. What is in neither the row
                nor the column is left as it is.

        Returns:
            ``buf``.

        Raises:
            as ``all_reduce``.
        """
        self._find("all_to_all", buf).run()
        return buf

    def all_reduce_async(self, buf: AnyArray, op: str = "sum", algorithm: str = "auto") -> Work:
        """Begin an ``all_reduce`` and return at once; ``buf`` must be left alone until it is done.

        There is no thread behind it: it moves on in ``test`` and ``wait`` of any handle, of any
        communicator, and while other calls wait. Several may be under way; ranks may finish them in
        any order. The other collectives have such a form, too: ``reduce_async`` and so on, with the
        arguments of the call that waits.

        Returns:
            a handle with ``test() -> bool`` and ``wait()``; ``result`` is what the call that waits
            returns.

        Raises:
            ConfigError, ProtocolError: as ``all_reduce``.
        """
        return self._begin("all_reduce_async", buf, op, algorithm)

    def reduce_scatter_async(self, buf: AnyArray, op: str = "sum") -> Work:
        """Begin a ``reduce_scatter``, as ``all_reduce_async`` does an ``all_reduce``."""
        return self._begin("reduce_scatter_async", buf, op, result=self._chunk)

    def all_gather_async(self, buf: AnyArray) -> Work:
        """Begin an ``all_gather``, as ``all_reduce_async`` does an ``all_reduce``."""
        return self._begin("all_gather_async", buf)

    def broadcast_async(self, buf: AnyArray, root: int = 0) -> Work:
        """Begin a ``broadcast``, as ``all_reduce_async`` does an ``all_reduce``."""
        return self._begin("broadcast_async", buf, root=root)

    def reduce_async(self, buf: AnyArray, op: str = "sum", root: int = 0) -> Work:
        """Begin a ``reduce``, as ``all_reduce_async`` does an ``all_reduce``."""
        return self._begin("reduce_async", buf, op, root=root)

    def scatter_async(self, buf: AnyArray, root: int = 0) -> Work:
        """Begin a ``scatter``, as ``all_reduce_async`` does an ``all_reduce``."""
        return self._begin("scatter_async", buf, root=root, result=self._chunk)

    def gather_async(self, buf: AnyArray, root: int = 0) -> Work:
        """Begin a ``gather``, as ``all_reduce_async`` does an ``all_reduce``."""
        return self._begin("gather_async", buf, root=root)

    def all_to_all_async(self, buf: AnyArray) -> Work:
        """Begin an ``all_to_all``, as ``all_reduce_async`` does an ``all_reduce``."""
        return self._begin("all_to_all_async", buf)

    def choice(self, nbytes: int, dtype: npt.DTypeLike = np.float32, op: str = "sum") -> Choice:
        """Return what ``auto`` picks for a vector of ``nbytes`` bytes, the prediction, and why."""
        return self._pick(AUTO, nbytes, np.dtype(dtype), op)

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to other ranks so far, by MPI or through shared memory."""
        return self._executor.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes taken from other ranks so far."""
        return self._executor.bytes_received

    def close(self) -> None:
        """Free what was made; collective. Arrays from ``empty`` must not be used afterwards.

        Raises:
            ProtocolError: if other ranks are in another call.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._executor.broken:
                self._let_finish(lambda key: True)
        finally:
            if not self._executor.broken:  # or MPI may still be writing to what they hold
                for bound in list(self._bound.values()):
                    self._forget(bound)
            self._executor.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._executor.broken:
            self.close()

    def _begin(
        self,
        call: str,
        buf: AnyArray,
        op: Any = _ABSENT,
        algorithm: str = "auto",
        *,
        root: Any = _ABSENT,
        result: Callable[[AnyArray], AnyArray] = lambda buf: buf,
    ) -> Work:
        """Make a call and return at once; ``result`` is what it returns of its buffer."""
        number = self._started % _INSTANCES
        self._started += 1
        # One that was started long ago with the same number must be through before its like.
        self._let_finish(lambda key: key == number)
        bound = self._find(call, buf, op, algorithm, root=root, number=number)
        self._executor.call(bound.signature)
        handle = self._executor.start(bound.plan, result(buf))
        if not handle.done:
            self._under_way[number] = (buf, handle)
        return handle

    def _chunk(self, buf: AnyArray) -> AnyArray:
        """Return this rank's chunk of a buffer."""
        return even_spans(buf.size, self.size)[self.rank].of(_stored(buf))

    def _find(
        self,
        call: str,
        buf: AnyArray,
        op: Any = _ABSENT,
        algorithm: str = "auto",
        *,
        root: Any = _ABSENT,
        number: int = 0,
    ) -> _Bound:
        """Return the compiled call on a buffer that nothing else is under way on."""
        self._executor.check()
        if self._under_way:
            self._let_finish(lambda key: _overlap(self._under_way[key][0], buf))
            self._under_way = {k: v for k, v in self._under_way.items() if not v[1].done}
        seen: _Seen = (id(buf), call, op, algorithm, root, number)
        if call == "all_reduce":
            seen = (id(buf), op, algorithm)  # as it looks there itself
        if seen in self._seen:
            _, kind, flags, bound = self._seen[seen]
            alike = buf.dtype is kind and buf.flags.num == flags
            if alike and bound.refusals == self._refusals:
                return bound
        return self._bind(seen, call, buf, op, algorithm, root=root, number=number)

    @property
    def _refusals(self) -> int:
        """Calls that this rank could not take part in.

        It is part of every signature: a rank that tries again what it has just refused must not
        meet others who are still in the first attempt. If all have refused the same, all go on.
        """
        return len(self._executor.matcher.refused)

    def _let_finish(self, which: Callable[[int], bool]) -> None:
        """Wait for what is under way, if it is one of ``which``."""
        for key in [key for key in self._under_way if which(key)]:
            _, handle = self._under_way.pop(key)
            handle.wait()

    def _evict(self, signature: str) -> None:
        """Forget what was compiled for a call, once it is through."""
        for bound in [bound for bound in self._bound.values() if bound.signature == signature]:
            self._forget(bound)

    def _forget(self, bound: _Bound) -> None:
        """Let go of a compiled call, once it is through, and with the last one of the buffer."""
        for seen in bound.seen:
            self._seen.pop(seen, None)
        del self._bound[bound.key]
        self._let_finish(lambda number: self._under_way[number][1].plan is bound.plan)
        self._executor.release(bound.plan)

    def _see(self, seen: _Seen, buf: AnyArray, bound: _Bound) -> None:
        """Remember an array as one that a compiled call is made with."""
        self._seen[seen] = (bound.run, buf.dtype, buf.flags.num, bound)
        bound.seen[seen] = (buf, weakref.ref(buf))
        if len(bound.seen) > _MOST_SEEN:  # new views of one place, again and again
            oldest = next(iter(bound.seen))
            del bound.seen[oldest]
            self._seen.pop(oldest, None)

    def _make_room(self) -> None:
        """Forget the oldest calls on plain arrays, which only live on for having been called with.

        Those on arrays from ``empty`` cost nothing but themselves.
        """
        plain = [bound for bound in self._bound.values() if bound.is_plain]
        nbytes = {bound.key[0]: bound.nbytes for bound in plain}
        while len(plain) > _MOST_PLAIN or (len(nbytes) > 1 and sum(nbytes.values()) > _MOST_BYTES):
            oldest = plain.pop(0)
            nbytes.pop(oldest.key[0], None)
            self._forget(oldest)

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
    ) -> _Bound:
        """Check a call's arguments and find what is compiled for it, or compile it.

        An array from ``empty`` is known by its place, so new views of it find what older ones
        left; any other by its identity.

        Raises:
            ConfigError: if they will not do; the other ranks are told.
        """
        wrong = self._wrong(buf, op, algorithm, root)
        if wrong:
            words = [str(word) for word in (op, root) if word is not _ABSENT]
            self._refuse(f"{call}({', '.join([*words, algorithm])})", wrong)
        vector = _stored(buf)
        place = self._executor.segments.locate(vector)
        where: object = place or id(buf)
        number = 0 if place is not None else number
        form = vector.ctypes.data, buf.dtype, buf.shape, buf.flags.c_contiguous
        key = (where, form, call, op, algorithm, root, number)
        bound = self._bound.get(key)
        if bound is not None and bound.refusals != self._refusals:
            self._forget(bound)
            bound = None
        if bound is None:
            bound = self._compile(key, call, buf, vector, place)
        self._see(seen, buf, bound)
        if bound.is_plain:
            self._make_room()
        return bound

    def _compile(
        self, key: _Key, call: str, buf: AnyArray, vector: AnyArray, place: SegmentOffset | None
    ) -> _Bound:
        """Compile a call on a buffer."""
        op, algorithm, root, number = key[-4:]
        name = ""
        if call in _ALL_REDUCES:
            name = self._pick(algorithm, vector.nbytes, vector.dtype, op).algorithm
        where = (
            "any array" if place is None else f"communicator.empty {place.segment}+{place.offset}"
        )
        words = [f"shape {buf.shape}", str(buf.dtype), where]
        words += [] if buf.flags.c_contiguous else ["columns first"]
        words += [op] if op is not _ABSENT else []
        words += [f"root {root}"] if root is not _ABSENT else []
        words += [name] if name else []
        words += [f"number {number}"] if call.endswith(_LATER) and place is None else []
        words += [f"after {self._refusals} refused calls"] if self._refusals else []
        signature = f"{call}({', '.join(words)})"
        plan = self._plan(call, signature, vector, place, op=op, name=name, root=root)
        run, is_plain = self._executor.runner(signature, plan), place is None
        bound = _Bound(key, signature, plan, run, is_plain, vector.nbytes, self._refusals)
        self._bound[key] = bound
        return bound

    def _plan(
        self,
        call: str,
        signature: str,
        vector: AnyArray,
        place: SegmentOffset | None,
        *,
        op: Any,
        name: str,
        root: Any,
    ) -> Plan:
        compiler, op = self._executor.compiler, "sum" if op is _ABSENT else op
        if name:
            return compiler.all_reduce(signature, vector, op, name, place)
        phase, root = call.removesuffix(_LATER).replace("_", "-"), 0 if root is _ABSENT else root
        return compiler.phase(signature, phase, vector, op=op, root=root, place=place)

    def _pick(self, algorithm: str, nbytes: int, kind: np.dtype[Any], op: str) -> Choice:
        key = (algorithm, nbytes, kind.name, op)
        if key not in self._choices:
            self._choices[key] = pick(algorithm, self.hosts, nbytes, kind, self._costs, op=op)
        return self._choices[key]

    def _wrong(self, buf: AnyArray, op: Any, algorithm: str, root: Any) -> str:
        """Return what is wrong with a call's arguments; empty if nothing is."""
        if self._closed:
            return "the communicator is closed"
        if not isinstance(buf, np.ndarray) or isinstance(buf, np.ma.MaskedArray):
            return f"a {type(buf).__name__} is no numpy array of numbers"
        if buf.dtype.name not in DTYPES or not buf.dtype.isnative:
            return f"{buf.dtype.str} numbers cannot be reduced, only native {', '.join(DTYPES)}"
        if not buf.flags.forc:
            return f"the array of shape {buf.shape} and strides {buf.strides} is not contiguous"
        if not buf.flags.writeable:
            return "the array is read-only"
        if op is not _ABSENT and op not in OPS:
            return f"unknown operation {op!r}, expected one of {', '.join(OPS)}"
        if op is not _ABSENT and not OPS[op].takes(buf.dtype):
            return f"{op} is for integers, got {buf.dtype}"
        if root is not _ABSENT and not (
            isinstance(root, (int, np.integer)) and 0 <= root < self.size
        ):
            return f"root {root} is none of {self.size} ranks"
        if algorithm not in ALL_REDUCES:
            return f"unknown algorithm {algorithm!r}, expected one of {', '.join(ALL_REDUCES)}"
        if algorithm == LIBRARY and not library_reduces(buf.dtype):
            return f"MPI has no reduction for {buf.dtype}; take another algorithm"
        return ""

    def _refuse(self, signature: str, why: str) -> NoReturn:
        """Tell the other ranks that this one cannot make its call.

        Raises:
            ConfigError: always.
        """
        if not self._closed:
            self._executor.matcher.refuse(signature, why)
            self._seen.clear()
        raise ConfigError(f"{signature}: {why}")


def _overlap(one: AnyArray, other: object) -> bool:
    """Tell whether two arrays have memory in common; they are contiguous, or will be refused."""
    return isinstance(other, np.ndarray) and np.may_share_memory(one, other)


def _stored(buf: AnyArray) -> AnyArray:
    """Return the elements of a contiguous array in the order in which they lie, uncopied."""
    plain = np.asarray(buf)  # whatever a class of its own makes of reshape
    return (plain if plain.flags.c_contiguous else plain.T).reshape(-1)
