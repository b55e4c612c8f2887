"""What a check says, of whom it asks less, and that no tolerance is the run's own word.

What would excuse an error is held against the events, too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import random

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.core.errors import ConfigError
from psrt.history import EVENT, Kind, read_history
from psrt.history.check import RULES, check
from psrt.history.check.trust import EVENTS, on_trust
from psrt.history.kinds import KINDS
from psrt.history.reading import assemble
from psrt.job.virtual import simulate
from psrt.report import strict_json
from support.cases import each, some
from support.histories import MODES, config_of, recorded, shards_of, written
from support.recording import Ledger

EVEN = (5, 5, 5, 5)


def run(name, steps=EVEN, *, servers=None, epochs=2, empty=(), **more):
    config = config_of(name, max(MODES[name][2]) if servers is None else servers, epochs=epochs)
    books = Ledger(steps, shards_of(config), empty=empty)
    return recorded(config, books, workers=len(steps), **more)


def events_of(history):
    return [*history.workers, *history.shards, history.finals]


def with_header(history, **changes):
    return dataclasses.replace(history, header=dataclasses.replace(history.header, **changes))


# --- what is said -------------------------------------------------------------------------------

GATE = """
    READ w0 c0 v0; READ w1 c0 v0; PUSH w0 c0 v0; PUSH w1 c0 v0; RECEIVE w0 c0 v0; APPLY w0 c0 v1 t0
    REPLY w0 c1 v1; READ w0 c1 v1 t0; RECEIVE w1 c0 v0; APPLY w1 c0 v2 t1; REPLY w1 c1 v2
    READ w1 c1 v2 t1; LEAVE w0 c1; LEAVE w1 c1; LEFT w0 c1; LEFT w1 c1; FINAL v2
