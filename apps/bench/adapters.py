"""Modules of torch under psrt beside torch's own DistributedDataParallel, and a process alone.

    mpirun -n 3 python apps/bench/adapters.py      # in an environment with torch

Two workers train a small network of convolutions and a transformer block by SGD, a thread each:
under ``psrt.torch.Problem`` (``allreduce``, and ``sync`` and ``async`` with a server on the third
rank), ``psrt.torch.Gradients``, ``psrt.Trainer``, DDP over gloo, and each for itself without a
message. ``Gradients`` has codecs, too, beside the hooks by which DDP compresses. All take turns in
one run, and every turn of psrt's is a run of its own, whose set-up does not count. What psrt adds
to a step of torch's is seen in one process. Where there is a GPU, those without a server train on
it, too, beside DDP over nccl if each worker has one of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import torch
from mpi4py import MPI
from staging import STAGING_COLUMNS, copies
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch_ddp import GlooGroup

import psrt.torch
from psrt.bench.figures import Column, Summary, spread, table
from psrt.bench.ranks import run_on
from psrt.cli.bench import Report, run_script
from psrt.config import TrainConfig
from psrt.job.local import run as run_here
from psrt.mpi.communicator import Communicator
from psrt.trainer import Trainer

#: Seconds of a turn, about; learning rate; different batches of a worker.
_TURN_S, _LR, _BATCHES = 1.5, 1e-3, 8
#: The time of which every other one is compared with.
_DDP, _ALONE, _BARE = "DDP over gloo", "without a message", "torch in one process"
_DDP_GPUS = "DDP over nccl"
_functional = torch.nn.functional


def convolutions() -> tuple[Any, Any, Any]:
    """Return 0.3 million parameters over images of 16 × 16, and the data of 64 a step."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(1024, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10),
    )  # fmt: skip
    samples = 2 * 64 * _BATCHES
    return module, torch.randn(samples, 3, 16, 16), torch.randint(0, 10, (samples,))


