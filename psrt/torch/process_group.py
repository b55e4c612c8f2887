"""torch.distributed over psrt's collectives, for DistributedDataParallel. Experimental."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from psrt.core.arrays import AnyArray
from psrt.core.errors import ConfigError
from psrt.torch.communicator import Communicator
from psrt.torch.rules import check_on_cpu
from psrt.torch.views import tensor_on

_NAME = "psrt"
#: torch's operations by psrt's names.
_OPS = {"SUM": "sum", "AVG": "mean", "PRODUCT": "prod", "MIN": "min", "MAX": "max",
        "BAND": "and", "BOR": "or", "BXOR": "xor"}  # fmt: skip
#: Types that are reduced directly; others are widened to one of these, which has all their values.
_AS = {
    **{it: it for it in (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)},
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16), torch.int32),
    torch.bfloat16: torch.float32,
}


def init_process_group(communicator: Communicator) -> None:
    """Make the ranks of a communicator torch's own process group; collective.

    Then DistributedDataParallel, and whatever else uses ``all_reduce``, ``broadcast``,
    ``all_gather`` and ``barrier`` of ``torch.distributed``, goes over psrt's collectives. Calls
    return when they are complete. There are no groups of fewer ranks.

    It is experimental: it relies on parts of torch that may change (tested with 2.13). Call
    ``torch.distributed.destroy_process_group()`` before the communicator is closed.

    Args:
        communicator: must stay open as long as the group.

    Raises:
        ConfigError: if torch has a process group already.
    """
    if dist.is_initialized():
        raise ConfigError("torch has a process group already: destroy_process_group() first")
    _Group.communicator = communicator
    if not hasattr(dist.Backend, _NAME.upper()):
        dist.Backend.register_backend(_NAME, _Group.made, devices=["cpu"])
    dist.init_process_group(
        _NAME, store=dist.HashStore(), rank=communicator.rank, world_size=communicator.size
    )


class _Group(dist.ProcessGroup):  # type: ignore[misc]
    """All ranks of a communicator, as torch calls them."""

    #: The communicator of the next group to be made: torch passes no argument on to it.
    communicator: Communicator | None = None

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._ranks = communicator
        #: By type: memory shared by the ranks of a host. A copy there costs less than messages.
        self._buffers: dict[np.dtype[Any], AnyArray] = {}

    @classmethod
    def made(cls, store: Any, rank: int, size: int, timeout: Any) -> _Group:
        """Return the group of all ranks; called by torch."""
        ranks = cls.communicator
        if ranks is None or (rank, size) != (ranks.rank, ranks.size):
            raise ConfigError("psrt makes no groups of fewer ranks: use those of another backend")
        return cls(ranks)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return its name."""
        return _NAME

    def allreduce(self, tensors: Sequence[Any], opts: Any) -> Any:
        """Reduce each tensor over all ranks."""
        op = _OPS.get(str(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp)
                      .rpartition(".")[2])  # fmt: skip
        for tensor in tensors:
            check_on_cpu(tensor, "a tensor")
            kind = _AS.get(tensor.dtype)
            if op is None or kind is None:
                raise ConfigError(f"psrt cannot reduce {tensor.dtype} by {opts.reduceOp}")
            buffer = self._buffer(tensor.numel(), np.dtype(str(kind).removeprefix("torch.")))
            view = tensor_on(buffer).view(tensor.shape)
            view.copy_(tensor)
            if tensor.numel():
                self._ranks.all_reduce(buffer, op=op)
            tensor.copy_(view)
        return _done(tensors)

    def broadcast(self, tensors: Sequence[Any], opts: Any) -> Any:
        """Give all ranks the tensors of one."""
        for tensor in tensors:
            check_on_cpu(tensor, "a tensor")
            buffer = self._bytes(tensor, 0, 1)
            if buffer.size:
                self._ranks.broadcast(buffer, root=opts.rootRank)
            _take(tensor, buffer)
        return _done(tensors)

    def allgather(self, outs: Sequence[Sequence[Any]], tensors: Sequence[Any], opts: Any) -> Any:
        """Give all ranks the tensors of all."""
        for each, tensor in zip(outs, tensors, strict=True):
            check_on_cpu(tensor, "a tensor")
            buffer = self._bytes(tensor, self._ranks.rank, self._ranks.size)
            if buffer.size:
                self._ranks.all_gather(buffer)
            for out, row in zip(each, buffer.reshape(self._ranks.size, -1), strict=True):
                _take(out, row)
        return _done(outs)

    def barrier(self, opts: Any = None) -> Any:
        """Wait until all ranks have called this."""
        self._ranks.all_reduce(self._buffer(1, np.dtype(np.int32)))
        return _done([])

    def _bytes(self, tensor: Any, place: int, size: int) -> AnyArray:
        """Return (size · w,) int64 with the bytes of a tensor, padded, at one rank's place."""
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        words = -(-raw.numel() // 8)
        buffer = self._buffer(size * words, np.dtype(np.int64))
        mine = tensor_on(buffer[place * words : (place + 1) * words].view(np.uint8))
        mine[: raw.numel()] = raw
        return buffer

    def _buffer(self, n: int, kind: np.dtype[Any]) -> AnyArray:
        """Return an array of n elements; its memory is reused by later calls."""
        whole = self._buffers.get(kind)
        if whole is None or whole.size < n:
            whole = self._ranks.empty(1 << max(0, n - 1).bit_length(), kind)
            self._buffers[kind] = whole
        return whole[:n]


def _take(tensor: Any, row: AnyArray) -> None:
    """Copy bytes into a tensor."""
    raw = torch.from_numpy(row.copy().view(np.uint8))[: tensor.numel() * tensor.element_size()]
    tensor.copy_(raw.view(tensor.dtype).reshape(tensor.shape))


def _done(result: Any) -> Any:
    """Return a completed handle for torch to wait on."""
    from torch._C._distributed_c10d import _create_work_from_future

    future = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)
