"""Communicator: collectives on numpy arrays, without a trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from psrt.collective.analysis.choose import Choice
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts
from psrt.collective.registry import AUTO
from psrt.core.arrays import AnyArray
from psrt.core.errors import TransportError
from psrt.mpi.arguments import kind_and_lengths
from psrt.mpi.call_cache import CallCache
from psrt.mpi.nonblocking import NonblockingCalls

if TYPE_CHECKING:
    from mpi4py import MPI

    from psrt.mpi.company import Company


class Communicator(NonblockingCalls):
    """Ranks that reduce numpy arrays together. Collective to make and to close.

    A call takes one array, of the same shape on every rank, and works in place, as MPI does with
    ``MPI.IN_PLACE``; only ``all_to_all`` takes a second one. Where a rank sends or receives but a
    part, that is its *chunk* of the array: the ``rank``-th of
    ``psrt.core.partition.even_spans(buf.size, size)``, of the elements as they are stored.

    Every rank makes the same calls in the same order, on arrays of the same shape and type. Where
    they differ, every rank gets a ProtocolError in that call or in its next one. (A rank that
    neither sends nor receives an element in a call, such as one with an empty chunk, notices in the
    next call in which it does; in calls with a root, already the first time it makes them.) What is
    compiled for a call is kept, and with it an array of the caller's own: up to 64 calls, and
    256 MiB of arrays that nobody else may hold any more. Arrays from ``empty`` live until the end
    anyway.

    As a context manager it is closed at the end of the block. Where the block ends with an error on
    a rank, the others are not left waiting for that rank until the deadline: the call that they
    wait in, or their next one, raises a LeftError, which says which rank left with what. Where a
    program does not catch that, it is one line, and status 5.

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
        busy_timeout_s: float = 3600.0,
        machine_costs: MachineCosts | None = None,
        host: int | None = None,
        names: Sequence[int] = (),
        waits: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Set up, and start MPI if it is not running.

        Args:
            comm: the ranks, duplicated; None takes all ranks of the job.
            timeout_s: seconds that a call waits while no rank is known to be busy: who computes,
                loads or validates is not late. Nor is a rank silent for longer than this. Ranks
                have 20 s for making the communicator if that is more.
            busy_timeout_s: seconds that a call waits for ranks that are busy.
            machine_costs: for ``auto``, the same on every rank; None takes psrt's own.
            host: ranks that give the same number count as being on one host if they really are;
                None leaves it to MPI.
            names: see ``Fabric``.
            waits: further arguments of a ``CollectiveExecutor``: how those of a job wait.

        Raises:
            ConfigError: if there is no MPI library.
            TransportError: if a rank does not come to make it within the deadline.

        A rank that stops halfway through making or closing it ends the others, status 4.
        """
        from psrt.mpi.start import world  # isort: skip  # starts MPI
        from psrt.mpi.collectives.executor import CollectiveExecutor
        from psrt.mpi.collectives.slots import FLOATS
        from psrt.mpi.company import company_of, known
        from psrt.mpi.deadline import in_time, meet
        from psrt.mpi.fabric import Fabric

        ranks = world() if comm is None else comm
        self._timeout_s = timeout_s
        before = known(ranks)
        excuse = () if before is None else (before.busy_until,)
        meet(ranks, timeout_s, "the other ranks to make a communicator", *excuse)
        self._company: Company | None = None
        with in_time(ranks.rank, timeout_s, "makes a communicator"):
            self._fabric = Fabric(ranks, host, floats=FLOATS, names=names)
            if ranks.size > 1 and "busy_until" not in waits:
                self._company = company_of(self._fabric.comm, timeout_s, self._leave)
                self._members = self._company.places(ranks)
                waits = {
                    "busy_until": self._company.busy_until,
                    "busy_timeout_s": busy_timeout_s,
                    "while_idle": self._look_for_the_lost,
                    "lost": partial(self._company.late, self._members, 0.0),
                }
            self._executor = CollectiveExecutor(self._fabric, timeout_s=timeout_s, **waits)
        layout = self._executor.layout
        #: This rank.
        self.rank = layout.rank
        #: Ranks in all.
        self.size = layout.size
        #: Number of ranks on each host.
        self.hosts = tuple(len(ranks) for ranks in layout.hosts)
        self._calls = CallCache(self._executor, self.hosts, machine_costs or DEFAULT_COSTS)
        # all_reduce looks into these itself, which saves it a call.
        self._seen, self._under_way = self._calls.seen, self._calls.under_way

    def _leave(self) -> None:
        """Tell the others that this rank's program has ended, and left this open."""
        self._executor.leave(None)

    def _look_for_the_lost(self) -> None:
        """Raise a ``TransportError`` if a rank has died, or is silent and not at work."""
        assert self._company is not None, "who has none does not look"
        text = self._company.late(self._members, self._timeout_s)
        if text:
            raise TransportError(f"{text}; this rank waits in {self._executor.matcher.latest()}")

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> AnyArray:
        """Return a new array, zero at first, that the ranks of this host can see; collective.

        Collectives on it copy nothing through MPI inside the host. It lives until the communicator
        is closed and must not be used afterwards.

        Args:
            shape: the same on every rank.
            dtype: one of ``DTYPES``, or another of 1, 2, 4, 8 or 16 plain bytes, whose elements can
                be sent; the same on every rank.

        Raises:
            ConfigError: if there is no such array.
            ProtocolError: if the ranks do not ask for the same.
        """
        signature = f"empty({shape}, {dtype})"
        self._calls.check_open(signature)
        try:
            kind, lengths = kind_and_lengths(shape, dtype)
        except (TypeError, ValueError) as error:
            self._calls.refuse(signature, str(error))
        self._executor.meet(f"empty({lengths}, {kind})")
        segment = self._executor.segments.make(math.prod(lengths) * kind.itemsize)
        buffer = self._executor.segments.buffers(segment)[self._executor.layout.local_rank]
        return buffer.view(kind).reshape(shape)

    def all_reduce(self, buf: AnyArray, op: str = "sum", algorithm: str = "auto") -> AnyArray:
        """Reduce ``buf`` over all ranks, in place: every rank ends with the same bits.

        Args:
            buf: contiguous and writeable, of one of ``DTYPES``; the same shape on every rank.
                Fastest where it comes from ``empty``.
            op: sum, mean, min, max or prod; and, or, xor of the bits of integers. The mean of
                integers is rounded down. A mean fits where the numbers do, though their sum may
                not.
            algorithm: ``auto`` picks by size, ranks, hosts and costs (see ``choice``); ``node``
                folds in shared memory; a name of ``psrt.collective.ALGORITHMS`` runs that
                schedule over all ranks, ``node+`` and a name runs it between hosts; ``mpi`` is
                the library's own, which promises less: the order of its sums is its own, and the
                ranks may end with different numbers where the op is min or max and one of them
                has a NaN or a -0.0. ``auto`` does not take it for these.

        Returns:
            ``buf``.

        Raises:
            ConfigError: if this rank's arguments are not valid; the others get a ProtocolError.
            ProtocolError: on every rank, if their calls differ; the communicator cannot be used
                afterwards.
            TransportError: if a rank does not arrive within the deadline.
        """
        try:
            run, kind, flags, _ = self._seen[id(buf), op, algorithm]
        except (KeyError, TypeError):  # TypeError: an operation such as MPI.SUM
            run = None
        # An array may have become another one in place, as by ``buf.dtype = np.int32``.
        if run is None or buf.dtype is not kind or buf.flags.num != flags or self._under_way:
            run = self._calls.find("all_reduce", buf, op, algorithm).run
        run()
        return buf

    def reduce_scatter(self, buf: AnyArray, op: str = "sum") -> AnyArray:
        """Reduce ``buf`` over all ranks and leave each with its chunk of the result.

        Args:
            buf: as in ``all_reduce``; the chunks of the other ranks are undefined afterwards.
            op: as in ``all_reduce``.

        Returns:
            This rank's chunk, a flat view of ``buf``, which is where it stays.

        Raises:
            PsrtError: as ``all_reduce``.
        """
        self._calls.find("reduce_scatter", buf, op).run()
        return self._chunk(buf)

    def all_gather(self, buf: AnyArray) -> AnyArray:
        """Fill ``buf`` with every rank's chunk of it, as ``reduce_scatter`` cuts and leaves them.

        Args:
            buf: as in ``all_reduce``, of the length of the result; each rank fills its own chunk.

        Returns:
            ``buf``.

        Raises:
            PsrtError: as ``all_reduce``.
        """
        self._calls.find("all_gather", buf).run()
        return buf

    def broadcast(self, buf: AnyArray, root: int = 0) -> AnyArray:
        """Fill ``buf`` with that of rank ``root``.

        Args:
            buf: as in ``all_reduce``; of any type that ``empty`` takes, as in all calls that only
                send.
            root: the same on every rank.

        Returns:
            ``buf``.

        Raises:
            PsrtError: as ``all_reduce``.
        """
        self._calls.find("broadcast", buf, root=root).run()
        return buf

    def reduce(self, buf: AnyArray, op: str = "sum", root: int = 0) -> AnyArray:
        """Reduce ``buf`` over all ranks into that of rank ``root``.

        Args:
            buf: as in ``all_reduce``; those of the other ranks are undefined afterwards.
            op: as in ``all_reduce``.
            root: the same on every rank.

        Returns:
            ``buf``.

        Raises:
            PsrtError: as ``all_reduce``.
        """
        self._calls.find("reduce", buf, op, root=root).run()
        return buf

    def scatter(self, buf: AnyArray, root: int = 0) -> AnyArray:
        """Leave each rank with its chunk of rank ``root``'s ``buf``.

        Args:
            buf: as in ``all_reduce``, of the whole length on every rank. What it holds elsewhere
                than in the own chunk is of no use afterwards, but at ``root``, where nothing
                changes.
            root: the same on every rank.

        Returns:
            This rank's chunk, a view, as ``reduce_scatter`` returns it.

        Raises:
            PsrtError: as ``all_reduce``.
        """
        self._calls.find("scatter", buf, root=root).run()
        return self._chunk(buf)

    def gather(self, buf: AnyArray, root: int = 0) -> AnyArray:
        """Fill rank ``root``'s ``buf`` with every rank's chunk, as ``scatter`` cuts them.

        Args:
            buf: as in ``all_reduce``, of the length of the result on every rank; each fills its own
                chunk. The other ranks keep theirs; what else their arrays hold is of no use
                afterwards.
            root: the same on every rank.

        Returns:
            ``buf``.

        Raises:
            PsrtError: as ``all_reduce``.
        """
        self._calls.find("gather", buf, root=root).run()
        return buf

    def all_to_all(self, buf: AnyArray, out: AnyArray | None = None) -> AnyArray:
        """Send each rank the block that every rank has for it, as ``MPI.Alltoall`` does.

        Args:
            buf: (size, …) or (size · k,): ``size`` equal blocks one after another, block j for
                rank j; contiguous with rows first, the same shape on every
                rank. From ``empty``, it is read by the other ranks of the host where it lies.
            out: where the result goes: of the type of ``buf`` and as many elements, anywhere but
                in ``buf``, which is only read then. None: to ``buf``, as with ``MPI.IN_PLACE``.

        Returns:
            ``out``, or ``buf`` where that is None; block i is what rank i had for this rank.

        Raises:
            PsrtError: as ``all_reduce``; ConfigError also if these are not ``size`` equal blocks.
        """
        self._calls.find("all_to_all", buf, out=out).run()
        return buf if out is None else out

    def choice(self, nbytes: int, dtype: npt.DTypeLike = np.float32, op: str = "sum") -> Choice:
        """Return what ``auto`` picks, the prediction, and why.

        Args:
            nbytes: of the vector.
            dtype: of its elements.
            op: name of the operation.
        """
        return self._calls.pick(AUTO, nbytes, np.dtype(dtype), op)

    @property
    def closed(self) -> bool:
        """Whether it is closed, so that arrays from ``empty`` must not be used any more."""
        return self._calls.closed

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to other ranks so far, by MPI or through shared memory."""
        return self._executor.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes received from other ranks so far."""
        return self._executor.bytes_received

    def close(self) -> None:
        """Free all resources; collective. Arrays from ``empty`` must not be used afterwards.

        Raises:
            ProtocolError: if other ranks are in another call.
        """
        if self._calls.closed:
            return
        from psrt.mpi.deadline import in_time

        self._calls.closed = True
        try:
            if not self._executor.broken:
                self._calls.let_finish(lambda number: True)
                self._executor.meet("close()")
        finally:
            if not self._executor.broken:  # or MPI may still be writing to what they hold
                self._calls.clear()
            with in_time(self.rank, self._timeout_s, "closes a communicator"):
                try:
                    self._executor.close(met=True)
                finally:
                    self._fabric.close(alone=bool(self._executor.broken))
                    if self._company is not None:
                        self._company.leave(self._leave)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self._calls.closed:
            self._executor.leave(error)
        self.close()
