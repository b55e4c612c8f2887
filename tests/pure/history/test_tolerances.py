"""No tolerance is the run's own word: what would excuse an error is held against the events."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.history import EVENT, Kind, read_history
from psrt.history.check import check
from psrt.history.check.run import check_cells
from psrt.history.check.trust import EVENTS, METRICS, SUMMARY, on_trust
from psrt.history.events import FIELDS
from psrt.history.reading import read_cells
from psrt.job.virtual import simulate

KNOBS = {
    "dataset": "synthetic:40x6x3", "hidden": (5,), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "optimizer": "sgd", "record": True,
}  # fmt: skip
TOP_K = {"codec": "top-k", "codec_density": 0.2, "codec_everywhere": True}
MODES = {
    "residuals": {"mode": "async", "servers": 2, **TOP_K},
    "sums in frames": {"mode": "allreduce", "allreduce": "all-pairs", **TOP_K},
    "elastic": {"mode": "easgd", "local_steps": 2, "servers": 2},
    "elastic, asynchronous": {"mode": "easgd", "local_steps": 2, "asynchronous": True},
    "gossip": {"mode": "gossip", "topology": "full"},
    "choco": {"mode": "gossip", "codec": "top-k", "codec_everywhere": True},
    "tracking": {"mode": "gossip", "gradient_tracking": True},
    "push-sum": {"mode": "gossip", "push_sum": True, "topology": "exponential"},
    "pairs": {"mode": "gossip", "asynchronous": True, "topology": "star"},
    "hosts": {"mode": "gossip", "by_host": True},
    "averages": {"mode": "local-sgd", "local_steps": 2},
}
#: What a number is changed to: none, one without end, one that is far too large.
CHANGES = {"nan": np.nan, "inf": np.inf, "times a million": 1e6}
#: Of what is on trust, where nothing at all is known.
WHOLLY = {"APPLY.gap"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    @functools.cache
    def made(mode):
        out = tmp_path_factory.mktemp("run")
        config = TrainConfig(**KNOBS | MODES[mode], out=str(out))
        simulate(config, workers=3, seed=1, hosts=(2, 1) if mode == "hosts" else ())
        return out

    return made


def events_of(history):
    return [*history.workers, *history.shards, history.finals]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.one_in(3)
def test_each_number_of_an_event_is_checked_or_said_to_be_on_trust(run, mode):
    history, missed = read_history(run(mode)), set()
    assert check(history).ok
    for events in events_of(history):
        for kind in map(Kind, np.unique(events["kind"])):
            at = np.flatnonzero(events["kind"] == kind)
            for field in FIELDS.get(kind, ()):
                if EVENT[field].kind != "f":
                    continue
                values = events[field][at]
                i = at[np.argmax(np.where(np.isfinite(values), np.abs(values), -1))]
                was = events[field][i]
                for change, number in CHANGES.items():
                    made = was * number if change == "times a million" else number
                    if made == was or (made != made and was != was):
                        continue
                    events[field][i] = made
                    if check(history).ok:
                        missed.add((kind.name, field, change))
                    events[field][i] = was
    assert not {it for it in missed if f"{it[0]}.{it[1]}" not in WHOLLY}
    assert on_trust(EVENTS) >= WHOLLY


#: What is changed, in all events of a kind, and by how much: an error, and what would excuse it.
EXCUSES = {
    "residuals, a bound": (
        "residuals", [(Kind.RESIDUAL, "weight", 1.1), (Kind.RESIDUAL, "seconds", 1e6)],
    ),
    "residuals, no bound": (
        "residuals", [(Kind.RESIDUAL, "weight", 1.1), (Kind.RESIDUAL, "seconds", np.inf)],
    ),
    "residuals, no number": ("residuals", [(Kind.RESIDUAL, "weight", np.nan)]),
    "sums, no number": ("sums in frames", [(Kind.SUM_KEEP, "weight", np.nan)]),
    "averages, no number": ("gossip", [(Kind.MIXED, "progress", np.nan)]),
    "pairs, no number": ("pairs", [(Kind.MIXED, "progress", np.nan)]),
    "tracked, no number": ("tracking", [(Kind.TRACK, "rate", np.nan)]),
    "forces, no number": (
        "elastic", [(kind, "progress", np.nan) for kind in (Kind.DRAW, Kind.FORCE, Kind.CENTRE)],
    ),
    "moves, no number": ("elastic", [(Kind.DRAW, "gap", np.nan), (Kind.DRAW, "rate", np.nan)]),
    "sums": (
        "sums in frames", [(Kind.SUM_KEEP, "weight", 1.1), (Kind.SUM_KEEP, "seconds", 1e6)],
    ),
    "averages": (
        "gossip", [(Kind.MIXED, "progress", 1.01), (Kind.OFFER, "gap", 1e6)],
    ),
    "averages of hosts": (
        "hosts", [(Kind.MIXED, "progress", 1.01), (Kind.OFFER, "gap", 1e6)],
    ),
    "averages of pairs": (
        "pairs",
        [(Kind.MIXED, "progress", 1.01), (Kind.OFFER, "gap", 1e6), (Kind.OWN, "gap", 1e6)],
    ),
    "tracked": (
        "tracking",
        [(Kind.TRACK, "rate", 1.1), (Kind.TRACK, "gap", 1e6), (Kind.TRACK, "weight", 1e6)],
    ),
    "parameters that are divided": (
        "push-sum", [(Kind.MIXED, "rate", 1.1), (Kind.OFFER, "gap", 1e6)],
    ),
    "forces": (
        "elastic",
        [
            *((kind, "progress", 2.0) for kind in (Kind.DRAW, Kind.FORCE, Kind.CENTRE)),
            (Kind.DRAW, "gap", 2.0), (Kind.DRAW, "seconds", 1e7), (Kind.DRAW, "weight", 1e7),
            (Kind.CENTRE, "weight", 1e7),
        ],
    ),
    "how a worker moved": ("elastic", [(Kind.DRAW, "gap", 2.0), (Kind.DRAW, "weight", 1e9)]),
    "how the centre moved": (
        "elastic", [(Kind.CENTRE, "progress", 2.0), (Kind.CENTRE, "weight", 1e9)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXCUSES)
def test_what_would_excuse_an_error_is_none(run, name):
    """In one event, and in all of them."""
    mode, changes = EXCUSES[name]
    for one in (True, False):
        history = read_history(run(mode))
        for kind, field, factor in changes:
            for events in events_of(history):
                at = np.flatnonzero(events["kind"] == kind)
                at = at[len(at) // 2 :][:1] if one else at
                events[field][at] *= events[field].dtype.type(factor)
        assert not check(history).ok, one


def leaves(values, path=()):
    """Yield (path, number) of all numbers inside."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(value, (dict, list)):
            yield from leaves(value, (*path, key))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield (*path, key), value


