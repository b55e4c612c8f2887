"""What the modes promise, written down a second time: who decides and who checks both trust it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

import psrt
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


def names_in(node):
    """Return the modes that a display or a constant names."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return {it.value for it in parts if isinstance(it, ast.Constant)} & MODES.keys()


def named(tree):
    """Yield the places in which a mode's name is compared, listed or looked up."""
    typed = set()
    for node in ast.walk(tree):  # the outer ones first
        match node:
            case _ if node in typed:
                pass
            case ast.Compare():
                # A call or a knob may be called as a mode is: what is compared has to be a value.
                if any(names_in(side) for side in (node.left, *node.comparators)):
                    yield node
            case ast.Tuple() | ast.List() | ast.Set() if len(names_in(node)) > 1:
                yield node
            case ast.Dict(keys=keys) if len({key for key in keys if key and names_in(key)}) > 1:
                yield node
            case ast.MatchValue() if names_in(node.value):
                yield node.value
            # A type has to be written out; that these are the rows has a test of its own.
            case ast.Subscript(value=ast.Name("Literal")):
                typed.update(ast.walk(node))
            # A knob is called as one mode is.
            case ast.Subscript() if names_in(node.slice) - KNOBS:
                yield node
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith" | "get")):
                if any(names_in(argument) - KNOBS for argument in node.args):
                    yield node


def test_no_mode_is_named_outside_of_its_row():
    root = Path(psrt.__file__).parent
    quoted = re.compile(f"['\"]({'|'.join(MODES)})['\"]")  # the others need no parsing
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root) != Path("config/modes.py")
        if quoted.search(text := path.read_text(encoding="utf-8"))
        for node in named(ast.parse(text))
    ]
    assert not found


def test_type_checkers_know_the_names_of_all_modes():
    assert get_args(ModeName) == MODES.own
