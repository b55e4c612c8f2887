"""Which optimizers of torch may be run on pieces of the parameters, and why others may not."""

from __future__ import annotations

from typing import Any

import torch

from psrt.core.errors import ConfigError
from psrt.torch.rules import said

#: Those of torch whose step on an element depends on that element alone.
ELEMENTWISE = (
    *("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta"),
    *("RMSprop", "Rprop", "ASGD"),
)
#: Those that are not, or that cannot be given these gradients.
REFUSED = {
    "LBFGS": "it evaluates the loss again and searches along the whole vector",
    "Adafactor": "it keeps means of rows and columns, which a shard may have parts of",
    "Muon": "it orthogonalizes whole matrices, which a shard may have parts of",
    "SparseAdam": "it takes sparse gradients, and psrt sums dense ones",
}
#: Options that change what a step is.
OPTIONS = {
    "fused": "its kernels round an element by its place in a shard; leave it out",
    "capturable": "it is for graphs of a GPU; leave it out",
    "differentiable": "no gradient is taken of an update; leave it out",
}


def is_of_torch(optimizer: Any) -> bool:
    """Whether an optimizer is exactly one of torch's, not one derived from it."""
    kind = type(optimizer)
    return getattr(torch.optim, kind.__name__, None) is kind


def check_optimizer(optimizer: Any) -> None:
    """Check that an optimizer gives the same numbers on any pieces of the parameters.

    Raises:
        ConfigError: naming what it is, and why it cannot.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"the optimizer is {said(optimizer)}, expected a torch.optim.Optimizer of the module's "
            "parameters"
        )
    name = type(optimizer).__name__
    if is_of_torch(optimizer):
        if name not in ELEMENTWISE:
            why = REFUSED.get(name, "it is not known to update each element by itself")
            raise ConfigError(f"the optimizer {name} cannot be run on shards: {why}")
    elif not getattr(optimizer, "elementwise", False):
        raise ConfigError(
            f"the optimizer {name} is not known to update each element by itself: if it does, set "
            "elementwise = True in its class; psrt.torch.Gradients takes any optimizer"
        )
    for option, why in OPTIONS.items():
        if any(group.get(option) for group in optimizer.param_groups):
            raise ConfigError(f"the optimizer {name} has {option}=True: {why}")
    if not all(group["params"] for group in optimizer.param_groups):
        raise ConfigError(f"the optimizer {name} has a group without parameters")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ConfigError(f"the optimizer {name} has hooks of step(), which no shard can call")


def check_scheduler(scheduler: Any, optimizer: Any) -> None:
    """Check that a scheduler sets the rates of an optimizer by itself.

    Raises:
        ConfigError: naming what it is.
    """
    if scheduler is None:
        if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            raise ConfigError("the optimizer has a scheduler: give it, too, as scheduler=")
        return
    name = type(scheduler).__name__
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError(f"the scheduler {name} follows a metric, which servers do not have")
    if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        raise ConfigError(
            f"the scheduler is {said(scheduler)}, expected one of torch.optim.lr_scheduler"
        )
    if scheduler.optimizer is not optimizer:
        raise ConfigError(f"the scheduler {name} is of another optimizer")
