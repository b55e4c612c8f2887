"""Runs of every mode in virtual time keep their contract, and the checker says so."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from psrt.history.check import RULES, check
from psrt.report import strict_json
from support.cases import some
from support.histories import MODES, config_of, recorded, shards_of
from support.recording import Ledger

EVEN, UNEVEN = (5, 5, 5, 5), (4, 2, 7, 1)
GAPS = [(0, 2), (0, 3), (1, 0), (2, 4), (3, 0)]  # batches without samples


def told(outcome):
    return "\n".join(outcome.lines())


def run(config, steps, *, empty=(), weights=None, **more):
    books = Ledger(steps, shards_of(config), empty=empty, weights=weights)
    return recorded(config, books, workers=len(steps), **more)


@pytest.mark.one_in(3)
def test_every_mode_keeps_its_contract(mode, costs):
    for servers in MODES[mode][2]:
        for seed, (steps, empty) in enumerate(((EVEN, ()), (UNEVEN, GAPS))):
            steps = steps[2:3] if mode == "serial" else steps
            empty = [gap for gap in empty if gap[0] < len(steps)]
            history, _ = run(config_of(mode, servers), steps, empty=empty, costs=costs, seed=seed)
            outcome = check(history)
            assert outcome.ok, told(outcome)
            assert outcome.events == history.events


@pytest.mark.parametrize("seed", some(range(80), one_in=2))
def test_any_run_keeps_its_contract(seed):
    """Any mode, any number of workers, steps and servers, batches of any size, and deaths."""
    rng = random.Random(seed)
    name = rng.choice([*MODES])
    knobs, servers = MODES[name][1], rng.choice(MODES[name][2])
    fewest = max(1 + knobs.get("backup", 0), knobs.get("softsync", 1))
    workers = 1 if name == "serial" else rng.randint(fewest, 5)
    steps = [rng.randint(1, 7) for _ in range(workers)]
    batches = [(worker, clock) for worker in range(workers) for clock in range(steps[worker])]
    crashes = []
    if (servers or MODES[name][0] == "gossip") and workers > 1 and rng.random() < 0.5:
        dead = rng.sample(range(workers), rng.randint(1, workers - 1))
        crashes = [(worker, rng.random() * 0.01) for worker in dead]
    history, found = run(
        config_of(name, servers, batch_size=4),
        steps,
        seed=seed,
        empty=[batch for batch in batches if rng.random() < 0.1],
        weights={batch: rng.randint(1, 4) for batch in batches},
        costs=rng.choice(["exponential", "slow links", "now and then stuck"]),
        crashes=crashes,
    )
    beside = {}
    if crashes:  # what a summary and the metrics of others say has tests of its own
        metrics = json.loads(strict_json.dumps([dataclasses.asdict(it) for it in found.records]))
        beside = {"summary": json.loads(found.summary.to_json()), "metrics": metrics}
    outcome = check(history, **beside)
    assert outcome.ok, told(outcome)
    figures = ("samples", "steps", "epochs", "dropped", "torn", "skew_max")
    for figure in figures if beside.get("metrics") else ():
        summary = beside["summary"]
        forged = summary | {figure: summary[figure] + 1}
        assert not check(history, metrics=metrics, summary=forged).ok, figure


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("gossips", [False, True])
def test_without_the_events_of_a_worker_that_fell_silent(seed, gossips):
    """As in real time, where its own file is cut off anywhere."""
    rng = random.Random(seed)
    name, servers = rng.choice(["async", "ssp 1", "softsync 1, mean"]), rng.choice([1, 2])
    if gossips:
        name, servers = rng.choice([it for it in MODES if MODES[it][0] == "gossip"]), 0
    silent = sorted(rng.sample(range(gossips, 4), rng.randint(1, 3)))  # rank 0 cannot be missed
    crashes = [(worker, rng.random() * 0.01) for worker in silent]
    history, found = run(config_of(name, servers), EVEN, seed=seed, crashes=crashes)
    workers = tuple(it[:0] if i in silent else it for i, it in enumerate(history.workers))
    header = dataclasses.replace(history.header, simulated=False, crashes=tuple(silent))
    cut_off = dataclasses.replace(history, header=header, workers=workers)
    outcome = check(cut_off)
    assert outcome.ok, told(outcome)
    names = ", ".join(map(str, silent))
    head = outcome.lines()[0]
    assert head.endswith(f", without those of worker {names}, which went missing")
    summary = json.loads(found.summary.to_json())
    assert "missing" in check(cut_off, summary=summary).violation.text
    header = dataclasses.replace(header, crashes=())
    outcome = check(dataclasses.replace(cut_off, header=header))
    assert outcome.violation.rule == "membership"


def test_what_was_checked_is_told():
    history, _ = run(config_of("ssp 1", 3), EVEN)
    outcome = check(history)
    first, *rules, last = outcome.lines()
    # By worker a LEAVE; by worker and shard READ at first, and a LEFT; by step and shard
    # PUSH, RECEIVE, APPLY, REPLY and READ; by shard a FINAL.
    assert outcome.events == 4 + 4 * 3 * 2 + 40 * 3 * 5 + 3
    assert first.startswith(f"ssp (staleness 1), 4 workers and 3 shards: {outcome.events} events")
    assert last == "ok: nothing contradicts the contract of its mode"
    for name in ("progress", "bounded-staleness read", "read-your-writes", "per-worker FIFO"):
        assert outcome.checked[name] == 40 * 3  # steps, on every shard
        assert any(line.split("  ")[1].strip() == name for line in rules)
    assert set(outcome.checked) <= set(RULES)
    assert outcome.document()["ok"] is True


def test_the_time_is_that_of_the_events():
    history, found = run(config_of("async", 1), EVEN)
    assert check(history).seconds == pytest.approx(found.seconds, abs=1e-9)
