"""Fit a cost model to a recorded run and replay it in simulation.

``calibrate`` measures the parts of every step in a history: computing, receiving a message,
applying gradients, replies, sums. ``RecordedCosts`` replays these durations in virtual time, so
that ``psrt simulate --like`` predicts samples per second and staleness, which it does not measure.
"""

from __future__ import annotations

from psrt.simulation.calibration.calibrate import calibrate
from psrt.simulation.calibration.recorded import RecordedCosts
from psrt.simulation.calibration.times import Calibration, Seconds, ShardTimes

__all__ = ["Calibration", "RecordedCosts", "Seconds", "ShardTimes", "calibrate"]
