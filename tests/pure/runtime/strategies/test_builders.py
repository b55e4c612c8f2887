"""A mode whose strategy is none of psrt's trains by its row, which names what makes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from psrt.config import MODES, TrainConfig
from psrt.job.virtual import simulate
from psrt.runtime.strategies.base import Serial

KNOBS = {"dataset": "synthetic:24x4x3", "hidden": (3,), "batch_size": 4, "steps": 4, "lr": 0.1}


class Halved(Serial):
    """Takes half of each step."""

    async def step(self, step):
        self._gradient *= np.float32(0.5)
        return await super().step(step)


def halved(of):
    return Halved(of.port, of.updater(of.port.theta.size), events=of.events)


def test_a_row_names_what_makes_its_strategy(monkeypatch):
    due = simulate(TrainConfig(**KNOBS | {"lr": 0.05}, mode="serial"), workers=1).theta
    row = replace(MODES["serial"], builder=f"{__name__}:halved")
    monkeypatch.setitem(MODES, "serial", row)
    found = simulate(TrainConfig(**KNOBS, mode="serial"), workers=1).theta
    np.testing.assert_array_equal(found, due)
