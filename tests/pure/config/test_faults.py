"""What goes wrong: the texts of faults, and what injected delays cost in virtual time."""

from __future__ import annotations

import dataclasses

import pytest

from psrt import SimulationCosts, TrainConfig, simulate
from psrt.config.faults import KINDS, Elapsed, Fault, read_fault
from psrt.core.errors import ConfigError
from support.cases import each

WORKERS, SERVERS, HOSTS = (2, 3, 4), (0, 1), (0, 0, 1, 1, 2)


@each(("text", "fault"), [
    ("crash:worker1@event120", Fault("crash", (("worker", 1),), "event", 120)),
    ("disk:torn@op7", Fault("disk", (), "op", 7, how="torn")),
    ("slow:rank1:50@1s+2s", Fault("slow", (("rank", 1),), "s", 1.0, 2.0, 50.0)),
    ("pause:rank1@event3+2s", Fault("pause", (("rank", 1),), "event", 3, 2.0)),
    ("crash:host0@0s+1e-3s", Fault("crash", (("host", 0),), "s", 0.0, 1e-3)),
    ("crash:worker1,server0@event1+2s", Fault("crash", (("worker", 1), ("server", 0)), "event", 1,
     2.0)),
])  # fmt: skip
def test_a_fault_is_read_and_written(text, fault):
    assert read_fault(text) == fault
    assert read_fault(str(fault)) == fault


@each("text", [
    *("pause:worker1:2@1s", "cut:worker1@op1", "slow:worker1@1s", "slow:worker1:0.5@1s"),
])  # fmt: skip
def test_each_kind_takes_what_it_needs(text):
    kind = text.partition(":")[0]
    with pytest.raises(ConfigError, match=f"^fault must be {kind}:(WHO|HOW)"):
        read_fault(text)


@each("text", [
    *("crash", "crash:worker1", "crash:@1s", "crash:worker1@1", "crash:worker@1s"),
    *("crash:worker1@event0", "crash:worker1@event1.5", "crash:worker1@-1s", "crash:full@1s"),
])  # fmt: skip
def test_what_is_no_fault_is_refused_with_its_form(text):
    line = rf"^fault must be {KINDS['crash'].form}, with a WHO like .*, got '{text}'$"
    with pytest.raises(ConfigError, match=line.replace("+", r"\+").replace("[", r"\[")):
        read_fault(text)


def test_an_unknown_kind_is_told_which_there_are():
    with pytest.raises(ConfigError, match=r"^fault must be one of crash:WHO@WHEN.*, got 'fire:x'$"):
        read_fault("fire:x")


@each(("who", "ranks"), [
    ("worker1", [3]),
    ("host0", [0, 1]),
    ("worker0,host1,rank0", [2, 3, 0]),
])  # fmt: skip
def test_who_is_which_rank(who, ranks):
    assert read_fault(f"crash:{who}@1s").ranks(WORKERS, SERVERS, HOSTS) == ranks


@each(("who", "line"), [
    ("worker3", "worker 3, but the last is 2"),
    ("host3", "host 3, but the last is 2"),
])  # fmt: skip
def test_there_must_be_such_a_rank(who, line):
    with pytest.raises(ConfigError, match=f"names {line}$"):
        read_fault(f"crash:{who}@1s").ranks(WORKERS, SERVERS, HOSTS)


@each(("text", "left"), [
    *(("event101", "event1"), ("event250", "event150"), ("event100", "event1")),
    *(("5.5s", "0.5s"), ("5.0s", "0s"), ("4.0s", "0s")),
])  # fmt: skip
def test_faults_are_counted_from_the_start_of_the_job(text, left):
    fault = read_fault(f"crash:worker0@{text}")
    assert Elapsed().since(fault) == fault
    assert Elapsed(events=100, seconds=5.0).since(fault) == read_fault(f"crash:worker0@{left}")


# Delays.


STEPS = 6
#: A gradient takes a second, messages take no time.
COSTS = SimulationCosts(compute=lambda rank, rng: 1.0, latency=lambda rng: 0.0)
BASE = TrainConfig(
    dataset="synthetic:60x4x2", hidden=(), batch_size=5, steps=STEPS, lr=0.05, seed=4
)


def run(mode, *inject, workers=2, **knobs):
    config = dataclasses.replace(BASE, mode=mode, inject=inject, **knobs)
    return simulate(config, workers=workers, seed=1, costs=COSTS)


@pytest.mark.parametrize(("inject", "seconds"), [
    ((), 6),
    (("*:delay:0.5",), 9),
    (("0:pause:4:10",), 16),
    (("0:slow:3:4",), 10),
    (("0:slow:3:4", "0:delay:0.5", "*:delay:0.25"), 14.5),
])  # fmt: skip
def test_one_worker(inject, seconds):
    assert run("serial", *inject, workers=1).seconds == pytest.approx(seconds)


def test_who_waits_for_nobody_takes_their_own_time():
    result = run("async", "1:slow:3", "0:delay:0.5")
    assert [worker.meter.counts.steps for worker in result.workers] == [STEPS] * 2
    ends = {report.worker: report.seconds for report in result.reports if report.last}
    assert ends == pytest.approx({0: 1.5 * STEPS, 1: 3 * STEPS})


def test_a_backup_steps_over_the_step_of_a_pause_but_not_over_the_pause():
    # Worker 1 is overtaken while it takes its first step, and next takes one after step 1.
    result = run("sync:backup=1", "1:slow:2.5", "1:pause:1:20")
    last = max(report.seconds for report in result.reports if report.worker == 1)
    assert last == pytest.approx(2.5 + 2.5 + 20)
    assert result.workers[1].meter.counts.steps < STEPS


@pytest.mark.parametrize("inject", ["*:jitter:0.5", "*:tail:0.5:1.5"])
def test_the_same_seed_is_the_same_delays_and_each_worker_has_its_own(inject):
    def ends(seed):
        result = run("async", inject, workers=3, seed=seed)
        return sorted(report.seconds for report in result.reports if report.last)

    assert ends(4) == ends(4)
    assert ends(4) != ends(5)
    assert len(set(ends(4))) == 3
