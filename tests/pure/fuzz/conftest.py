"""The jobs that are tried, and policies to be found out."""

from __future__ import annotations

import math
import os

import pytest

from psrt.job import build
from psrt.sync import Apply, Keep, Policy, Serve, policy_for
from support.fuzz import Draw, Job, told

#: How many jobs are tried, and the seed of the first; ``make fuzz`` sets both.
JOBS, SEED = int(os.environ.get("PSRT_FUZZ", "150")), int(os.environ.get("PSRT_FUZZ_SEED", "0"))
SEEDS = [
    pytest.param(SEED + job, marks=[pytest.mark.exhaustive] * (job >= 50)) for job in range(JOBS)
]


def too_wide(policy: Policy) -> None:
    policy._gate += 1


def too_few(policy: Policy) -> None:
    quorum = policy._quorum
    policy._quorum = lambda live: quorum(live) - 1


def never_late(policy: Policy) -> None:
    policy._late = math.inf


def keeps_nothing(policy: Policy) -> None:
    handle = policy.handle
    policy.handle = lambda event: [d for d in handle(event) if not isinstance(d, Keep)]


def serves_first(policy: Policy) -> None:
    handle = policy.handle
    policy.handle = lambda event: sorted(handle(event), key=lambda d: not isinstance(d, Serve))


def drops_a_push(policy: Policy) -> None:
    """Loses the third update."""
    handle = policy.handle
    policy.handle = lambda event: [
        d for d in handle(event) if not (isinstance(d, Apply) and policy.version == 3)
    ]


#: Ways to break a policy, and in which mode it must be seen.
BREAKS = [
    (too_wide, "ssp"),
    (too_few, "sync"),
    (never_late, "sync"),
    (keeps_nothing, "softsync"),
    (serves_first, "ssp"),
    (serves_first, "async"),
    (drops_a_push, "async"),
]


@pytest.fixture(params=BREAKS, ids=lambda row: f"{row[0].__name__} in {row[1]}")
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Break the policy of a mode, and name it."""
    break_it, broken_mode = request.param

    def made(mode: str, workers: int, **knobs: float) -> Policy:
        policy = policy_for(mode, workers, **knobs)
        if mode == broken_mode:
            policy._alone = False
            break_it(policy)
        return policy

    monkeypatch.setattr(build, "policy_for", made)
    return broken_mode


@pytest.fixture(params=SEEDS, ids=lambda seed: f"seed {seed}")
def job(request: pytest.FixtureRequest) -> Job:
    with told(request.param):
        return Draw(request.param).job()


@pytest.fixture(params=SEEDS, ids=lambda seed: f"seed {seed}")
def draw(request: pytest.FixtureRequest) -> Draw:
    return Draw(request.param)
