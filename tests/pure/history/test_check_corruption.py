"""Whatever number of a good history is changed: it is found, or it is one that no rule is about.

Nothing that is changed makes the checker stumble, either.
"""

from __future__ import annotations

import functools
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrt.errors import ConfigError
from psrt.history import EVENT, Kind
from psrt.history.check import check
from psrt.history.check.trust import EVENTS, on_trust
from psrt.history.events import FIELDS
from psrt.history.reading import assemble
from support.histories import MODES, config_of, recorded, shards_of
from support.recording import Ledger

pytestmark = pytest.mark.slow

#: Fields of which no rule of these runs says all: times and durations may be near, a rate and the
#: part of the data that a step is on follow from the data, which these problems do not tell of, and
#: what rounding may make of a force or an average is a bound.
FREE = {
    "time": tuple(Kind),
    "seconds": (Kind.APPLY, Kind.STEP, Kind.READ, Kind.DRAW),
    "weight": (Kind.DRAW, Kind.CENTRE, Kind.TRACK),
    "gap": (Kind.APPLY, Kind.OFFER, Kind.MIXED, Kind.OWN, Kind.TRACK),
    "rate": (Kind.APPLY, Kind.STEP),
    "samples": (Kind.STEP, Kind.OFFER),
    "progress": (Kind.STEP, Kind.REDUCE),
}


def test_what_is_free_is_said_to_be_on_trust():
    for field, kinds in FREE.items():
        for kind in kinds:
            assert {field, f"{kind.name}.{field}"} & on_trust(EVENTS), (kind, field)


NUMBERS = [-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 5, 100, 2**31 - 1, 2**53, 2**62, 2**63 - 1]
REALS = [math.nan, math.inf, -math.inf, -1.0, 0.0, 0.5, 1.0, 3.0, 1e30]


@pytest.fixture(scope="module")
def good():
    """Make a small history of a mode, all events in one array."""

    @functools.cache
    def made(name):
        servers = max(MODES[name][2])
        steps = (5,) if name == "serial" else (4, 2, 5)
        config = config_of(name, servers, epochs=1)
        books = Ledger(steps, shards_of(config), empty=[(0, 2)])
        history = recorded(config, books, workers=len(steps), seed=3).history
        return history.header, np.concatenate([*history.workers, *history.shards, history.finals])

    return made


def changed(field, old, other, by):
    """Return another value for a field: near to the old one, or any."""
    kind = EVENT[field].kind
    new = other if by is None else old + by * (0.125 if kind == "f" else 1)
    if kind != "f":
        bounds = np.iinfo(EVENT[field])
        new = min(max(int(new), bounds.min), bounds.max)
    with np.errstate(over="ignore"):
        return EVENT[field].type(new)


def share_of(values, mode, one_in):
    """Return one in so many, others for another mode."""
    return itertools.islice(values, list(MODES).index(mode) % one_in, None, one_in)


def outcome_of(header, events):
    try:
        outcome = check(assemble(header, [events]), crashed=())
    except ConfigError:  # an event of a worker or a shard that is not there
        return False
    assert outcome.lines()
    json.dumps(outcome.document(), allow_nan=False)
    return outcome.ok


@settings(max_examples=40, derandomize=True)
@given(data=st.data())
@pytest.mark.one_in(3)
def test_one_number_changed(good, mode, data):
    header, events = good(mode)
    events = events.copy()
    i = data.draw(st.integers(0, len(events) - 1))
    kind = Kind(int(events["kind"][i]))
    field = data.draw(st.sampled_from(("kind", *FIELDS[kind], *EVENT.names)))
    old = events[field][i].item()
    near = data.draw(st.sampled_from([-2, -1, 1, 2, None]))
    values = REALS if EVENT[field].kind == "f" else [*map(int, Kind)] * (field == "kind") or NUMBERS
    new = changed(field, old, data.draw(st.sampled_from(values)), near)
    if new == old or (new != new and old != old):
        return
    events[field][i] = new
    ok = outcome_of(header, events)
    if kind not in FREE.get(field, ()):
        assert not ok, f"{kind.name}: {field} {new} instead of {old}"


@settings(max_examples=20, derandomize=True)
@given(data=st.data())
@pytest.mark.one_in(3)
def test_one_event_lost_or_doubled(good, mode, data):
    header, events = good(mode)
    i = data.draw(st.integers(0, len(events) - 2))
    way = data.draw(st.sampled_from(["lost", "doubled"]))
    order = np.arange(len(events))
    order = np.delete(order, i) if way == "lost" else np.insert(order, i, i)
    ok = outcome_of(header, events[order])
    if way == "doubled" and events["kind"][i] == Kind.FINAL:  # saved twice is saved
        return
    assert not ok, f"{way}: {events[i]}"


