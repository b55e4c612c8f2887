"""torch's pipelining over gloo, for comparison. Imports torch; as ``torch_ddp`` does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from mpi4py import MPI
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch_ddp import GlooGroup


class TorchPipeline:
    """The same stages, micro-batches and SGD in torch, one thread a rank."""

    def __init__(
        self,
        comm: MPI.Comm,
        sizes: Sequence[int],
        counts: Sequence[int],
        *,
        batch_size: int,
        micro_batches: int,
        lr: float,
    ) -> None:
        """Set up; collective.

        Args:
            comm: a rank for each stage.
            sizes: widths of the model, from the input to the output.
            counts: layers of each stage.
            batch_size: rows of the batch.
            micro_batches: parts of it.
            lr: learning rate.
        """
        self._group = GlooGroup(comm)
        torch.manual_seed(0)
        layers: list[Any] = [
            torch.nn.Sequential(torch.nn.Linear(inputs, outputs), torch.nn.ReLU())
            for inputs, outputs in pairwise(sizes)
        ]
        layers[-1] = layers[-1][0]
        start, stop = list(pairwise(accumulate(counts, initial=0)))[comm.rank]
        module = torch.nn.Sequential(*layers[start:stop])
        self._first, self._last = comm.rank == 0, comm.rank == comm.size - 1
        stage = PipelineStage(module, comm.rank, comm.size, torch.device("cpu"))
        self._schedule = Schedule1F1B(
            stage, n_microbatches=micro_batches, loss_fn=torch.nn.functional.cross_entropy
        )
        self._optimizer = torch.optim.SGD(module.parameters(), lr=lr)
        self._x = torch.randn(batch_size, sizes[0])
        self._y = torch.randint(0, sizes[-1], (batch_size,))

    def run(self, steps: int) -> float:
        """Train; return the seconds that it took."""
        inputs = (self._x,) if self._first else ()
        targets = {"target": self._y} if self._last else {}
        start = time.perf_counter()
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._schedule.step(*inputs, **targets)
            self._optimizer.step()
        return time.perf_counter() - start

    def close(self) -> None:
        """End the process group."""
        self._group.close()
