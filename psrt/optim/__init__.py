"""Turning gradients into updates: optimizers, schedules, clipping, staleness-aware rates.

``table.py`` has a row for each. The other names are looked up on first use: only the table needs no
numpy, and flags are made from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psrt.core.lazy import on_first_use
from psrt.optim.table import OPTIMIZERS, SCHEDULES, STALENESS_RATES

if TYPE_CHECKING:
    from psrt.optim.clip import clip_factor, square_sum
    from psrt.optim.optimizer import BLOCK, Optimizer, step
    from psrt.optim.schedule import Schedule
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
    "square_sum",
    "step",
]

#: Public name → the module that has it.
_HOME = {
    **dict.fromkeys(("clip_factor", "square_sum"), "psrt.optim.clip"),
    **dict.fromkeys(("BLOCK", "Optimizer", "step"), "psrt.optim.optimizer"),
    "Schedule": "psrt.optim.schedule",
    "StalenessRate": "psrt.optim.staleness",
}

__getattr__ = on_first_use(__name__, _HOME)
