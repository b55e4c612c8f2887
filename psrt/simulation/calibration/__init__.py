"""What a recorded run says of the time that things take, and virtual time in which they do again.

``calibrate`` reads the durations of parts out of a history: computing, taking a message up,
working gradients in, answers, sums. ``RecordedCosts`` hands them out again, so that ``psrt simulate
--like`` predicts. What it predicts, samples a second and staleness, is looked at nowhere.
"""

from __future__ import annotations

from psrt.simulation.calibration.calibrate import calibrate
from psrt.simulation.calibration.recorded import RecordedCosts
from psrt.simulation.calibration.times import Calibration, Seconds, ShardTimes

__all__ = ["Calibration", "RecordedCosts", "Seconds", "ShardTimes", "calibrate"]