#: Kinds whose order nothing rests on: neither of two of them makes the other possible.
EITHER_FIRST = (
    {Kind.REPLY},
    {Kind.REPLY, Kind.DROP},
    {Kind.RECEIVE},
    {Kind.RECEIVE, Kind.LEFT},
    {Kind.LEFT},
)


@pytest.mark.parametrize("one_in", [3, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.one_in(3)
def test_two_events_in_the_other_order(good, mode, one_in):
    """Any two that follow each other, with their times exchanged, so that times do not tell."""
    header, events = good(mode)
    for i in share_of(range(len(events) - 1), mode, one_in):
        kinds = {Kind(int(kind)) for kind in events["kind"][[i, i + 1]]}
        if kinds in EITHER_FIRST or Kind.FINAL in kinds:
            continue
        if kinds == {Kind.PUSH} and "shards" in mode:  # which of them is ready first is free
            continue
        order = np.arange(len(events))
        order[[i, i + 1]] = i + 1, i
        swapped = events[order]
        swapped["time"] = events["time"]
        assert not outcome_of(header, swapped), f"{events[i]} after {events[i + 1]}"


@settings(max_examples=20, derandomize=True)
@given(data=st.data())
def test_any_numbers_at_all(good, mode, data):
    """Noise is refused, and never by a traceback."""
    header, events = good(mode)
    events = events.copy()
    noise = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    fields = data.draw(st.lists(st.sampled_from(EVENT.names), min_size=1, max_size=14, unique=True))
    for field in fields:
        where = noise.random(len(events)) < 0.3
        values = REALS if EVENT[field].kind == "f" else [-1, 0, 1, 2, 3, *NUMBERS]
        kinds = [int(kind) for kind in Kind if kind != Kind.END]
        picked = noise.choice(kinds if field == "kind" else values, len(events))
        if EVENT[field].kind != "f":
            bounds = np.iinfo(EVENT[field])
            picked = np.clip(picked.astype(object), bounds.min, bounds.max)
        with np.errstate(over="ignore"):
            events[field][where] = picked[where].astype(EVENT[field])
    outcome_of(header, events)


def test_no_events_at_all_are_not_a_run(good, mode):
    header, events = good(mode)
    assert not outcome_of(header, events[:0])
    assert not outcome_of(header, events[-1:])


def test_any_beginning_of_a_run_is_not_a_run(good, mode):
    header, events = good(mode)
    events = events[np.argsort(events["time"], kind="stable")]
    for length in range(0, len(events), 5):
        assert not outcome_of(header, events[:length])


def test_another_mode_is_found_out(good):
    """A history that is held against the contract of a mode that promises more."""
    for name, changes in (
        ("async", {"mode": "ssp", "staleness": 0}),
        ("async", {"mode": "sync", "backup": 0}),
        ("async", {"mode": "softsync", "softsync": 1}),
        ("softsync 1", {"mode": "async"}),
        ("ssp 1", {"mode": "ssp", "staleness": 0}),
        ("ssp 0", {"mode": "ssp", "staleness": 1}),
        ("sync", {"mode": "sync", "backup": 1}),
        ("one backup", {"mode": "sync", "backup": 0}),
        ("local-sgd", {"mode": "local-sgd", "local_steps": 2}),
        ("easgd", {"elastic": 0.8}),
        ("easgd", {"local_steps": 3}),
        ("easgd", {"asynchronous": True}),
        ("easgd, asynchronous", {"asynchronous": False}),
        ("async, drops", {"staleness_rate": "constant"}),
    ):
        header, events = good(name)
        assert outcome_of(header, events)
        header = with_header(header, config=header.config | changes)
        assert not outcome_of(header, events), (name, changes)


def with_header(header, **changes):
    return type(header)(**{item: getattr(header, item) for item in header.__slots__} | changes)


@pytest.mark.parametrize(
    ("number", "one_in"),
    [
        (10**400, 3),
        *(
            pytest.param(it, 1, marks=pytest.mark.exhaustive)
            for it in (10**400, -1, math.nan, "x", 2**70, math.inf, 1e300, True, [])
        ),
    ],
)
@pytest.mark.rest_one_in(6)
@pytest.mark.one_in(9)
def test_a_header_with_numbers_that_cannot_be(good, mode, number, one_in):
    """One line or a finding, never a traceback: not with numbers that 64 bits cannot hold."""
    header, events = good(mode)
    for name, value in share_of(header.config.items(), mode, one_in):
        if type(value) in (int, float) or value is None:
            outcome_of(with_header(header, config=header.config | {name: number}), events)
    for batches in ((2**53, 1), (2**53, 2**53), (1, 2**53)):
        outcome_of(with_header(header, batches=batches), events)
