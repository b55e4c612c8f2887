"""Which worker may continue and when a gradient is applied: decisions without MPI, time, arrays."""

from psrt.sync.fragments import FragmentPeriod
from psrt.sync.learners import stuck_one
from psrt.sync.modes import policy_for
from psrt.sync.period import AveragingPeriod
from psrt.sync.policy import Apply, Cut, Decision, Drop, Keep, Policy, Serve

__all__ = [
    "Apply",
    "AveragingPeriod",
    "Cut",
    "Decision",
    "Drop",
    "FragmentPeriod",
    "Keep",
    "Policy",
    "Serve",
    "policy_for",
    "stuck_one",
]
