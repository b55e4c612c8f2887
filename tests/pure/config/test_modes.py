"""What the modes promise, written down a second time: who decides and who checks both trust it."""

from __future__ import annotations

from typing import get_args

import pytest

from psrt.config.knobs import knobs_of
from psrt.config.modes import MODES, Servers
from psrt.config.train import ModeName, TrainConfig

NEVER, ALWAYS, OPTIONAL = Servers
PROMISED = {
    #            servers   single averages rounds  backup    lead         share       sums   stale
    "serial":    (NEVER,    True,  False,  False,  None,     None,        None,       False, False),
    "sync":      (ALWAYS,   False, False,  True,   "backup", None,        None,       False, False),
    "async":     (ALWAYS,   False, False,  False,  None,     None,        None,       False, True),
    "ssp":       (ALWAYS,   False, False,  False,  None,     "staleness", None,       False, True),
    "softsync":  (ALWAYS,   False, False,  False,  None,     None,        "softsync", False, True),
    "local-sgd": (OPTIONAL, False, True,   True,   None,     None,        None,       True,  False),
    "easgd":     (ALWAYS,   False, True,   True,   None,     None,        None,       False, False),
    "allreduce": (NEVER,    False, False,  False,  None,     None,        None,       True,  False),
    "gossip":    (NEVER,    False, False,  False,  None,     None,        None,       False, False),
}  # fmt: skip
#: Those that send by a codec.
CODED = {"sync", "async", "ssp", "softsync", "local-sgd", "easgd", "allreduce", "gossip"}
#: Those with a knob under which no worker waits for another, and whether a row of them is stale.
ASYNCHRONOUS = {"easgd": True, "gossip": False}
#: Those with a force, and those with a default of their own.
ELASTIC, USUAL = {"easgd": "elastic"}, {"easgd": {"local_steps": 10}}
#: Those whose workers average with neighbours.
MIXED = {"gossip"}
KNOBS = knobs_of(TrainConfig).keys()
EVERY = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@EVERY
def test_what_a_row_promises(mode):
    assert list(MODES) == list(PROMISED)
    declared = (
        *(mode.servers, mode.single, mode.averages, mode.rounds),
        *(mode.backup, mode.lead, mode.share, mode.sums, mode.is_stale),
    )
    assert declared == PROMISED[mode.name]
    assert mode.mixes == (mode.name in MIXED)
    assert mode.codecs == (mode.name in CODED)
    assert len(mode.summary.splitlines()) == 1
    assert mode.described(dict.fromkeys(mode.knobs, 2).get).startswith(mode.name)
    assert mode.described(lambda name: None) == mode.name


@EVERY
def test_what_its_knobs_make_of_a_row(mode):
    assert mode.under({}.get) is mode
    assert mode.elastic == ELASTIC.get(mode.name)
    assert dict(mode.usual) == USUAL.get(mode.name, {})
    assert {name for name, _ in mode.usual} <= set(mode.knobs)
    asynchronous = mode.under(dict.fromkeys(KNOBS, True).get)
    assert (asynchronous is not mode) == (mode.name in ASYNCHRONOUS)
    if mode.name in ASYNCHRONOUS:
        assert not asynchronous.rounds
        assert asynchronous.is_stale == ASYNCHRONOUS[mode.name]


@EVERY
def test_the_knobs_of_a_row_are_knobs(mode):
    knobs = knobs_of(TrainConfig)
    assert len(set(mode.knobs)) == len(mode.knobs)
    for name in (*mode.knobs, *mode.policy_knobs):
        assert mode.name in knobs[name].requires[0].values
    assert set(mode.policy_knobs) <= set(mode.knobs)


def test_type_checkers_know_the_names_of_all_modes():
    assert get_args(ModeName) == MODES.own
