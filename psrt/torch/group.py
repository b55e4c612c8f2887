# ruff: noqa: D102, N802 (names and meanings are those of torch)
"""A process group of torch whose ranks are those of a communicator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from psrt.torch.calls import Calls
from psrt.torch.raw_bytes import fill
from psrt.torch.works import Part, Pending, done

NAME = "psrt"
#: What a call means that says nothing else.
_DEFAULTS: Any = SimpleNamespace(reduceOp=dist.ReduceOp.SUM, rootRank=0, asyncOp=True)


class Group(dist.ProcessGroup):  # type: ignore[misc]
    """The ranks of a communicator, as torch calls them: by these names, from Python and from C++.

    A call takes lists: of one tensor on each rank, or of several if it is a coalesced one.
    """

    def __init__(
        self, store: Any, ranks: Any, number: int, *, closes: bool, ends: Callable[[Any], None]
    ) -> None:
        """Set up.

        Args:
            store: of torch, for its users.
            ranks: the communicator.
            number: of this rank, for errors.
            closes: whether the end of this group closes the communicator.
            ends: called at its end.
        """
        super().__init__(ranks.rank, ranks.size)
        self.ranks = ranks
        self._store, self._number, self._closes, self._ends = store, number, closes, ends
        self._calls = Calls(ranks, f"rank {number}")
        #: The calls since ``_start_coalescing``; None outside.
        self._together: list[Part] | None = None

    # torch keeps these in the backends of a group, and this one has none.
    def getBackendName(self) -> str:
        return NAME

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, words: str) -> None:
        self._words = words

    def getGroupDesc(self) -> str:
        return self._words

    def get_group_store(self) -> Any:
        return self._store

    def allreduce(self, tensors: Any, opts: Any = _DEFAULTS) -> Any:
        tensors, call = _listed(tensors), self._calls.reduced
        return self._end([call("all_reduce", [it], it, opts) for it in tensors], tensors, opts)

    def reduce(self, tensors: Any, opts: Any = _DEFAULTS) -> Any:
        tensors, root, call = _listed(tensors), opts.rootRank, self._calls.reduced
        return self._end([call("reduce", [it], it, opts, root) for it in tensors], tensors, opts)

    def reduce_scatter(self, outs: Any, rows: Any, opts: Any = _DEFAULTS) -> Any:
        parts, call = [], self._calls.reduced
        for out, row in zip(outs, rows, strict=True):
            if len({it.shape for it in row}) == 1:
                parts.append(call("reduce_scatter", row, out, opts))
            else:  # the chunks of a communicator have one length
                parts += [call("reduce", [it], out, opts, root) for root, it in enumerate(row)]
        return self._end(parts, outs, opts)

    def reduce_scatter_single(self, out: Any, tensor: Any, opts: Any = _DEFAULTS) -> Any:
        return self.reduce_scatter([out], [[tensor]], opts)

    def reduce_scatter_single_coalesced(
        self, outs: Any, tensors: Any, opts: Any = _DEFAULTS
    ) -> Any:
        return self.reduce_scatter(outs, [[it] for it in tensors], opts)

    def broadcast(self, tensors: Any, opts: Any = _DEFAULTS) -> Any:
        tensors, root, call = _listed(tensors), opts.rootRank, self._calls.spread
        return self._end([call(it, it, opts, root) for it in tensors], tensors, opts)

    def allgather(self, outs: Any, tensors: Any, opts: Any = _DEFAULTS) -> Any:
        parts, calls = [], self._calls
        for row, tensor in zip(outs, tensors, strict=True):
            if len({it.shape for it in row}) == 1:
                parts.append(calls.gathered("all_gather", row, tensor, opts))
            else:
                parts += [calls.spread(tensor, it, opts, root) for root, it in enumerate(row)]
        return self._end(parts, outs, opts)

    def allgather_coalesced(self, outs: Any, tensors: Any, opts: Any = _DEFAULTS) -> Any:
        return self.allgather(list(zip(*outs, strict=True)), tensors, opts)

    def all_gather_single(self, out: Any, tensor: Any, opts: Any = _DEFAULTS) -> Any:
        return self.allgather([[out]], [tensor], opts)

    def all_gather_single_coalesced(self, outs: Any, tensors: Any, opts: Any = _DEFAULTS) -> Any:
        return self.allgather([[it] for it in outs], tensors, opts)

    def gather(self, outs: Any, tensors: Any, opts: Any = _DEFAULTS) -> Any:
        row = outs[0] if opts.rootRank == self.ranks.rank else []
        parts = [self._calls.gathered("gather", row, tensors[0], opts, opts.rootRank)]
        return self._end(parts, outs, opts)

    def scatter(self, outs: Any, tensors: Any, opts: Any = _DEFAULTS) -> Any:
        row = tensors[0] if opts.rootRank == self.ranks.rank else []
        parts = [self._calls.scattered(row, outs[0], opts, opts.rootRank)]
        return self._end(parts, outs, opts)

    def barrier(self, opts: Any = _DEFAULTS) -> Any:
        one = torch.zeros(1, dtype=torch.uint8)
        return self._end([self._calls.gathered("all_gather", [], one, opts)], [], opts)

    def alltoall(self, outs: Any, tensors: Any, opts: Any = _DEFAULTS) -> Any:
        sent, got = (list(map(self._calls.on_host, side)) for side in (tensors, outs))
        fills = [Part(None, partial(fill, it, raw)) for it, raw in zip(outs, got, strict=True)]
        return self._end(self._calls.exchanged(sent, got) + fills, outs, opts)

    def all_to_all_single(
        self, out: Any, tensor: Any, into: Any = (), rows: Any = (), opts: Any = _DEFAULTS
    ) -> Any:
        calls, got = self._calls, self._calls.on_host(out)
        sent = calls.split(calls.on_host(tensor), tensor, rows)
        parts = calls.exchanged(sent, calls.split(got, out, into))
        return self._end([*parts, Part(None, partial(fill, out, got))], [out], opts)

    def send(self, tensors: Any, dest: int, tag: int = 0) -> Any:
        tensors = _listed(tensors)
        return self._end([self._calls.sent(it, dest, tag) for it in tensors], tensors)

    def recv(self, tensors: Any, source: int | None, tag: int = 0) -> Any:
        tensors = _listed(tensors)
        return self._end([self._calls.received(it, source, tag) for it in tensors], tensors)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self.recv(tensors, None, tag)

    def _start_coalescing(self, device: Any = None) -> None:
        self._together = []

    def _end_coalescing(self, device: Any = None) -> Any:
        parts, self._together = self._together or [], None
        return self._end(parts, [])

    def split_group(
        self, ranks: Sequence[int], group_name: str = "", group_desc: str = "", **_: Any
    ) -> Group | None:
        if self.ranks.rank not in ranks:
            return None
        name = group_name or f"{self._name}/{list(ranks)}"
        made = self.ranks.group(ranks, name)
        child = Group(self._store, made, self._number, closes=True, ends=self._ends)
        child.setGroupName(name)
        child.setGroupDesc(group_desc or name)
        return child

    def shutdown(self) -> None:
        """End the group; collective. Called by torch when the group is destroyed."""
        if self._calls.is_over:
            return
        error = sys.exc_info()
        if error[0] is None:
            self._calls.end()
        self._calls.is_over = True
        self._ends(self)
        if self._closes:  # tells the others the error that ends this rank's calls
            self.ranks.__exit__(*error)

    def _end(self, parts: list[Part], result: Any, opts: Any = _DEFAULTS) -> Any:
        """Return what torch waits for."""
        if self._together is not None:
            self._together += parts
        elif not opts.asyncOp:
            for part in parts:
                part.finish()
            return done(result)
        return Pending(parts, result)

    # The names that the same calls have had.
    allreduce_coalesced = allreduce
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _listed(tensors: Any) -> Any:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors
