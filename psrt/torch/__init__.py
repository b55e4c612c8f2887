"""Modules of torch as problems of psrt, and averaged gradients under torch's own optimizers.

- ``Problem``: any module with a loss and data, under every scheme that psrt knows;
- ``Gradients``: in a training loop of one's own, gradients that are means over all ranks;
- ``broadcast``: the parameters and buffers of one rank, for all;
- ``init_process_group``: torch.distributed over psrt's collectives, for DDP (experimental);
- ``load``: the parameters of a run, into a module;
- ``accuracy``: for the ``accuracy=`` of a problem whose batches are (x, class).

Everything is on the CPU. Nothing here imports MPI.
"""

from __future__ import annotations

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

del _torch


def init_process_group(communicator: Communicator) -> None:
    """Make the ranks torch's own process group; see ``psrt.torch.process_group``."""
    from psrt.torch.process_group import init_process_group  # not every torch is built with it

    init_process_group(communicator)
