"""Workers that die while others go on: their samples are dealt out again, by all alike."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import chain

import numpy as np
import pytest

from psrt.config import TrainConfig, resolve
from psrt.data import deal
from psrt.errors import ConfigError
from psrt.faults import Member
from psrt.history.check.run import check_run
from psrt.history.header import sealed
from psrt.job.result import summarize
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.job.virtual import VirtualLauncher
from psrt.report.metrics_aggregator import Record
from psrt.runtime.problem import Supervised
from psrt.simulation.cost_flags import VirtualCosts
from psrt.stats import Stats
from support.cases import pairs

#: 18 samples of four workers in steps of 4: two steps of an epoch, three of those that are left.
KNOBS = {
    "dataset": "synthetic:18x6x3",
    "hidden": (4,),
    "batch_size": 3,
    "epochs": 5,
    "survive": True,
}
WORKERS, EPOCHS = 4, 5
MODES = {
    "sync": {"mode": "sync", "servers": 2},
    "backups": {"mode": "sync", "backup": 1},
    "async": {"mode": "async", "servers": 2},
    "ssp": {"mode": "ssp", "staleness": 1, "servers": 1, "shards_per_server": 2},
    "softsync": {"mode": "softsync", "softsync": 2},
    "local": {"mode": "local-sgd", "local_steps": 3, "servers": 1},
    "elastic": {"mode": "easgd", "local_steps": 2},
    "elastic, asynchronous": {"mode": "easgd", "local_steps": 2, "asynchronous": True},
    "codec": {"mode": "sync", "codec": "top-k", "codec_everywhere": True},
    "dealt": {"mode": "sync", "partition": "by-label:2"},
}  # fmt: skip
#: By how far the dying ones have come: with two seconds a step on average some 20 in all.
DEATHS = [((1, 0.0),), *(((1, at),) for at in range(1, 24, 2)), ((0, 3.0), (2, 9.0), (3, 9.5))]


class Dealt:
    """What each epoch was asked for, and which samples of it were trained on."""

    def __init__(self, monkeypatch):
        #: Epoch → (place, members) of each who asked; the samples of each place.
        self.asked, self.samples = defaultdict(list), defaultdict(dict)
        batches = Supervised.batches

        def noted(problem, place, workers, epoch, samples=None):
            found = batches(problem, place, workers, epoch, samples)
            self.asked[epoch].append((place, workers))
            taken = [
                samples[i] if samples is not None else found._indices(i) for i in range(len(found))
            ]
            self.samples[epoch][place] = np.concatenate(taken).tolist()
            return found

        monkeypatch.setattr(Supervised, "batches", noted)


def run(folder, mode, deaths, *, seed=0):
    knobs = KNOBS | MODES[mode] | {"out": str(folder), "record": True, "seed": seed}
    config = TrainConfig(**knobs, inject=("*:jitter:0.5", "0:delay:0.3"))
    costs = VirtualCosts(compute="constant:1.0")
    run_in_virtual_time(config, Scenario(WORKERS, costs, crashes=deaths))
    return folder


def left_out(folder):
    return json.loads((folder / "history" / "header.json").read_text())["left_out"]


@pytest.mark.parametrize(("mode", "deaths"), pairs(MODES, DEATHS, one_in=6), ids=str)
def test_every_sample_of_an_epoch_is_dealt_once_to_those_who_are_left(
    tmp_path, monkeypatch, mode, deaths
):
    dealt = Dealt(monkeypatch)
    folder = run(tmp_path / "run", mode, deaths)
    outcome = check_run(folder)
    assert outcome.ok, str(outcome)

    changes = dict(left_out(folder))
    gone: list[int] = []
    for epoch in range(EPOCHS):
        gone = changes.get(epoch, gone)
        members = WORKERS - len(gone)
        asked = dealt.asked[epoch]
        assert {among for _, among in asked} == {members}, "all of them know of the same"
        assert len({place for place, _ in asked}) == len(asked)
        # Who is not there any more has died since: it was there when the first one asked.
        assert members - len(asked) <= len(deaths) - len(gone)
        samples = sorted(chain.from_iterable(dealt.samples[epoch].values()))
        assert len(set(samples)) == len(samples)
        if len(asked) == members:
            assert samples == list(range(18))
    if mode not in ("async", "softsync", "elastic, asynchronous"):  # where others may be far ahead
        assert {worker for worker, at in deaths if at < 10} <= set(gone)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_that_a_recorded_run_has_no_more_checkpoints_is_said_once(tmp_path, mode):
    knobs = KNOBS | MODES[mode] | {"out": str(tmp_path / "run"), "checkpoint_every": 2}
    knobs |= {"record": True}
    said: list[str] = []
    costs = VirtualCosts(compute="constant:1.0")
    run_in_virtual_time(
        TrainConfig(**knobs), Scenario(WORKERS, costs, crashes=((1, 5.5),)), say=said.append
    )
    lines = [line for line in said if "checkpoint" in line]
    assert lines == [
        "shard-0-of-2 goes on without a worker, and --record has no one history with another in "
        "its place: no more checkpoints"
    ]


def test_the_checker_holds_who_is_left_out_against_the_steps(tmp_path):
    folder = run(tmp_path / "run", "sync", ((1, 5.0),))
    path = folder / "history" / "header.json"
    header = json.loads(path.read_text())
    ((epoch, gone),) = header["left_out"]
    assert gone == [1]
    assert check_run(folder).ok
    for changed in ([], [[epoch + 1, gone]], [[epoch - 1, gone]]):
        path.write_text(sealed(header | {"left_out": changed}))
        assert "batches" in str(check_run(folder)), changed
    for wrong in ([[epoch, [2]]], [[epoch, [1]], [epoch, [1]]], [[epoch, [0, 1, 2, 3]]]):
        path.write_text(sealed(header | {"left_out": wrong}))
        with pytest.raises(ConfigError, match="leaves workers out that did not die"):
            check_run(folder)
    for wrong in ([[epoch]], [epoch, gone], [["1", gone]], [[epoch, [-1]]], 3):
        path.write_text(sealed(header | {"left_out": wrong}))
        with pytest.raises(ConfigError):
            check_run(folder)


def test_workers_that_decide_for_themselves_are_found(tmp_path, monkeypatch):
    async def members(self, epoch):
        return [it for it in range(WORKERS) if it not in self._missed]

    def decided(self, epoch, *, each):
        self.left_out.setdefault(epoch, frozenset(self._missed))
        return each

    async def noted(self, epoch):
        return decided(self, epoch, each=await members(self, epoch))

    monkeypatch.setattr(VirtualLauncher, "members", noted)
    found = [check_run(run(tmp_path / str(at), "async", ((1, at / 2),))).ok for at in range(1, 24)]
    assert not all(found)


@pytest.mark.parametrize("gone", [(), (0,), (2,), (1, 3), (0, 1, 3), (0, 1, 2)], ids=str)
def test_what_the_dead_were_dealt_goes_to_the_others_evenly(gone):
    labels = np.arange(101) % 7
    whole = deal(labels, workers=4, rule="dirichlet", number=0.3, batch_size=8, seed=3)
    members = [it for it in range(4) if it not in gone]
    found = whole.among(members)
    assert np.sort(np.concatenate(found.samples)).tolist() == list(range(101))
    assert all(len(found.samples[it]) == 0 for it in gone)
    assert all(set(whole.samples[it]) <= set(found.samples[it]) for it in members)
    more = [len(found.samples[it]) - len(whole.samples[it]) for it in members]
    assert max(more) - min(more) <= len(gone)
    for epoch in (0, 5):
        steps = [found.batches(worker, epoch) for worker in members]
        assert {len(it) for it in steps} == {found.steps}
        assert max(len(it) for its in steps for it in its) <= 8


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        (
            {"mode": "allreduce"},
            "--survive has no effect without --servers; it belongs to",
        ),
        (
            {"mode": "gossip"},
            "--survive has no effect without --servers; it belongs to",
        ),
        (
            {"mode": "local-sgd"},
            "--survive has no effect without --servers; it belongs to",
        ),
        ({"mode": "sync", "parallel": "pipeline:2"}, "the parts of a copy need each other"),
        ({"mode": "sync", "replay": "run"}, "--survive cannot be combined with --replay run"),
    ],
    ids=str,
)
def test_what_it_has_nothing_to_do_with(knobs, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig(survive=True, **knobs)


def test_who_is_left_may_have_done_less_than_one_that_died():
    config = resolve(TrainConfig(mode="async", epochs=3), ranks=4)
    waited = dict.fromkeys(("workers", "server", "messages", "reduce"), 0.0)
    none = "samples_per_second", "staleness_mean", "staleness_max", "test_loss", "accuracy"
    last = Record.read(
        {"epoch": 2, "step": 108, "loss": 1.0, "samples": 681, "seconds": 0.48, "epoch_end": False}
        | {"bytes_sent": 9, "bytes_received": 9}
        | dict.fromkeys(none)
    )
    found = summarize(
        config,
        [Stats(worker=0, steps=60, epochs=1, seconds=0.37, waited=waited), Stats(worker=1)],
        theta=np.zeros(2, np.float32),
        figures={},
        records=[last],
        plan=None,
        shards=None,
        parameters=2,
        hosts=1,
        library="",
        missing={1: Member(2, "worker 1", "node02", 9410)},
    )
    assert (found.steps, found.epochs, found.samples) == (108, 2, 681)
    assert (found.seconds, found.samples_per_second) == (0.48, 681 / 0.48)


@pytest.mark.parametrize("mode", ["sync", "ssp"])
def test_a_run_that_resumes_without_the_dead_counts_what_they_had_done(tmp_path, mode):
    knobs = KNOBS | MODES[mode] | {"out": str(tmp_path / "run"), "checkpoint_every": 2, "keep": 50}
    costs = VirtualCosts(compute="constant:1.0")
    run_in_virtual_time(TrainConfig(**knobs), Scenario(WORKERS, costs, crashes=((1, 5.5),)))
    found = run_in_virtual_time(
        TrainConfig(**knobs | {"out": str(tmp_path / "again"), "resume": str(tmp_path / "run")}),
        Scenario(WORKERS, costs),
    )
    assert found.summary.samples == found.records[-1].samples