@pytest.mark.parametrize("mode", ["pairs", "slices", "push-sum", "stages"])
@pytest.mark.one_in(2)
def test_each_figure_is_checked_or_said_to_be_on_trust(tmp_path, mode):
    cut = {"slices": "data:2,tensor:2", "stages": "data:2,pipeline:2"}
    knobs = {"mode": "allreduce", "parallel": cut[mode]} if mode in cut else MODES[mode]
    simulate(TrainConfig(**KNOBS | knobs, out=str(tmp_path)), workers=4, seed=1)
    header, histories = read_cells(tmp_path)
    metrics = [json.loads(it) for it in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((tmp_path / "summary.json").read_text())

    def is_good():
        if mode in cut:
            return check_cells(header, histories, summary=summary, metrics=metrics).ok
        return check(histories[0], summary=summary, metrics=metrics).ok

    assert is_good()
    for file, document in ((SUMMARY, summary), (METRICS, metrics[len(metrics) // 2])):
        missed = set()
        for path, number in leaves(document):
            at = document
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = number * 1.5 + 1
            if is_good():
                missed.add(".".join(map(str, path)))
            at[path[-1]] = number
        names = on_trust(file)
        assert not {
            it for it in missed if not any(f"{it}.".startswith(f"{name}.") for name in names)
        }
