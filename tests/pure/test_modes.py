"""What the modes promise, written down a second time: who decides and who checks both trust it."""

from __future__ import annotations

import doctest

import pytest

from psrt.config import modes
from psrt.config.knobs import knobs_of
from psrt.config.modes import MODES, Servers
from psrt.config.train import TrainConfig

NEVER, ALWAYS, OPTIONAL = Servers

PROMISED = {
    #            servers   single averages rounds  backup    lead         share       sums   stale
    "serial":    (NEVER,    True,  False,  False,  None,     None,        None,       False, False),
    "sync":      (ALWAYS,   False, False,  True,   "backup", None,        None,       False, False),
    "async":     (ALWAYS,   False, False,  False,  None,     None,        None,       False, True),
    "ssp":       (ALWAYS,   False, False,  False,  None,     "staleness", None,       False, True),
    "softsync":  (ALWAYS,   False, False,  False,  None,     None,        "softsync", False, True),
    "local-sgd": (OPTIONAL, False, True,   True,   None,     None,        None,       True,  False),
    "allreduce": (NEVER,    False, False,  False,  None,     None,        None,       True,  False),
}  # fmt: skip
EVERY = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def test_examples_in_docstrings():
    assert doctest.testmod(modes).failed == 0


def test_every_row_is_promised():
    assert list(MODES) == list(PROMISED)


@EVERY
def test_what_a_row_promises(mode):
    declared = (
        *(mode.servers, mode.single, mode.averages, mode.rounds),
        *(mode.backup, mode.lead, mode.share, mode.sums, mode.is_stale),
    )
    assert declared == PROMISED[mode.name]


@EVERY
def test_the_knobs_of_a_row_are_knobs(mode):
    knobs = knobs_of(TrainConfig)
    assert len(set(mode.knobs)) == len(mode.knobs)
    for name in (*mode.knobs, *mode.policy_knobs):
        assert mode.name in knobs[name].requires[0].values
    assert set(mode.policy_knobs) <= set(mode.knobs)


@EVERY
def test_a_mode_is_described_in_one_line(mode):
    assert mode.doc
    assert "\n" not in mode.doc
    assert mode.described(dict.fromkeys(mode.knobs, 2).get).startswith(mode.name)
    assert mode.described(lambda name: None) == mode.name
