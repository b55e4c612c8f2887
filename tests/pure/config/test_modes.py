"""What the modes promise, written down a second time: who decides and who checks both trust it."""

from __future__ import annotations

import math

import pytest

from psrt.config.knobs import knobs_of
from psrt.config.modes import EASGD, MODES, SSP, Gossip, LocalSGD, Servers, SoftSync, Sync
from psrt.config.train import TrainConfig
from support.cases import each

NEVER, ALWAYS, OPTIONAL = Servers
INF = math.inf
PROMISED = {
    #            servers   single averages rounds  backup lead share sums   stale
    "serial":    (NEVER,    True,  False,  False,  0,     INF, None, False, False),
    "sync":      (ALWAYS,   False, False,  True,   0,     INF, None, False, False),
    "async":     (ALWAYS,   False, False,  False,  0,     INF, None, False, True),
    "ssp":       (ALWAYS,   False, False,  False,  0,     3,   None, False, True),
    "softsync":  (ALWAYS,   False, False,  False,  0,     INF, 1,    False, True),
    "local-sgd": (OPTIONAL, False, True,   True,   0,     INF, None, True,  False),
    "easgd":     (ALWAYS,   False, True,   True,   0,     INF, None, False, False),
    "allreduce": (NEVER,    False, False,  False,  0,     INF, None, True,  False),
    "gossip":    (NEVER,    False, False,  False,  0,     INF, None, False, False),
}  # fmt: skip
#: Those that send by a codec.
CODED = {"sync", "async", "ssp", "softsync", "local-sgd", "easgd", "allreduce", "gossip"}
#: Knobs with which no worker waits for another, and whether a row is stale then.
ASYNCHRONOUS = {EASGD(asynchronous=True): True, Gossip(variant="pairs"): False}
#: Those with a force, and those whose workers average with neighbours.
ELASTIC, MIXED = {"easgd": 0.9}, {"gossip"}
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
    assert mode.elastic == ELASTIC.get(mode.name)
    assert len(mode.summary.splitlines()) == 1
    assert mode.described().startswith(mode.name)


@each(("mode", "stale"), ASYNCHRONOUS.items())
def test_without_rounds(mode, stale):
    assert not mode.rounds
    assert mode.asynchronous
    assert mode.parks
    assert mode.is_stale == stale


@each(("mode", "promise"), [
    (Sync(backup=2), {"backup": 2, "parks": True}),
    (SSP(0), {"lead": 0}),
    (SoftSync(3), {"share": 3}),
    (LocalSGD(8, fragments=2), {"streams": True}),
    (LocalSGD(8, sync_delay=1), {"streams": True}),
    (LocalSGD(8, eager=True), {"streams": True}),
])  # fmt: skip
def test_what_its_knobs_make_of_a_row(mode, promise):
    assert {name: getattr(mode, name) for name in promise} == promise


@EVERY
def test_what_a_row_says_it_uses_are_knobs_of_the_run(mode):
    knobs = knobs_of(TrainConfig)
    assert len(set(mode.uses)) == len(mode.uses)
    for name in mode.uses:
        assert mode.name in knobs[name].requires[0].values
    assert not mode.knobs.keys() & knobs.keys()
    assert {*mode.alone} <= {*mode.knobs}
