"""Calls of torch as calls of a communicator: what lies where in memory, and what is left to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

import numpy as np

from psrt.core.arrays import AnyArray
from psrt.core.errors import ConfigError, DifferentCallsError
from psrt.torch.raw_bytes import dense, fill, on_host
from psrt.torch.reductions import reduction_of
from psrt.torch.views import tensor_on
from psrt.torch.works import Part

#: The most asynchronous calls in progress, of at most ``_SMALL_BYTES`` and of more. Each has memory
#: of its own, which all ranks take in the same turn; the next one first ends the oldest.
_SMALL, _LARGE, _SMALL_BYTES = 8, 2, 1 << 20
#: The tag of an all-to-all; those of the user's messages follow.
_ALL_TO_ALL = 0

#: A place in memory: whether it is a small one, and its number; −1 for blocking calls.
_Place: TypeAlias = tuple[bool, int]
#: Where a row of tensors begins in an array, in bytes, and the tensors.
_Row: TypeAlias = tuple[int, Sequence[Any]]


class Calls:
    """Starts the calls of one group. In each, tensors lie one after another in one array."""

    def __init__(self, ranks: Any, who: str) -> None:
        """Set up.

        Args:
            ranks: the communicator.
            who: this rank, in words.
        """
        self.ranks, self.who = ranks, who
        #: Whether the group has been destroyed.
        self.is_over = False
        #: Memory shared by the ranks of a host. A copy there costs less than messages.
        self._memory: dict[_Place, AnyArray] = {}
        #: The asynchronous call that uses a place.
        self._users: dict[_Place, Part] = {}
        self._started = 0

    def reduced(
        self, call: str, tensors: Sequence[Any], out: Any, opts: Any, root: int | None = None
    ) -> Part:
        """Start to reduce tensors into ``out``: all of them, or this rank's share."""
        how = reduction_of(self._one_type([*tensors, out]), opts.reduceOp, self.who)
        lengths = [it.numel() for it in tensors]
        place, array = self._room(sum(lengths) * how.kind.itemsize, opts)
        numbers = tensor_on(array).view(how.kind)
        for part, it in zip(numbers.split(lengths), tensors, strict=True):
            part.view(it.shape).copy_(dense(it, self.who))
        how.before(numbers)
        if call == "reduce_scatter":
            each = self._share(sum(lengths), out.numel())
            numbers = numbers[each * self.ranks.rank :][:each]

        def take() -> None:
            how.after(numbers)
            out.detach().copy_(numbers.view(out.shape))

        arguments = array.view(how.dtype), how.op
        return self._start(place, call, arguments, opts, root, self._if_mine(root, take))

    def gathered(
        self, call: str, row: Sequence[Any], tensor: Any, opts: Any, root: int | None = None
    ) -> Part:
        """Start to put the tensors of all ranks together, in a row of tensors or in one."""
        mine = self.ranks.rank * tensor.nbytes, [tensor]
        return self._moved(call, (tensor.nbytes, self.ranks.size), mine, (0, row), opts, root)

    def scattered(self, row: Sequence[Any], out: Any, opts: Any, root: int) -> Part:
        """Start to give each rank one tensor of the root's row."""
        mine = self.ranks.rank * out.nbytes, [out]
        return self._moved("scatter", (out.nbytes, self.ranks.size), (0, row), mine, opts, root)

    def spread(self, tensor: Any, out: Any, opts: Any, root: int) -> Part:
        """Start to give all ranks the root's tensor."""
        put = [tensor] if root == self.ranks.rank else []
        return self._moved("broadcast", (out.nbytes, 1), (0, put), (0, [out]), opts, root)

    def sent(self, tensor: Any, dest: int, tag: int) -> Part:
        """Start to send a tensor."""
        return Part(self.ranks.send_async(self.on_host(tensor).numpy(), dest, tag + 1))

    def received(self, tensor: Any, source: int | None, tag: int) -> Part:
        """Start to receive a tensor."""
        raw = self.on_host(tensor)
        handle = self.ranks.recv_async(raw.numpy(), source, tag + 1)
        return Part(handle, partial(fill, tensor, raw))

    def exchanged(self, sent: Sequence[Any], got: Sequence[Any]) -> list[Part]:
        """Start to send each rank its bytes, and to receive this rank's from each."""
        me = self.ranks.rank
        if len(sent[me]) != len(got[me]):
            self._refuse(f"sends itself {len(sent[me])} bytes, expected {len(got[me])}")
        got[me].copy_(sent[me])
        others = [rank for rank in range(self.ranks.size) if rank != me]
        handles = [self.ranks.recv_async(got[it].numpy(), it, _ALL_TO_ALL) for it in others]
        handles += [self.ranks.send_async(sent[it].numpy(), it, _ALL_TO_ALL) for it in others]
        return [Part(handle) for handle in handles]

    def split(self, raw: Any, tensor: Any, rows: Sequence[int]) -> Any:
        """Return the bytes of a tensor for each rank: of its rows, or of an equal share."""
        if not rows:
            return raw.split([self._share(len(raw))] * self.ranks.size)
        if sum(rows) != len(tensor) or len(rows) != self.ranks.size:
            self._refuse(
                f"got splits {list(rows)} of {len(tensor)} rows for {self.ranks.size} ranks"
            )
        return raw.split([it * (len(raw) // max(1, len(tensor))) for it in rows])

    def on_host(self, tensor: Any) -> Any:
        """Return the bytes of a tensor; see ``psrt.torch.raw_bytes``."""
        self._check()
        return on_host(tensor, self.who)

    def end(self) -> None:
        """Refuse further calls, after those in progress."""
        if not self.ranks.closed:
            for part in self._users.values():
                part.finish()
        self.is_over = True
        self._memory.clear()

    def _moved(
        self, call: str, places: tuple[int, int], put: _Row, get: _Row, opts: Any, root: int | None
    ) -> Part:
        """Start to move tensors; ``places`` are the bytes of a rank's place, and their number."""
        self._one_type([*put[1], *get[1]])
        place, array = self._room(places[0] * places[1], opts)
        raw = tensor_on(array)
        for part, it in self._laid(raw, places[0], put):
            part.copy_(self.on_host(it))
        pairs = self._laid(raw, places[0], get)

        def take() -> None:
            for part, it in pairs:
                fill(it, part)

        return self._start(place, call, (array,), opts, root, take)

    def _laid(self, raw: Any, each: int, row: _Row) -> list[tuple[Any, Any]]:
        """Return tensors with their bytes: each has those of one place, or of all."""
        at, tensors = row
        lengths = [it.nbytes for it in tensors]
        if sum(lengths) not in (each, len(raw)) and tensors:
            self._refuse(f"got {sum(lengths)} bytes in tensors, expected {each} or {len(raw)}")
        return list(zip(raw[at : at + sum(lengths)].split(lengths), tensors, strict=True))

    def _start(
        self,
        place: _Place,
        call: str,
        arguments: tuple[Any, ...],
        opts: Any,
        root: int | None,
        take: Callable[[], None],
    ) -> Part:
        """Make a call of the communicator; an asynchronous one has its place until its end."""
        make = getattr(self.ranks, call + "_async" * opts.asyncOp)
        found = make(*arguments) if root is None else make(*arguments, root=root)
        if not opts.asyncOp:
            take()  # the next tensor of the same call has this place, too
            return Part(None)
        self._users[place] = Part(found, take)
        return self._users[place]

    def _room(self, nbytes: int, opts: Any) -> tuple[_Place, AnyArray]:
        """Return a place that no call uses, and (nbytes,) uint8 there."""
        self._check()
        small = nbytes <= _SMALL_BYTES
        number = -1
        if opts.asyncOp:
            number = self._started % (_SMALL if small else _LARGE)
            self._started += 1
        place = small, number
        if place in self._users:
            self._users[place].finish()
        whole = self._memory.get(place)
        if whole is None or whole.size < nbytes:
            try:
                whole = self.ranks.empty(1 << max(0, nbytes - 1).bit_length(), np.uint8)
            except DifferentCallsError as error:
                raise DifferentCallsError(
                    f"{error}; this is the memory for the {nbytes} bytes of a call of "
                    "torch.distributed here: expected the same call on every rank"
                ) from error
            self._memory[place] = whole
        return place, whole[:nbytes]

    def _share(self, whole: int, part: int | None = None) -> int:
        """Return what each rank has of a number of elements, or of bytes."""
        size: int = self.ranks.size
        if whole % size or part not in (None, whole // size):
            to = "" if part is None else f" for {part} on each"
            self._refuse(f"got {whole} elements{to}, expected a multiple of {size} ranks")
        return whole // size

    def _if_mine(self, root: int | None, take: Callable[[], None]) -> Callable[[], None]:
        return take if root in (None, self.ranks.rank) else lambda: None

    def _one_type(self, tensors: Sequence[Any]) -> Any:
        kinds = {str(it.dtype): it.dtype for it in tensors}
        if len(kinds) > 1:
            self._refuse(f"got tensors of {' and '.join(sorted(kinds))}, expected one type")
        return next(iter(kinds.values()), None)

    def _check(self) -> None:
        if self.is_over:
            self._refuse("the process group has been destroyed")
        if self.ranks.closed:
            self._refuse("the communicator of the process group is closed")

    def _refuse(self, why: str) -> NoReturn:
        raise ConfigError(f"{self.who}: {why}")
