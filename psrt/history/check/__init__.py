"""Holds a history against the contract of its mode. Shares no code with what decided in the run.

Events are looked at in bulk, as columns of numbers: each rule is a handful of array operations on
all events that it is about. It goes in three steps, and each relies on the one before:

1. every event by itself is possible (``wellformed``);
2. the events of a shard and of a worker come in a valid order: versions increase by one, a worker
   is received and answered by turns until it leaves (``alternation``);
3. all else: what each step computed on and at which rate (``steps``), what was sent, what came and
   who was answered when (``exchange``), what became of every push and of what updates are made
   (``updates``), sums and averages without servers (``sums``), what was written at the end
   (``summary``) and meanwhile (``metrics``).

The first violation of the earliest step is reported; within a step, the one that happened first.
"""

from __future__ import annotations

from psrt.history.check.contract import Contract, contract_of
from psrt.history.check.findings import RULES, EventRef, Findings, Outcome, Violation
from psrt.history.check.run import check

__all__ = [
    "RULES",
    "Contract",
    "EventRef",
    "Findings",
    "Outcome",
    "Violation",
    "check",
    "contract_of",
]
