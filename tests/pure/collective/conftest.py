"""The simulator that all tests here share, as a fixture: every rank of a collective in one process.

A step posts its halves, and completes when both are matched: a send returns only when its
receive is posted (rendezvous, the strictest that MPI allows). So a schedule that passes here
needs no buffering by the library.
"""

from __future__ import annotations

import doctest
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest

from psrt.collective import Step

Schedules = list[list[Step]]


class RefutedError(AssertionError):
    """The schedules cannot run: a deadlock, or two ends of a message that differ."""


@dataclass
class Outcome:
    buffers: list[np.ndarray]
    rounds: int  # length of the longest chain of steps that wait for each other
    sent: list[int]  # elements, per rank


class Simulation:
    """Runs ``schedules[rank]`` on ``buffers[rank]``; spans cut the first axis."""

    def __init__(self, schedules: Schedules, buffers: Sequence[np.ndarray], fold: Callable):
        self.schedules, self.fold = schedules, fold
        self.buffers = [b.copy() for b in buffers]
        self.next = [0] * len(schedules)  # index of each rank's posted step
        self.clock = [0] * len(schedules)  # rounds gone by when it was posted
        self.sent = [0] * len(schedules)
        self.arrived: dict[int, np.ndarray] = {}  # receiver -> what its posted step got
        self.halves = [self.halves_of(rank) for rank in range(len(schedules))]
        self.finish = [0] * len(schedules)

    def step(self, rank: int) -> Step | None:
        done = self.next[rank] == len(self.schedules[rank])
        return None if done else self.schedules[rank][self.next[rank]]

    def halves_of(self, rank: int) -> set[str]:
        step = self.step(rank)
        if step is None:
            return set()
        both = step.send_to is not None and step.receive_from is not None
        overlap = step.send.start < step.receive.stop and step.receive.start < step.send.stop
        if both and overlap and not step.combine:
            raise RefutedError(f"rank {rank} overwrites what it is sending: {step}")
        ends = (("send", step.send_to), ("receive", step.receive_from))
        return {half for half, peer in ends if peer is not None}

    def match(self, sender: int) -> bool:
        """Hand over what ``sender`` has posted, if its peer is ready for it."""
        step = self.step(sender)
        if step is None or "send" not in self.halves[sender]:
            return False
        receiver = step.send_to
        other = self.step(receiver)
        if other is None or "receive" not in self.halves[receiver]:
            return False
        if other.receive_from != sender:
            return False
        if other.receive != step.send:
            raise RefutedError(f"mismatch: rank {sender} {step}, rank {receiver} {other}")
        self.arrived[receiver] = step.send.of(self.buffers[sender]).copy()
        self.sent[sender] += step.send.size
        self.halves[sender].discard("send")
        self.halves[receiver].discard("receive")
        met = max(self.clock[sender], self.clock[receiver]) + 1
        self.finish[sender] = max(self.finish[sender], met)
        self.finish[receiver] = max(self.finish[receiver], met)
        return True

    def complete(self, rank: int) -> bool:
        """Take what came and post the next step, if both halves are through."""
        step = self.step(rank)
        if step is None or self.halves[rank]:
            return False
        if step.receive_from is not None:
            mine, came = step.receive.of(self.buffers[rank]), self.arrived.pop(rank)
            mine[...] = self.fold(mine, came) if step.combine else came
        self.clock[rank] = self.finish[rank]
        self.next[rank] += 1
        self.halves[rank] = self.halves_of(rank)
        return True

    def run(self) -> Outcome:
        ranks = range(len(self.schedules))
        # Lists, not generators: any() must not stop at the first rank that moves.
        while any([self.match(r) for r in ranks] + [self.complete(r) for r in ranks]):
            pass
        stuck = {r: self.step(r) for r in ranks if self.step(r) is not None}
        if stuck:
            raise RefutedError(f"deadlock: {stuck}")
        return Outcome(self.buffers, max(self.clock), self.sent)


@pytest.fixture
def simulate() -> Callable[..., Outcome]:
    def run(schedules: Schedules, buffers: Sequence[np.ndarray], fold: Callable = np.add):
        return Simulation(schedules, buffers, fold).run()

    return run


@pytest.fixture
def contributions(simulate) -> Callable[[Schedules, int], np.ndarray]:
    """How often each rank's value of each element is in each rank's result: (p, n, p)."""

    def count(schedules: Schedules, n: int) -> np.ndarray:
        size = len(schedules)
        marks = [np.zeros((n, size), dtype=np.int64) for _ in range(size)]
        for rank, mark in enumerate(marks):
            mark[:, rank] = 1
        return np.stack(simulate(schedules, marks).buffers)

    return count


@pytest.fixture
def run_doctests() -> Callable[[ModuleType], doctest.TestResults]:
    return doctest.testmod
