"""Law: a job runs, or it is refused in one line that names what does not go together.

Promised in docs/cli.md and docs/parallelism.md. The rules are the tests' own (``support.jobs``).
That what they allow runs is the law of contracts; that what they forbid is refused stands here.
Seen red: a check that is left out of psrt/config/checks.py, a line that names another flag.
"""

from __future__ import annotations

import itertools

import pytest

from psrt.core.errors import ConfigError
from support.jobs import (
    AGAIN,
    FACTORS,
    KINDS,
    RULES,
    Job,
    covering,
    kind_of,
    plainest,
    ran,
    refused_by,
)


def forbidden(rule):
    """Yield levels that a rule forbids, and no other does."""
    others = [it for it in RULES if it is not rule]
    for levels in itertools.product(*(FACTORS[it] for it in rule.factors)):
        chosen = dict(zip(rule.factors, levels, strict=True))
        if rule.forbids(*levels) and refused_by(chosen, others) is None:
            yield chosen


def refusal(job: Job, folder) -> str:
    """Return the line by which a job is refused, "" if it is not."""
    try:
        ran(job, folder)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " × ".join(rule.factors))
def test_what_does_not_go_together_is_refused(rule, tmp_path):
    tried = 0
    others = [it for it in RULES if it is not rule]
    for levels in forbidden(rule):
        job = plainest(levels, others)
        if job is None:
            continue  # something else forbids it, however the rest is chosen
        line = refusal(job, tmp_path / "run")
        assert line, f"nobody refuses {job}"
        assert "\n" not in line
        assert any(it in line for it in rule.names), (str(job), line)
        tried += 1
    assert tried


def test_every_pair_that_goes_together_is_in_a_job():
    for one, other in itertools.combinations(FACTORS, 2):
        there = {(job[one], job[other]) for job in covering()}
        for pair in itertools.product(FACTORS[one], FACTORS[other]):
            levels = {one: pair[0], other: pair[1]}
            assert (pair in there) == (plainest(levels) is not None), (levels, AGAIN)


def test_every_triple_of_kinds_that_goes_together_is_in_a_job():
    there = {tuple(kind_of(it, job[it]) for it in KINDS) for job in covering()}
    possible = {
        tuple(kind_of(it, level) for it, level in zip(KINDS, levels, strict=True))
        for levels in itertools.product(*(FACTORS[it] for it in KINDS))
        if plainest(dict(zip(KINDS, levels, strict=True))) is not None
    }
    assert there == possible, AGAIN
    assert len(possible) > 50


def test_no_job_of_the_array_is_forbidden():
    for job in covering():
        assert refused_by(job.by_factor) is None, job
    assert len({*covering()}) == len(covering())
