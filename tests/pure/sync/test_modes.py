"""The table of modes as a whole, and when local SGD averages."""

from __future__ import annotations

import pytest

from psrt.config.modes import MODES
from psrt.errors import ConfigError
from psrt.sync import AveragingPeriod, policy_for


@pytest.mark.parametrize(
    "row", [row for row in MODES.values() if row.may_have_servers], ids=lambda row: row.name
)
def test_every_mode_that_may_have_servers_has_a_policy(row):
    policy = policy_for(row.name, 3, **dict.fromkeys(row.policy_knobs, 1))
    assert policy.live


def test_a_mode_without_servers_has_no_policy():
    with pytest.raises(ConfigError, match="mode 'allreduce' has no servers; those that do: sync"):
        policy_for("allreduce", 2)


def test_everybody_starts_at_clock_and_version_zero():
    policy = policy_for("ssp", 3, staleness=2)
    assert (policy.version, policy.clock, policy.live) == (0, {0: 0, 1: 0, 2: 0}, True)


@pytest.mark.parametrize(
    ("local_steps", "until", "steps", "progress", "due"),
    [
        (1, 0.0, 1, 0.0, True),
        (4, 0.0, 3, 0.0, False),
        (4, 0.0, 4, 0.0, True),
        (4, 1.0, 1, 0.999, True),  # post-local: every step until then
        (4, 1.0, 1, 1.0, False),
        (4, 1.0, 5, 1.0, True),
    ],
)
def test_averaging_period(local_steps, until, steps, progress, due):
    period = AveragingPeriod(local_steps, until)
    assert period.due(steps=steps, progress=progress) is due
