"""When a worker may go on: the gate of each mode, and the rules of SSP that follow from it.

Source of the rules: Ho et al., NeurIPS 2013.
"""

from __future__ import annotations

import numpy as np

from psrt.history.check.contract import Contract
from psrt.history.check.fates import Fates
from psrt.history.check.findings import Findings
from psrt.history.check.rules import ANSWERS, GUARANTEE, OWN, PROGRESS
from psrt.history.check.shard import Shard
from psrt.history.check.table import Ints


def check_answers(contract: Contract, shard: Shard, fates: Fates, findings: Findings) -> None:
    """Check when each push was answered, and what the answer held."""
    takes, table = shard.takes, shard.table
    end = len(table)
    release = _release(contract, shard, fates)
    messages = np.append(shard.message, end)
    due = np.where(release < end, np.maximum(messages[release], takes.message), end)
    answered = takes.answer < end
    given = messages[takes.answer]
    left = messages[shard.left[takes.worker]]
    early = answered & (given < due)
    where = np.where(answered, takes.answer, takes.at)

    def who(i: int) -> str:
        return f"shard {shard.number} answered worker {takes.worker[i]} at clock {takes.clock[i]}"

    findings.expect(
        PROGRESS if contract.gate is not None else ANSWERS, ~early, table, where,
        lambda i: f"{who(i)} {_too_early(contract, shard, release, i)}",
        lambda i: shard.spots(int(takes.at[i]), int(release[i])),
    )  # fmt: skip
    findings.expect(
        ANSWERS, ~answered | (given <= due), table, where,
        lambda i: f"{who(i)} only now, which it could before",
        lambda i: shard.spots(int(takes.at[i]), int(release[i])),
    )  # fmt: skip
    findings.expect(
        ANSWERS, answered | (left <= due), table, where,
        lambda i: f"shard {shard.number} never answered worker {takes.worker[i]} at clock "
        f"{takes.clock[i]}",
        lambda i: shard.spots(int(release[i]), int(shard.left[takes.worker[i]])),
    )  # fmt: skip
    if contract.reads_its_writes:
        mine = fates.waits & answered
        findings.expect(
            OWN, ~mine | (fates.applied < takes.answer), table, where,
            lambda i: f"{who(i)} with parameters that lack its own gradient",
            lambda i: shard.spots(int(takes.at[i]), int(fates.applied[i])),
        )  # fmt: skip
    if contract.gate is not None:
        _check_guarantee(contract.gate, shard, fates, findings)


def _release(contract: Contract, shard: Shard, fates: Fates) -> Ints:
    """Return the position of the event from which on each push may be answered.

    0 where nothing is waited for, the number of events where it never happens.
    """
    takes, end = shard.takes, len(shard.table)
    if contract.rounds:
        target = np.where(takes.asks, takes.clock, takes.version + 1)
        target = np.where(fates.waits | takes.asks, target, 0)
        made = np.concatenate([[0], shard.updates, [end]])
        return made[np.minimum(target, len(made) - 1)]
    if contract.gate is None:
        return np.zeros(len(takes), np.int64)
    reached = _reached(shard)
    behind = np.maximum(takes.clock + 1 - contract.gate, 0)
    return reached[np.minimum(behind, len(reached) - 1)]


def _reached(shard: Shard) -> Ints:
    """Return by m from where on every live worker has finished m steps.

    A worker has when its push of clock m − 1 was taken up, or when it has left before that. So
    its LEFT counts for all m that are larger than the number of its pushes.
    """
    takes, most = shard.takes, int(shard.takes.clock.max(initial=-1)) + 2
    by_push, by_leave = np.zeros(most + 1, np.int64), np.zeros(most + 1, np.int64)
    finished = np.zeros(len(shard.left), np.int64)
    np.maximum.at(finished, takes.worker, takes.clock + 1)
    order = np.argsort(takes.at)
    by_push[takes.clock[order] + 1] = takes.at[order]  # the last one stays
    order = np.argsort(shard.left)
    by_leave[finished[order] + 1] = shard.left[order]
    reached = np.maximum(by_push, np.maximum.accumulate(by_leave))
    reached[0] = 0
    return reached


def _too_early(contract: Contract, shard: Shard, release: Ints, i: int) -> str:
    """Say what a worker should have waited for."""
    takes, answer = shard.takes, int(shard.takes.answer[i])
    if contract.gate is None:
        if not contract.rounds:
            return "before it had taken up its push"
        return f"at version {shard.version[answer]}, before the update that it waits for"
    slow, clock = _slowest(shard, answer)
    return (
        f"with clock {takes.clock[i] + 1}, although worker {slow} had finished {clock} steps: "
        f"{takes.clock[i] + 1 - clock} ahead, the most is {contract.gate}"
    )


def _slowest(shard: Shard, before: int) -> tuple[int, int]:
    """Return the live worker that had finished the fewest steps at a position, and how many."""
    takes = shard.takes
    finished = np.zeros(len(shard.left), np.int64)
    seen = takes.at < before
    np.maximum.at(finished, takes.worker[seen], takes.clock[seen] + 1)
    finished[shard.left < before] = np.iinfo(np.int64).max
    slow = int(finished.argmin())
    return slow, int(finished[slow])


def _check_guarantee(gate: int, shard: Shard, fates: Fates, findings: Findings) -> None:
    """Check that an answer for clock c holds every gradient of clocks up to c − gate − 1."""
    takes, table = shard.takes, shard.table
    end = len(table)
    most = int(takes.clock.max(initial=-1)) + 2
    held = np.full(most + 1, -1)
    i = np.flatnonzero(fates.waits)
    i = i[np.argsort(fates.applied[i], kind="stable")]
    held[takes.clock[i] + 1] = fates.applied[i]  # by clock + 1: the last of them to be applied
    held = np.maximum.accumulate(held)
    served = np.flatnonzero(takes.answer < end)
    oldest = np.maximum(takes.clock[served] + 1 - gate, 0)  # c − s − 1, plus 1
    missing = held[oldest]
    findings.expect(
        GUARANTEE, missing < takes.answer[served], table, takes.answer[served],
        lambda j: f"shard {shard.number} answered worker {takes.worker[served[j]]} with clock "
        f"{takes.clock[served[j]] + 1} before every gradient of clocks up to {oldest[j] - 1} was "
        f"applied, with staleness {gate}",
        lambda j: shard.spots(int(takes.at[served[j]]), int(missing[j])),
    )  # fmt: skip
