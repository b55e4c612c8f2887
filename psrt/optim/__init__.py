"""Turning gradients into updates: optimizers, schedules, clipping, staleness-aware rates."""

from psrt.optim.clip import clip_factor, square_sum
from psrt.optim.optimizer import BLOCK, Optimizer, step
from psrt.optim.registry import (
    OPTIMIZERS,
    STALENESS_RATES,
    make_optimizer,
    make_staleness_rate,
)
from psrt.optim.schedule import SCHEDULES, Schedule
from psrt.optim.staleness import StalenessRate

__all__ = [
    "BLOCK",
    "OPTIMIZERS",
    "SCHEDULES",
    "STALENESS_RATES",
    "Optimizer",
    "Schedule",
    "StalenessRate",
    "clip_factor",
    "make_optimizer",
    "make_staleness_rate",
    "square_sum",
    "step",
]
