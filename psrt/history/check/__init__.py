"""Checks a history against the contract of its mode, independently of the code that ran.

Events are checked in bulk, as columns of numbers: each rule is a handful of array operations on all
events that it concerns. There are three steps, each of which relies on the one before:

1. every single event is possible (``wellformed``);
2. the events of a shard and of a worker are in a valid order: versions increase by one, and pushes
   and replies of a worker alternate until it leaves (``alternation``);
3. everything else: the data and rate of each step (``steps``); what was sent, received and
   answered, and when (``exchange``); what happened to every push, and what each update contains
   (``updates``); sums and averages without servers (``sums``); what was written at the end
   (``summary``) and during the run (``metrics``).

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
