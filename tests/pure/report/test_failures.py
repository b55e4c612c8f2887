"""The lines about what failures cost."""

from __future__ import annotations

from psrt.checkpoint.failures import FailureCosts, Lost
from psrt.report.failures import failure_lines


def test_lines():
    costs = FailureCosts(3600.0, 0.5, 10.0, 30.0, every="120s")
    lost = [
        Lost(7, 7.0, 0.35, 0.035, 0.0025, 0.0747, 0.0754),
        Lost(60, 60.0, 0.0083, 0.0114, 0.0085, 0.025, 0.0254),
        Lost(120, 120.0, 0.004, 0.02, 0.0085, 0.0292, 0.0297),
        Lost(4000, 4000.0, *[float("inf")] * 3, 0.56, 0.8),
    ]
    assert failure_lines(costs, lost) == [
        "failures every 3600 s; checkpoints stop training for 500 ms and take 10 s to write; "
        "restarts take 30 s",
        "time lost, in % of that of the steps, by the interval:",
        "        steps   lost  saving  again  down  Young   Daly",
        "   7 s      7  38.75   35.00   3.50  0.25   7.47   7.54",
        "  60 s     60   2.82    0.83   1.14  0.85   2.50   2.54  best of these",
        " 120 s    120   3.25    0.40   2.00  0.85   2.92   2.97  --checkpoint-every",
        "4000 s  4,000    all     all    all   all  56.00  80.00",
        "least by Young 60 s, by Daly 59.7 s",
    ]


def test_free_checkpoints_have_no_best_interval():
    lines = failure_lines(FailureCosts(60.0), [Lost(1, 1.0, 0.0, 0.01, 0.0, 0.01, 0.01)])
    assert lines[0] == "failures every 60 s; checkpoints stop training for 0 µs; restarts take 0 µs"
    assert len(lines) == 4
