"""Who may run on and when a gradient is applied: decisions, pure of MPI, time and numbers."""

from psrt.sync.modes import SERVER_MODES, policy_for
from psrt.sync.period import AveragingPeriod
from psrt.sync.policy import Apply, Decision, Drop, Keep, Policy, Serve

__all__ = [
    "SERVER_MODES",
    "Apply",
    "AveragingPeriod",
    "Decision",
    "Drop",
    "Keep",
    "Policy",
    "Serve",
    "policy_for",
]
