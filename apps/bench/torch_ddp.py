"""torch's DistributedDataParallel, for comparison. Imports torch; nothing else does."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import time
from itertools import pairwise
from typing import Any

import torch
from mpi4py import MPI

from psrt.mpi.agreement import bcast_text


class GlooGroup:
    """torch's default process group over gloo, or nccl, of the ranks of a communicator."""

    def __init__(self, comm: MPI.Comm, backend: str = "gloo") -> None:
        """Begin it; collective."""
        torch.set_num_threads(1)
        self._comm = comm
        path = tempfile.mktemp(prefix="psrt-gloo-") if comm.rank == 0 else ""
        self._path = bcast_text(comm, path)
        torch.distributed.init_process_group(
            backend, init_method=f"file://{self._path}", rank=comm.rank, world_size=comm.size
        )

    def parallel(self, module: Any, **more: Any) -> Any:
        """Return the module under DDP. The caller must have dropped it before ``close``."""
        return torch.nn.parallel.DistributedDataParallel(module, **more)

    def close(self) -> None:
        """End it."""
        # A module that outlives the group ends gloo's thread while it holds the interpreter, which
        # that thread may wait for: for ever. DDP refers to itself, so only the collector ends it.
        gc.collect()
        torch.distributed.destroy_process_group()
        if self._comm.rank == 0:
            # The last rank that leaves torch's store deletes its file, at any time from here on.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


class TorchDDP:
    """The same layers, batch and SGD in torch, one thread a rank."""

    def __init__(
        self, comm: MPI.Comm, sizes: tuple[int, ...], *, batch_size: int, lr: float
    ) -> None:
        self._group = GlooGroup(comm)
        torch.manual_seed(0)
        layers: list[Any] = []
        for inputs, outputs in pairwise(sizes):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1])
        self._model = self._group.parallel(model)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self._x = torch.randn(batch_size, sizes[0])
        self._y = torch.randint(0, sizes[-1], (batch_size,))

    def run(self, steps: int) -> float:
        """Train; return the seconds that it took."""
        start = time.perf_counter()
        for _ in range(steps):
            self._optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self._model(self._x), self._y).backward()
            self._optimizer.step()
        return time.perf_counter() - start

    def close(self) -> None:
        """End the process group."""
        del self._model, self._optimizer
        self._group.close()
