"""Holds a history against the contract of its mode. Shares no code with what decided in the run.

Events are looked at in bulk, as columns of numbers: each rule is a handful of array operations on
all events that it is about. It goes in three steps, and each relies on the one before:

1. every event by itself says something that can be (``fields``);
2. events of a shard and of a worker come in an order that has a sense: versions go up by one, a
   worker is taken up and answered in turns until it leaves (``turns``, ``workers``);
3. all else: what became of every push, how many made an update, who was answered when, what was
   read; sums and averages in modes without servers.

The first violation of the earliest step is told; within a step, the one that happened first.
"""

from __future__ import annotations

from psrt.history.check.checking import check
from psrt.history.check.contract import Contract, contract_of
from psrt.history.check.findings import Findings, Spot, Violation
from psrt.history.check.outcome import Outcome
from psrt.history.check.rules import RULES

__all__ = [
    "RULES",
    "Contract",
    "Findings",
    "Outcome",
    "Spot",
    "Violation",
    "check",
    "contract_of",
]
