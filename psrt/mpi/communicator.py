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
from psrt.core.errors import ConfigError, TransportError
from psrt.mpi.arguments import fault_of_group, kind_and_lengths
from psrt.mpi.call_cache import CallCache
from psrt.mpi.nonblocking import NonblockingCalls
from psrt.mpi.repeated_sums import RepeatedSums

if TYPE_CHECKING:
    from mpi4py import MPI

    from psrt.mpi.company import Company


class Communicator(NonblockingCalls, RepeatedSums):
    """Ranks that reduce numpy arrays together. Collective to make and to close.

    A call takes one array, of the same shape on every rank, and works in place, as MPI does with
    ``MPI.IN_PLACE``; only ``all_to_all`` takes a second one. Where a rank sends or receives only a
    part, that is its *chunk* of the array: the ``rank``-th of
    ``psrt.core.partition.even_spans(buf.size, size)``, of the elements in memory order.

    Every rank makes the same calls in the same order, on arrays of the same shape and type. If
    calls differ, every rank gets a ProtocolError in that call or in its next one. (A rank that
    neither sends nor receives in a call, such as one with an empty chunk, notices in the next call
    in which it does. In calls with a root it notices the first time that it makes them.) Compiled
    calls are kept, and keep their arrays alive: up to 64 calls, and 256 MiB of arrays that the
    caller may have dropped. Arrays from ``empty`` live until the end anyway.

    As a context manager it is closed at the end of the block. If the block ends with an error on
    one rank, the others do not wait for that rank until the deadline: their current or next call
    raises a LeftError that names the rank and its error. If a program does not catch that, it ends
    with one line and status 5.

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
            timeout_s: seconds that a call waits for a rank that is not known to be busy: a rank
                that computes, loads or validates is not late. Also the longest time that a rank
                may give no sign of life. Making the communicator may take at least 20 s.
            busy_timeout_s: seconds that a call waits for ranks that are busy.
            machine_costs: for ``auto``, the same on every rank; None takes psrt's defaults.
            host: ranks with the same number count as being on one host if they really are; None
                leaves it to MPI.
            names: see ``Fabric``.
            waits: further arguments of a ``CollectiveExecutor``, for communicators within a job.

        Raises:
            ConfigError: if there is no MPI library.
            TransportError: if a rank does not take part within the deadline.

        If a rank stops halfway through making or closing it, the others end with status 4.
        """
        from psrt.mpi.start import world  # isort: skip  # starts MPI
        from psrt.mpi.collectives.executor import CollectiveExecutor
        from psrt.mpi.collectives.slots import FLOATS
        from psrt.mpi.company import company_of, known
        from psrt.mpi.deadline import in_time, meet
        from psrt.mpi.fabric import Fabric

        ranks = world() if comm is None else comm
        self._timeout_s = timeout_s
        self._for_groups: dict[str, Any] = {
            "timeout_s": timeout_s,
            "busy_timeout_s": busy_timeout_s,
            "machine_costs": machine_costs,
            "host": host,
        }
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
        #: This rank's number.
        self.rank = layout.rank
        #: The number of ranks.
        self.size = layout.size
        #: The number of ranks on each host.
        self.hosts = tuple(len(ranks) for ranks in layout.hosts)
        self._calls = CallCache(self._executor, self.hosts, machine_costs or DEFAULT_COSTS)
        # ``all_reduce`` reads these directly, which saves a call.
        self._seen, self._under_way = self._calls.seen, self._calls.under_way

    def _leave(self) -> None:
        """Tell the others that this rank's program has ended without closing this."""
        self._executor.leave(None)

    def _look_for_the_lost(self) -> None:
        """Raise a ``TransportError`` if a rank has died, or is silent without computing."""
        assert self._company is not None, "only communicators with a company look"
        text = self._company.late(self._members, self._timeout_s)
        if text:
            raise TransportError(f"{text}; this rank waits {self._executor.doing()}")

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> AnyArray:
        """Return a new array of zeros that the ranks of this host can see; collective.

        Inside the host, collectives on it copy nothing through MPI. It lives until the communicator
        is closed and must not be used afterwards.

        Args:
            shape: the same on every rank.
            dtype: one of ``DTYPES``; or any other of 1, 2, 4, 8 or 16 plain bytes, which can be
                sent but not reduced; the same on every rank.

        Raises:
            ConfigError: if such an array cannot be made.
            ProtocolError: if the ranks ask for different arrays.
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
                Fastest if it comes from ``empty``.
            op: sum, mean, min, max or prod; and, or, xor of the bits of integers. The mean of
                integers is rounded down. A mean does not overflow, even where the sum would.
            algorithm: ``auto`` picks by size, ranks, hosts and costs (see ``choice``); ``node``
                folds in shared memory; a name of ``psrt.collective.ALGORITHMS`` runs that
                schedule over all ranks, and ``node+`` with a name runs it between hosts. ``mpi``
                is the MPI library's, which promises less: it may sum in any order, and ranks may
                end with different numbers for min and max if there is a NaN or a -0.0. ``auto``
                does not take it for these.

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
        # The same object may have another type or shape now, as after ``buf.dtype = np.int32``.
        if run is None or buf.dtype is not kind or buf.flags.num != flags or self._under_way:
            run = self._calls.find("all_reduce", buf, op, algorithm).run
        run()
        return buf

    def reduce_scatter(self, buf: AnyArray, op: str = "sum") -> AnyArray:
        """Reduce ``buf`` over all ranks and leave each with its chunk of the result.

        Args:
            buf: as in ``all_reduce``; afterwards the chunks of other ranks in it are undefined.
            op: as in ``all_reduce``.

        Returns:
            This rank's chunk, as a flat view of ``buf``.

        Raises:
            PsrtError: as ``all_reduce``.
        """
        self._calls.find("reduce_scatter", buf, op).run()
        return self._chunk(buf)

    def all_gather(self, buf: AnyArray) -> AnyArray:
        """Fill ``buf`` with every rank's chunk of it; chunks are those of ``reduce_scatter``.

        Args:
            buf: as in ``all_reduce``, with the length of the result; before the call each rank
                fills its own chunk.

        Returns:
            ``buf``.

        Raises:
            PsrtError: as ``all_reduce``.
        """
        self._calls.find("all_gather", buf).run()
        return buf

    def broadcast(self, buf: AnyArray, root: int = 0) -> AnyArray:
        """Fill ``buf`` with the ``buf`` of rank ``root``.

        Args:
            buf: as in ``all_reduce``, but of any type that ``empty`` takes, as in all calls that do
                not reduce.
            root: the same on every rank.

        Returns:
            ``buf``.

        Raises:
            PsrtError: as ``all_reduce``.
        """
        self._calls.find("broadcast", buf, root=root).run()
        return buf

    def reduce(self, buf: AnyArray, op: str = "sum", root: int = 0) -> AnyArray:
        """Reduce ``buf`` over all ranks into the ``buf`` of rank ``root``.

        Args:
            buf: as in ``all_reduce``; undefined afterwards on the other ranks.
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
            buf: as in ``all_reduce``, with the whole length on every rank. On ``root`` it does not
                change; on other ranks all except the own chunk is undefined afterwards.
            root: the same on every rank.

        Returns:
            This rank's chunk, a view, as ``reduce_scatter`` returns it.

        Raises:
            PsrtError: as ``all_reduce``.
        """
        self._calls.find("scatter", buf, root=root).run()
        return self._chunk(buf)

    def gather(self, buf: AnyArray, root: int = 0) -> AnyArray:
        """Fill rank ``root``'s ``buf`` with every rank's chunk; chunks are those of ``scatter``.

        Args:
            buf: as in ``all_reduce``, with the length of the result on every rank; before the call
                each fills its own chunk. Other ranks keep their chunk; the rest of their ``buf`` is
                undefined afterwards.
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
                rank j; contiguous in C order, the same shape on every rank. If it comes from
                ``empty``, the other ranks of the host read it in place.
            out: receives the result: an array of the type and number of elements of ``buf`` that
                does not overlap it; ``buf`` is then only read. None for ``buf``, as with
                ``MPI.IN_PLACE``.

        Returns:
            ``out``, or ``buf`` if that is None; block i is the one that rank i had for this rank.

        Raises:
            PsrtError: as ``all_reduce``; ConfigError also if ``buf`` is not ``size`` equal blocks.
        """
        self._calls.find("all_to_all", buf, out=out).run()
        return buf if out is None else out

    def group(self, ranks: Sequence[int], name: str = "") -> Communicator:
        """Make a communicator of some of these ranks; collective among them only.

        It has the deadlines of this one. Rank i of it is ``ranks[i]``; errors name ranks by their
        number in the first communicator.

        Args:
            ranks: the members, this rank among them; the same list on each. A rank that is in two
                groups makes them in the same order as the others in both.
            name: what tells groups of the same ranks apart.

        Raises:
            ConfigError: if ``ranks`` are not valid.
            ProtocolError: if the members make different groups.
            TransportError: if one of them does not take part within the deadline.
        """
        from psrt.mpi.subgroup import subgroup

        ranks = list(ranks)
        wrong = fault_of_group(ranks, rank=self.rank, size=self.size)
        if self._calls.closed or wrong:
            why = "the communicator is closed" if self._calls.closed else wrong
            raise ConfigError(f"rank {self._executor.name}: group({ranks}): {why}")
        self._executor.check()
        comm = subgroup(self._executor, ranks, name, self._timeout_s)
        names = [self._fabric.names[rank] for rank in ranks]
        try:
            return Communicator(comm, names=names, **self._for_groups)
        finally:
            comm.Free()

    def choice(self, nbytes: int, dtype: npt.DTypeLike = np.float32, op: str = "sum") -> Choice:
        """Return the all-reduce that ``auto`` picks, with the predictions and the reason.

        Args:
            nbytes: of the vector.
            dtype: of its elements.
            op: name of the operation.
        """
        return self._calls.pick(AUTO, nbytes, np.dtype(dtype), op)

    @property
    def closed(self) -> bool:
        """Whether it is closed; arrays from ``empty`` must not be used then."""
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
            if not self._executor.broken:  # otherwise MPI may still write to their buffers
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