class Block(torch.nn.Module):  # type: ignore[misc]
    """A transformer block of 3.2 million parameters, and a class for each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.TransformerEncoderLayer(
            512, 8, dim_feedforward=2048, dropout=0.0, batch_first=True
        )
        self.head = torch.nn.Linear(512, 10)

    def forward(self, x: Any) -> Any:
        """Return (B, 10) for (B, T, 512)."""
        return self.head(self.block(x).mean(dim=1))


def transformer() -> tuple[Any, Any, Any]:
    """Return the block, and the data of 8 sequences of 16 a step."""
    torch.manual_seed(0)
    samples = 2 * 8 * _BATCHES
    return Block(), torch.randn(samples, 16, 512), torch.randint(0, 10, (samples,))


MODELS: Mapping[str, Callable[[], tuple[Any, Any, Any]]] = {
    "convolutions": convolutions,
    "transformer block": transformer,
}


def loss_of(module: Any, batch: Any) -> Any:
    """Return the mean cross entropy of a batch (x, y)."""
    x, y = batch
    return _functional.cross_entropy(module(x), y)


def _half(module: Any) -> None:
    module.register_comm_hook(None, default_hooks.fp16_compress_hook)


def _low_rank(module: Any) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


#: Codec → what makes DDP send the same, if it can.
CODECS: Mapping[str, Callable[[Any], None] | None] = {
    "float16": _half, "low-rank": _low_rank, "int8": None, "top-k": None,
}  # fmt: skip


def _quiet(line: str) -> None:
    """Print nothing: every turn would say the same."""


class Turns:
    """The turns of one model; each returns the seconds that its steps have taken on this rank."""

    def __init__(self, make: Callable[[], tuple[Any, Any, Any]], device: str = "cpu") -> None:
        self._make, self.device = make, device
        module, x, y = make()
        self._x, self._y = x.to(device), y.to(device)
        self.megabytes = sum(4 * it.numel() for it in module.parameters()) / 1e6
        self.batch = len(self._x) // (2 * _BATCHES)

    def bare(self, comm: Any, steps: int) -> float:
        """Train a module by itself."""
        return self._loop(self._module(), steps, comm.rank)

    def ddp(self, comm: Any, steps: int, hook: Callable[[Any], None] | None = None) -> float:
        """Train it under DDP; ``hook`` makes the module compress what it sends."""
        group = GlooGroup(comm, "gloo" if self.ddp_name == _DDP else "nccl")
        # With several buckets torch's PowerSGD makes calls in other orders on each rank, and gloo
        # ends the process.
        more = {} if hook is None else {"bucket_cap_mb": 1000}
        module = group.parallel(self._module(), **more)
        if hook is not None:
            hook(module)
        seconds = self._loop(module, steps, comm.rank)
        del module
        group.close()
        return seconds

    def gradients(self, comm: Any, steps: int, codec: str | None = None) -> float:
        """Train it with gradients that psrt averages."""
        module = self._module()
        optimizer = torch.optim.SGD(module.parameters(), lr=_LR)
        with (
            Communicator(comm) as communicator,
            psrt.torch.Gradients(
                optimizer, communicator, codec=codec, codec_everywhere=codec is not None, say=_quiet
            ),
        ):
            return self._loop(module, steps, comm.rank, optimizer)

    def problem(self, comm: Any, steps: int, **config: Any) -> float:
        """Train it as a problem of psrt's."""
        torch.set_num_threads(1)
        problem = psrt.torch.Problem(
            self._module(), loss_of, (self._x, self._y), batch_size=self.batch
        )
        run = run_here(TrainConfig(steps=steps, lr=_LR, **config), problem, comm=comm)
        return 0.0 if run is None else run.summary.seconds

    def trainer(self, comm: Any, steps: int, **config: Any) -> float:
        """Train it in a loop of its own."""
        torch.set_num_threads(1)
        module = self._module()
        with Trainer(TrainConfig(steps=steps, lr=_LR, **config), module, comm=comm) as trainer:
            trainer.epoch()
            for step in range(steps):
                x, y, rows = *self._data, self._rows(step, comm.rank)
                loss = loss_of(module, (x[rows], y[rows]))
                loss.backward()
                trainer.step(samples=self.batch, loss=loss.item())
        return 0.0 if trainer.result is None else trainer.result.summary.seconds

    @property
    def ddp_name(self) -> str:
        """What DDP is called here: nccl needs a GPU for each of the two workers."""
        has_each = self.device != "cpu" and torch.cuda.device_count() > 1
        return _DDP_GPUS if has_each else _DDP

    @property
    def _data(self) -> tuple[Any, Any]:
        return self._x, self._y

    def _module(self) -> Any:
        return self._make()[0].to(self.device)

    def _rows(self, step: int, rank: int) -> Any:
        start = (2 * (step % _BATCHES) + rank) * self.batch
        return torch.arange(start, start + self.batch)

    def _loop(self, module: Any, steps: int, rank: int, optimizer: Any = None) -> float:
        torch.set_num_threads(1)
        optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=_LR)
        rows = [self._rows(step, rank) for step in range(_BATCHES)]
        began = perf_counter()
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(module, (self._x[rows[step % _BATCHES]], self._y[rows[step % _BATCHES]]))
            loss.backward()
            loss.item()
            optimizer.step()
        return perf_counter() - began


