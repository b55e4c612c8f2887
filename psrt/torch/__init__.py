"""Torch modules as problems of psrt, and averaged gradients for torch's own optimizers.

- ``Problem``: any module with a loss and data, under every scheme that psrt knows;
- ``Gradients``: averages gradients over all ranks in your own training loop;
- ``broadcast``: gives all ranks the parameters and buffers of one;
- ``init_process_group``: torch.distributed over psrt, as its backend "psrt";
- ``load``: loads the parameters of a run into a module;
- ``accuracy``: for the ``accuracy=`` of a problem whose batches are (x, class).

Tensors may be on the CPU or on a GPU; sums are made on the CPU. Nothing here imports MPI.
"""

from __future__ import annotations

from typing import Any as _Any

try:
    import torch as _torch
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "psrt.torch needs torch: pip install torch --index-url "
        "https://download.pytorch.org/whl/cpu",
        name="torch",
    ) from None

from psrt.torch.broadcast import broadcast
from psrt.torch.communicator import Communicator
from psrt.torch.gradients import Gradients
from psrt.torch.loading import load
from psrt.torch.problem import Problem, accuracy

__all__ = ["Gradients", "Problem", "accuracy", "broadcast", "init_process_group", "load"]


def init_process_group(communicator: Communicator | None = None) -> None:
    """Make the ranks torch's own process group; see ``psrt.torch.process_group``."""
    from psrt.torch.process_group import init_process_group  # some builds of torch lack it

    init_process_group(communicator)


def _make_group(options: _Any, extra: _Any) -> _Any:
    from psrt.torch.process_group import make

    return make(options, extra)


if _torch.distributed.is_available() and not hasattr(_torch.distributed.Backend, "PSRT"):
    _torch.distributed.Backend.register_backend(
        "psrt", _make_group, extended_api=True, devices=["cpu", "cuda"]
    )

del _torch
