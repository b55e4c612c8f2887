"""The non-blocking collectives and messages of ``Communicator``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from psrt.core.arrays import AnyArray
from psrt.core.errors import ConfigError
from psrt.core.partition import even_spans
from psrt.mpi.arguments import ABSENT, fault_of_message, stored

if TYPE_CHECKING:
    from psrt.mpi.call_cache import CallCache
    from psrt.mpi.collectives.executor import CollectiveExecutor, Work

#: The most equal operations on plain arrays that may be in progress at a time.
_AT_A_TIME = 8


class NonblockingCalls:
    """Starts collectives: the part of ``Communicator`` whose calls return a ``Work``."""

    #: This rank's number.
    rank: int
    #: The number of ranks.
    size: int
    _executor: CollectiveExecutor
    _calls: CallCache
    #: The number of calls started.
    _started = 0

    def all_reduce_async(self, buf: AnyArray, op: str = "sum", algorithm: str = "auto") -> Work:
        """Start an ``all_reduce`` and return at once; ``buf`` must not be used until it is done.

        No thread works on it: it progresses in ``test`` and ``wait`` of any handle of any
        communicator, and while other calls wait. Several may be in progress, and ranks may finish
        them in any order. The other collectives have this form, too: ``reduce_async`` and so on,
        with the arguments of the blocking call.

        Args:
            buf: as for ``all_reduce``, the same size, type and arguments on all ranks.
            op: name of the operation.
            algorithm: name of the all-reduce; ``auto`` picks one.

        Returns:
            A handle with ``test() -> bool`` and ``wait()``; its ``result`` is that of the blocking
            call.

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

        Neither array may be used until it is done.
        """
        return self._begin("all_to_all_async", buf, out=out)

    def send_async(self, buf: AnyArray, dest: int, tag: int = 0) -> Work:
        """Start to send an array to one rank; only the two take part.

        It is complete once ``buf`` may change, which for a long array is when the other rank
        receives it. Messages between two ranks with the same tag arrive in the order of their
        starts. Several may be in progress, in both directions.

        Args:
            buf: contiguous, of any type that ``empty`` takes; must not change until it is done.
            dest: the rank that receives it.
            tag: 0 or more; a message goes to a receive with the same tag.

        Returns:
            A handle as of ``all_reduce_async``; ``wait`` has the same deadline.

        Raises:
            ConfigError: if the arguments are not valid.
        """
        return self._begin_message("send_async", buf, dest, tag)

    def recv_async(self, buf: AnyArray, source: int | None = None, tag: int = 0) -> Work:
        """Start to fill an array with what one rank sends by ``send_async``.

        Args:
            buf: contiguous and writeable; must not be used until it is done.
            source: the rank that sends it; None takes the next message of any rank.
            tag: of the message.

        Returns:
            A handle as of ``all_reduce_async``; its ``result`` is the rank that sent the message.

        Raises:
            ConfigError: if the arguments are not valid.
            ProtocolError: from ``test`` or ``wait``, if the message has another number of bytes
                than ``buf``, or its sender has left; the communicator cannot be used afterwards.
        """
        return self._begin_message("recv_async", buf, source, tag)

    def _begin_message(self, call: str, buf: AnyArray, peer: int | None, tag: int) -> Work:
        messages = self._executor.messages
        wrong = fault_of_message(
            buf, peer, tag, size=self.size, tags=messages.most_tag, sends=call == "send_async"
        )
        if self._calls.closed or wrong:
            why = "the communicator is closed" if self._calls.closed else wrong
            raise ConfigError(f"rank {self._executor.name}: {call}({peer}, {tag}): {why}")
        self._executor.check()
        if call == "send_async" and peer is not None:
            return self._executor.start(messages.send(stored(buf), peer, tag), buf)
        return self._executor.start(messages.receive(stored(buf), peer, tag))

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
        # An earlier start with the same number must be complete before this one.
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