def candidates(turns: Turns) -> Mapping[str, tuple[int, Callable[[Any, int], float]]]:
    """Return who takes turns, and on how many ranks."""
    return {
        _BARE: (1, turns.bare),
        "psrt.torch.Problem, serial": (1, partial(turns.problem, mode="serial")),
        _ALONE: (2, turns.bare),
        turns.ddp_name: (2, turns.ddp),
        "psrt.torch.Gradients": (2, turns.gradients),
        **{
            f"psrt.torch.Gradients, {codec}": (2, partial(turns.gradients, codec=codec))
            for codec in CODECS
        },
        **{
            f"{turns.ddp_name}, {codec}": (2, partial(turns.ddp, hook=hook))
            for codec, hook in CODECS.items()
            if hook is not None
        },
        "psrt.torch.Problem, allreduce": (2, partial(turns.problem, mode="allreduce")),
        "psrt.Trainer, allreduce": (2, partial(turns.trainer, mode="allreduce")),
        "psrt.torch.Problem, sync, 1 server": (3, partial(turns.problem, mode="sync")),
        "psrt.torch.Problem, async, 1 server": (3, partial(turns.problem, mode="async")),
    }


def measure(comm: MPI.Comm, *, rounds: int, device: str = "cpu") -> list[dict[str, Any]]:
    """Measure each model; collective.

    Args:
        comm: of three ranks or more.
        rounds: turns of each.
        device: of this rank's module and data; without servers if it is a GPU.

    Returns:
        At rank 0 a row per model and candidate; else nothing.
    """
    rows = []
    for model, make in MODELS.items():
        turns = Turns(make, device)
        about = _turn(comm, 1, turns.bare, 4) / 4
        steps = max(_BATCHES, round(_TURN_S / about))
        seconds: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, (ranks, turn) in candidates(turns).items():
                if ranks > 2 and device != "cpu":
                    continue
                seconds.setdefault(name, []).append(_turn(comm, ranks, turn, steps) / steps)
        rows += [_row(model, turns, name, seconds) for name in seconds]
    return rows if comm.rank == 0 else []


def _turn(comm: MPI.Comm, ranks: int, turn: Callable[[Any, int], float], steps: int) -> float:
    """Let the first ranks take a turn; return the seconds of the slowest of them, everywhere."""
    mine = run_on(comm, range(ranks), lambda part: turn(part, steps))
    return float(comm.allreduce(mine or 0.0, MPI.MAX))


def _row(model: str, turns: Turns, name: str, seconds: Mapping[str, list[float]]) -> dict[str, Any]:
    workers = 1 if name == _BARE or name.endswith("serial") else 2
    own = seconds[name]

    def over(other: str) -> Summary:
        return Summary.of([a / b for a, b in zip(seconds[other], own, strict=True)])

    return {
        "model": f"{model}, {turns.megabytes:.1f} MB" + (turns.device != "cpu") * ", on a GPU",
        "under": name,
        "step_s": Summary.of(own),
        "samples_per_s": Summary.of([workers * turns.batch / it for it in own]),
        "ddp_over_own": over(turns.ddp_name) if workers == 2 else None,
        "own_over_torch": Summary.of(
            [a / b for a, b in zip(own, seconds[_BARE if workers == 1 else _ALONE], strict=True)]
        ),
    }


COLUMNS: tuple[Column, ...] = (
    ("model", "model"),
    ("under", "under"),
    ("step ms", spread("step_s", 1e3)),
    ("samples/s", spread("samples_per_s", digits=0)),
    ("DDP / it", lambda row: spread("ddp_over_own")(row) if row["ddp_over_own"] else "–"),
    ("it / torch alone", spread("own_over_torch", digits=3)),
)


def report(comm: MPI.Comm, rounds: int) -> Report:
    """Measure, and return the rows and their table."""
    rows = measure(comm, rounds=rounds)
    if not torch.cuda.is_available():
        if comm.rank == 0:
            print("no GPU: rows left out")
        return {"adapters": (rows, table(rows, COLUMNS))}
    device = f"cuda:{comm.rank % torch.cuda.device_count()}"
    rows += measure(comm, rounds=rounds, device=device)
    moved = copies(comm, torch.device(device), rounds)
    return {
        "adapters": (rows, table(rows, COLUMNS)),
        "staging": (moved, table(moved, STAGING_COLUMNS)),
    }


if __name__ == "__main__":
    sys.exit(run_script(lambda given, comm: report(comm, given.rounds), __doc__, ranks=3))