""".replace(";", "\n")


def test_a_violation_is_told_with_the_events_that_led_there():
    outcome = check(written(GATE, "ssp", workers=2, staleness=0))
    assert outcome.lines() == [
        "ssp (staleness 0), 2 workers and 1 shard: 17 events in 0.015 s",
        f"violated: progress: {RULES['progress']}",
        "  shard 0 answered worker 0 at clock 0 with clock 1, although worker 1 had finished 0 "
        "steps: 1 ahead, the most is 0",
        "        0.004000 s  RECEIVE     shard 0  worker 0  clock 0  version 0  samples 1  "
        "progress 0  rate 0",
        "        0.005000 s  APPLY       shard 0  worker 0  clock 0  version 1  tau 0  samples 1  "
        "progress 0  rate 0.1",
        "  >     0.006000 s  REPLY       shard 0  worker 0  clock 1  version 1  steps 0",
        "        0.008000 s  RECEIVE     shard 0  worker 1  clock 0  version 0  samples 1  "
        "progress 0  rate 0",
    ]
    document = outcome.document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (document["ok"], document["mode"], document["events"]) == (False, "ssp", 17)
    violation = document["violation"]
    assert violation["rule"] == "progress"
    kinds = [event["kind"] for event in violation["events"]]
    assert kinds == ["RECEIVE", "APPLY", "REPLY", "RECEIVE"]
    assert violation["events"][2] == {
        "time": 0.006, "kind": "REPLY", "shard": 0, "worker": 0, "clock": 1, "version": 1,
        "steps": 0,
    }  # fmt: skip


def test_what_was_checked_is_told():
    history, found = run("ssp 1", servers=3)
    outcome = check(history)
    first, *rules, last = outcome.lines()
    # By worker a LEAVE; by worker and shard READ at first, and a LEFT; by step and shard
    # PUSH, RECEIVE, APPLY, REPLY and READ; by shard a FINAL.
    assert outcome.events == 4 + 4 * 3 * 2 + 20 * 3 * 5 * 2 + 3
    assert first.startswith(f"ssp (staleness 1), 4 workers and 3 shards: {outcome.events} events")
    assert last == "ok: nothing contradicts the contract of its mode"
    for name in ("progress", "bounded-staleness read", "read-your-writes", "per-worker FIFO"):
        assert outcome.checked[name] == 40 * 3  # steps, on every shard
        assert any(line.split("  ")[1].strip() == name for line in rules)
    assert set(outcome.checked) <= set(RULES)
    assert outcome.document()["ok"] is True
    assert outcome.seconds == pytest.approx(found.seconds, abs=1e-9)


def test_the_first_of_several_is_told():
    text = GATE.replace("REPLY w0 c1 v1", "REPLY w0 c1 v1 m0").replace("v2 t1", "v2 t0", 1)
    both = check(written(text, "ssp", workers=2, staleness=0)).violation
    assert (both.rule, both.time) == ("progress", 0.006)
    wide = check(written(text, "ssp", workers=2, staleness=1)).violation
    assert (wide.rule, wide.time) == ("staleness", 0.009)


def test_what_never_happened_has_no_time():
    outcome = check(written(GATE.replace("FINAL v2", ""), "async", workers=2))
    assert outcome.violation.event is None
    assert math.isinf(outcome.violation.time)
    assert outcome.lines()[2:] == [
        "  shard 0, at version 2: never written",
        "        0.015000 s  LEFT        shard 0  worker 1  clock 1",
    ]


def test_times_that_are_none_can_be_told_of():
    history = written(GATE, "async", workers=2)
    history.shards[0]["time"][3] = math.nan
    outcome = check(history)
    assert outcome.violation.rule == "well-formed events"
    assert any("at time nan" in line for line in outcome.lines())
    json.dumps(outcome.document(), allow_nan=False)


# --- who has died -------------------------------------------------------------------------------


class Opposed:
    """Of one parameter, which worker 0 pulls the other way than the others, and further."""

    def initial(self):
        return np.zeros(1, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.array([worker - 2.5])] * 6

    def loss_and_grad(self, theta, batch, out):
        out[:] = batch if batch < -2 else 0.5 * batch + 2
        return 0.0

    def evaluate(self, theta):
        return {"loss": 0.0}


def test_a_radial_merge_of_directions_that_cancel_is_no_offence(tmp_path):
    mode = "local-sgd:local-steps=2,quorum=2,merge=radial"
    out = str(tmp_path / "run")
    simulate(
        TrainConfig(mode=mode, servers=1, epochs=2, out=out, record=True), Opposed(), workers=3
    )
    history = read_history(out)
    (events,) = history.shards
    forces, centres = (events[events["kind"] == it] for it in (Kind.FORCE, Kind.CENTRE))
    assert centres["gap"].min() < 0.5 * forces["gap"].min()
    outcome = check(history)
    assert outcome.ok, outcome.lines()


def test_a_death_is_no_offence_but_in_a_real_run():
    text = GATE.replace("LEAVE w1 c1\n", "\n")
    scheduled = written(text, "async", workers=2, crashes=(0, 1))
    assert check(scheduled).ok
    assert check(scheduled, crashed=[1]).ok
    for outcome in (
        check(scheduled, crashed=[0]),
        check(written(text, "async", workers=2)),
        check(written(text, "async", workers=2), crashed=[1]),
        check(written(text, "async", workers=2, crashes=(0,))),
        check(written(text, "async", workers=2, simulated=False)),
    ):
        assert outcome.violation.rule == "membership"
        assert "worker 1 never said that it leaves" in outcome.violation.text


def crashes_of(rng, workers):
    return [(worker, rng.random() * 0.01) for worker in workers]


@each("seed", range(5))
def test_figures_follow_from_the_events_when_some_have_died(seed):
    rng = random.Random(seed)
    name = rng.choice([it for it in MODES if max(MODES[it][2]) or MODES[it][0] == "gossip"])
    history, found = run(
        name, [rng.randint(1, 7) for _ in range(4)], seed=seed, empty=[(0, 0), (2, 1)],
        costs=rng.choice(["exponential", "slow links", "now and then stuck"]),
        crashes=crashes_of(rng, rng.sample(range(4), rng.randint(1, 3))),
    )  # fmt: skip
    metrics = json.loads(strict_json.dumps([dataclasses.asdict(it) for it in found.records]))
    summary = json.loads(found.summary.to_json())
    outcome = check(history, metrics=metrics, summary=summary)
    assert outcome.ok, "\n".join(outcome.lines())
    for figure in ("samples", "steps", "epochs", "dropped", "torn", "skew_max") if metrics else ():
        forged = summary | {figure: summary[figure] + 1}
        assert not check(history, metrics=metrics, summary=forged).ok, figure


@each(("seed", "gossips"), [(0, True), (1, False), (2, True), (3, False)])
def test_without_the_events_of_a_worker_that_fell_silent(seed, gossips):
    """As in real time, where its own file is cut off anywhere."""
    rng = random.Random(seed)
    names = [it for it in MODES if MODES[it][0] == "gossip"]
    name = rng.choice(names if gossips else ["async", "ssp 1", "softsync 1, mean"])
    silent = sorted(rng.sample(range(gossips, 4), rng.randint(1, 3)))  # rank 0 cannot be missed
    history, found = run(name, seed=seed, crashes=crashes_of(rng, silent))
    workers = tuple(it[:0] if i in silent else it for i, it in enumerate(history.workers))
    cut_off = dataclasses.replace(history, workers=workers)
    cut_off = with_header(cut_off, simulated=False, crashes=tuple(silent))
    outcome = check(cut_off)
    assert outcome.ok, "\n".join(outcome.lines())
    names = ", ".join(map(str, silent))
    told = f", without those of worker {names}, which went missing"
    assert outcome.lines()[0].endswith(told)
    summary = json.loads(found.summary.to_json())
    assert "missing" in check(cut_off, summary=summary).violation.text
    assert check(with_header(cut_off, crashes=())).violation.rule == "membership"


# --- what is no run of its mode, and no run at all ----------------------------------------------


@functools.cache
def good(name):
    """Return a small history of a mode: its header, and all events in one array."""
    history = run(name, (5,) if name == "serial" else (4, 2, 5), epochs=1, empty=[(0, 2)], seed=3)
    return history.history.header, np.concatenate(events_of(history.history))


def is_ok(header, events):
    try:
        outcome = check(assemble(header, [events]), crashed=())
    except ConfigError:  # an event of a worker or a shard that is not there
        return False
    assert outcome.lines()
    json.dumps(outcome.document(), allow_nan=False)
    return outcome.ok


@each(("name", "changes"), [
    ("async", {"mode": "ssp:staleness=0"}),
    ("async", {"mode": "softsync:k=1"}),
    ("softsync 1", {"mode": "async"}),
    ("ssp 1", {"mode": "ssp:staleness=0"}),
    ("sync", {"mode": "sync:backup=1"}),
    ("one backup", {"mode": "sync:backup=0"}),
    ("local-sgd", {"mode": "local-sgd:local-steps=2"}),
    ("easgd", {"mode": "easgd:local-steps=2,elastic=0.8"}),
    ("easgd, asynchronous", {"mode": "easgd:local-steps=2"}),
    ("async, drops", {"staleness_rate": "constant"}),
])  # fmt: skip
def test_another_mode_is_found_out(name, changes):
    header, events = good(name)
    assert is_ok(header, events)
    config = header.config | changes
    assert not is_ok(dataclasses.replace(header, config=config), events)


def test_who_leaves_amid_a_round_of_averages_is_found():
    header, events = good("gossip")
    last = np.flatnonzero((events["kind"] == Kind.MIXED) & (events["worker"] == 0))[-1]
    found = check(assemble(header, [np.delete(events, last)])).violation
    assert (found.rule, found.text) == ("turns", "worker 0 leaves in the middle of a round")


AGAIN = "worker 0 sent fragment 0 again before it arrived"


def test_a_fragment_that_is_sent_again_before_it_arrived_is_found():
    header, events = good("late, post-local")
    arrived = (events["kind"][:-1] == Kind.REDUCED) & (events["kind"][1:] == Kind.REDUCE)
    i = np.flatnonzero(arrived & (events["worker"][1:] == events["worker"][:-1]))[0]
    times = events["time"][[i, i + 1]]
    events = events.copy()
    events[[i, i + 1]] = events[[i + 1, i]]
    events["time"][[i, i + 1]] = times
    events["version"][i] -= 1
    found = check(assemble(header, [events])).violation
    assert (found.rule, found.text) == ("fragments", AGAIN)


# --- tolerances ---------------------------------------------------------------------------------

TOP_K = {"codec": "top-k:density=0.2", "codec_everywhere": True}
TOLERANT = {
    "residuals": {"mode": "async", "servers": 2, **TOP_K},
    "sums in frames": {"mode": "allreduce", "allreduce": "all-pairs", **TOP_K},
    "elastic": {"mode": "easgd:local-steps=2", "servers": 2},
    "gossip": {"mode": "gossip:topology=full"},
    "choco": {"mode": "gossip", "codec": "top-k", "codec_everywhere": True},
    "tracking": {"mode": "gossip:variant=gradient-tracking"},
    "push-sum": {"mode": "gossip:variant=push-sum,topology=exponential"},
    "pairs": {"mode": "gossip:variant=pairs,topology=star"},
    "hosts": {"mode": "gossip:variant=by-host"},
    "averages": {"mode": "local-sgd:local-steps=2"},
}


@pytest.fixture(scope="module")
def tolerant(tmp_path_factory):
    @functools.cache
    def made(mode):
        out = tmp_path_factory.mktemp("run")
        config = TrainConfig(
            dataset="synthetic:40x6x3", hidden=(5,), batch_size=4, epochs=1, lr=0.05,
            optimizer="sgd", record=True, out=str(out), **TOLERANT[mode],
        )  # fmt: skip
        simulate(config, workers=3, seed=1, hosts=(2, 1) if mode == "hosts" else ())
        return out

    return lambda mode: read_history(made(mode))


@pytest.mark.parametrize("mode", some(TOLERANT, one_in=5))
def test_each_number_of_an_event_is_checked_or_said_to_be_on_trust(tolerant, mode):
    """A number near by; and none, one without end, or one that is far too large, even if it is."""
    history, near, odd = tolerant(mode), set(), set()
    assert check(history).ok
    seen = set()
    for events in events_of(history):
        for kind in {*map(Kind, np.unique(events["kind"]))} - seen:
            seen.add(kind)
            at = np.flatnonzero(events["kind"] == kind)
            for field in (it for it in KINDS[kind].fields.values() if EVENT[it].kind == "f"):
                values = events[field][at]
                i = at[np.argmax(np.where(np.isfinite(values), np.abs(values), -1))]
                was = events[field][i]
                for number, missed in (
                    (was * 1.25 + 0.125, near), (np.nan, odd), (np.inf, odd), (was * 1e6, odd),
                ):  # fmt: skip
                    if number == was or (number != number and was != was):
                        continue
                    events[field][i] = number
                    if check(history).ok:
                        missed.add((kind.name, field.name))
                    events[field][i] = was
    trusted = on_trust(EVENTS)
    assert not {it for it in near if not trusted & {it[1], ".".join(it)}}
    assert odd <= {("APPLY", "gap")}, "of which nothing at all is known"


#: What is multiplied, in all events of a kind, and by how much: an error, and what would excuse it.
EXCUSES = [
    ("residuals", "RESIDUAL.weight 1.1 RESIDUAL.seconds inf"),
    ("residuals", "RESIDUAL.weight nan"),
    ("sums in frames", "SUM_KEEP.weight 1.1 SUM_KEEP.seconds 1e6"),
    ("gossip", "MIXED.progress 1.01 OFFER.gap 1e6"),
    ("hosts", "MIXED.progress 1.01 OFFER.gap 1e6"),
    ("pairs", "MIXED.progress 1.01 OFFER.gap 1e6 OWN.gap 1e6"),
    ("tracking", "TRACK.rate 1.1 TRACK.gap 1e6 TRACK.weight 1e6"),
    ("push-sum", "MIXED.rate 1.1 OFFER.gap 1e6"),
    ("elastic", "DRAW.progress 2 FORCE.progress 2 CENTRE.progress 2 DRAW.gap 2 DRAW.seconds 1e7 "
                "DRAW.weight 1e7 CENTRE.weight 1e7"),
    ("elastic", "DRAW.progress nan FORCE.progress nan CENTRE.progress nan"),
    ("elastic", "DRAW.gap 2 DRAW.weight 1e9"),
    ("elastic", "CENTRE.progress 2 CENTRE.weight 1e9"),
]  # fmt: skip


@each(("mode", "changes"), EXCUSES)
def test_what_would_excuse_an_error_is_none(tolerant, mode, changes):
    """In one event, and in all of them."""
    words = changes.split()
    for one in (True, False):
        history = tolerant(mode)
        for what, factor in zip(words[::2], words[1::2], strict=True):
            kind, field = what.split(".")
            for events in events_of(history):
                at = np.flatnonzero(events["kind"] == Kind[kind])
                at = at[len(at) // 2 :][:1] if one else at
                events[field][at] *= events[field].dtype.type(factor)
        assert not check(history).ok, one
