"""Who may run on and when a gradient is applied: decisions, pure of MPI, time and numbers."""

from psrt.sync.modes import policy_for
from psrt.sync.period import AveragingPeriod
from psrt.sync.policy import Apply, Decision, Drop, Keep, Policy, Serve

__all__ = [
    "Apply",
    "AveragingPeriod",
    "Decision",
    "Drop",
    "Keep",
    "Policy",
    "Serve",
    "policy_for",
]
