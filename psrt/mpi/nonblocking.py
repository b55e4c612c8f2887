"""The collectives that return at once, as users call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from psrt.core.arrays import AnyArray
from psrt.core.partition import even_spans
from psrt.mpi.arguments import ABSENT, stored

if TYPE_CHECKING:
    from psrt.mpi.call_cache import CallCache
    from psrt.mpi.collectives.executor import CollectiveExecutor, Work

#: Unfinished operations on plain arrays alike that may be under way at a time.
_AT_A_TIME = 8


class NonblockingCalls:
    """Begins collectives; the part of ``Communicator`` whose calls return a ``Work``."""

    #: This rank.
    rank: int
    #: Number of ranks.
    size: int
    _executor: CollectiveExecutor
    _calls: CallCache
    #: Number of calls begun.
    _started = 0

    def all_reduce_async(self, buf: AnyArray, op: str = "sum", algorithm: str = "auto") -> Work:
        """Begin an ``all_reduce`` and return at once; ``buf`` must be left alone until it is done.

        There is no thread behind it: it moves on in ``test`` and ``wait`` of any handle, of any
        communicator, and while other calls wait. Several may be under way; ranks may finish them in
        any order. The other collectives have such a form, too: ``reduce_async`` and so on, with the
        arguments of the call that waits.

        Args:
            buf: as for ``all_reduce``, the same size, type and arguments on all ranks.
            op: name of the operation.
            algorithm: name of the all-reduce; ``auto`` picks one.

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

    def all_to_all_async(self, buf: AnyArray, out: AnyArray | None = None) -> Work:
        """Begin an ``all_to_all``, as ``all_reduce_async`` does an ``all_reduce``.

        Both arrays must be left alone until it is done.
        """
        return self._begin("all_to_all_async", buf, out=out)

    def _begin(
        self,
        call: str,
        buf: AnyArray,
        op: Any = ABSENT,
        algorithm: str = "auto",
        *,
        root: Any = ABSENT,
        out: AnyArray | None = None,
        result: Callable[[AnyArray], AnyArray] = lambda buf: buf,
    ) -> Work:
        """Make a call and return at once; ``result`` is what it returns of its buffer."""
        number = self._started % _AT_A_TIME
        self._started += 1
        # One that was started long ago with the same number must be through before its like.
        self._calls.let_finish(lambda key: key == number)
        bound = self._calls.find(call, buf, op, algorithm, root=root, number=number, out=out)
        self._executor.call(bound.signature)
        handle = self._executor.start(bound.plan, result(buf) if out is None else out)
        if not handle.done:
            self._calls.under_way[number] = (buf, out, handle)
        return handle

    def _chunk(self, buf: AnyArray) -> AnyArray:
        """Return this rank's chunk of a buffer."""
        return even_spans(buf.size, self.size)[self.rank].of(stored(buf))
