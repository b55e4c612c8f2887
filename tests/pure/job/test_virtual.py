"""A job in virtual time: what it leaves behind, how long it takes, who waits for whom."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

from psrt.collective import ALGORITHMS
from psrt.collective.analysis.machine import MachineCosts, NodeCosts
from psrt.collective.costs import LinkCosts
from psrt.config import TrainConfig, read_toml
from psrt.config.modes import SoftSync
from psrt.core.errors import ConfigError, CrashError, DivergedError, ProtocolError
from psrt.history import Kind, read_history
from psrt.history.check import check
from psrt.job.local import run
from psrt.job.problems import supervised_problem
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.job.virtual import simulate
from psrt.report import Summary, read_metrics
from psrt.runtime.checksum import checksum
from psrt.simulation import SimulationCosts, Simulator
from psrt.simulation.cost_flags import VirtualCosts
from support.cases import each
from support.histories import recorded
from support.recording import Ledger, record

BASE = TrainConfig(
    dataset="synthetic:70x5x3", hidden=(4,), batch_size=6, epochs=3, lr=0.05, log_every=3, seed=2,
    record=True, out="run",
)  # fmt: skip
MODES = {
    "ssp": {"mode": "ssp:staleness=1", "servers": 3},
    "allreduce": {"mode": "allreduce", "allreduce": "auto"},
}
FILES = {"config.toml", "metrics.jsonl", "simulation.json", "summary.json"}


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Of all that is written only the time of day is another one each time.
    monkeypatch.setattr("psrt.report.environment._now", lambda: "now")


@pytest.fixture
def kept(tmp_path):
    """Run a job and return its files by name, and what was said."""

    def keep(config, scenario):
        said = []
        config = dataclasses.replace(config, overwrite=True)
        run_in_virtual_time(config, scenario, say=said.append)
        root = tmp_path / "run"
        files = {path for path in root.rglob("*") if path.is_file()}
        return {str(path.relative_to(root)): path.read_bytes() for path in files}, said

    return keep


def config(name="ssp", **more):
    return dataclasses.replace(BASE, **MODES[name], **more)


@pytest.mark.parametrize(("name", "numerics"), [("ssp", True), ("allreduce", False)])
def test_a_mode_leaves_the_files_of_a_run(kept, tmp_path, name, numerics):
    scenario = Scenario(3, numerics=numerics)
    files, said = kept(config(name), scenario)
    history = {"history/header.json", "history/events.npy"}
    assert set(files) == FILES | history | ({"model.safetensors"} if numerics else set())
    summary = Summary.from_json(files["summary.json"].decode())
    assert (summary.workers, summary.mpi, summary.epochs, summary.samples) == (3, "", 3, 3 * 70)
    assert (summary.parameters, bool(summary.parameters_sha256)) == (39, numerics)
    assert (summary.test_accuracy is not None) == numerics
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [record["step"] for record in records] == [3, 4, 6, 8, 9, 12]
    assert all((record["loss"] is not None) == numerics for record in records)
    assert numerics or summary.staleness.gap.count == 0
    settings = read_toml(files["config.toml"].decode(), source="run")
    assert TrainConfig(**settings).scheme.name == summary.mode
    simulation = json.loads(files["simulation.json"])
    assert simulation["seconds"] > summary.seconds - 1e-6 > 0  # which is in whole microseconds
    assert (simulation["workers"], simulation["numerics"]) == (3, numerics)
    assert len(simulation["servers"]) == summary.servers
    assert any("loss" in line for line in said) == numerics
    found = read_history("run")
    assert (found.header.simulated, found.header.numerics) == (True, numerics)
    assert kept(config(name), scenario)[0] == files
    others, _ = kept(config(name, seed=3), scenario)
    assert others["history/events.npy"] != files["history/events.npy"]
    assert others["metrics.jsonl"] != files["metrics.jsonl"]


def test_who_crashed_is_told(kept):
    scenario = Scenario(4, numerics=False, crashes=((1, 0.0045), (3, 1e9)))
    files, said = kept(config(), scenario)
    simulation, summary = (json.loads(files[f]) for f in ("simulation.json", "summary.json"))
    assert simulation["crashed"] == [1]  # the other one is done by then
    assert 0 < summary["waiting"][1]["share"] < 1  # of the time that it lived
    assert simulation["crash"] == [[1, 0.0045], [3, 1e9]]
    assert (summary["samples"] < 3 * 70, summary["epochs"]) == (True, 3)
    assert json.loads(files["metrics.jsonl"].splitlines()[-1])["step"] == 9
    assert "crashed" in said[-1]
    assert "worker 1 at 0.0045 s" in said[-1]
    clocks = [events["clock"].max() for events in read_history("run").workers]
    assert clocks[1] < 8 <= min(clocks[0], clocks[2], clocks[3])


def test_a_run_that_fails_leaves_no_summary(tmp_path):
    with pytest.raises(DivergedError):
        run_in_virtual_time(config(lr=1e6, epochs=30), Scenario(3))
    assert not (tmp_path / "run" / "summary.json").exists()
    again, scenario = config("allreduce", overwrite=True), Scenario(3, crashes=((2, 0.003),))
    with pytest.raises(CrashError, match=r"^worker 2 \(rank 2\) crashed at 0.003 s of virtual"):
        run_in_virtual_time(again, scenario)
    assert not (tmp_path / "run" / "summary.json").exists()
    with pytest.raises(ConfigError, match="unfinished run: 1 of 1 file without an end"):
        read_history("run")


def test_a_real_run_in_the_same_folder_replaces_all_of_it(tmp_path, kept):
    kept(config(), Scenario(3))
    with pytest.raises(ConfigError, match=r"holds a run already .*simulation\.json"):
        run(dataclasses.replace(BASE, mode="serial"))
    run(dataclasses.replace(BASE, mode="serial", overwrite=True, record=False))
    assert {path.name for path in (tmp_path / "run").iterdir()} == (
        FILES - {"simulation.json"} | {"model.safetensors"}
    )


def test_what_cannot_be_touches_nothing(tmp_path):
    for scenario, message in (
        (Scenario(0), "a job needs at least 1 worker, got 0"),
        (Scenario(3, VirtualCosts("run:gone")), "no run at gone"),
        (Scenario(3, crashes=((3, 1.0),)), "crash names worker 3, which does not exist; the last"),
        (Scenario(3, crashes=((1, -1.0),)), "cannot crash at -1.0 s"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_in_virtual_time(config(), scenario)
    assert list(tmp_path.iterdir()) == []


class TestTime:
    """Virtual time is what arithmetic says."""

    def speed(self, workers, servers=1, mode="async", **costs):
        asked = TrainConfig(mode=mode, servers=servers, steps=20, batch_size=10)
        scenario = Scenario(workers, VirtualCosts(**costs), numerics=False, parameters=1_000_000)
        return run_in_virtual_time(asked, scenario).summary

    def test_free_messages_leave_computing_alone(self):
        costs = {"compute": "constant:0.01", "link": "0:inf", "server_apply": "inf"}
        found = self.speed(7, **costs)
        assert found.seconds == pytest.approx(20 * 0.01)
        assert found.samples_per_second == pytest.approx(7 * 10 / 0.01)

    def test_one_server_saturates_and_two_take_twice_as_much(self):
        """W pushes of 4 MB through a link of 1 GB/s: 250 a second, however many workers push."""
        costs = {"compute": "constant:0.001", "link": "0:1e9", "server_apply": "inf"}
        for servers in (1, 2):
            few, many = (self.speed(w, servers, **costs).samples_per_second for w in (8, 16))
            assert few == pytest.approx(servers * 250 * 10, rel=0.1)
            assert many == pytest.approx(few, rel=0.1)

    def test_updates_take_their_time(self):
        costs = {"compute": "constant:0.001", "link": "0:inf", "server_apply": "1e9"}
        assert self.speed(16, **costs).samples_per_second == pytest.approx(2500, rel=0.1)

    def test_gradients_saved_for_an_update_are_paid_for_once_and_their_sum_with_it(self):
        """Of 4 gradients of 4 ms, 3 are added to a sum; an update reads that and the last one."""
        costs = {"compute": "constant:0.001", "link": "0:inf", "server_apply": "1e9"}
        found = self.speed(16, mode="softsync:k=4", **costs)
        assert found.samples_per_second == pytest.approx(40 / (5 * 0.004), rel=0.1)

    def test_a_server_s_load_is_told(self, kept):
        asked = dataclasses.replace(config(), servers=2)
        files, said = kept(asked, Scenario(3, VirtualCosts("constant:0.0001", "0:1e6", "1e6")))
        for load in json.loads(files["simulation.json"])["servers"]:
            assert 0.5 < load["link_in"] <= 1
            assert 0.5 < load["link_out"] <= 1
            assert 0.3 < load["apply"] <= 1
        assert "servers busy" in said[-1]

    def test_a_worker_that_is_slow_is(self):
        asked = TrainConfig(mode="async", steps=10, inject=["1:slow:3"])
        costs = VirtualCosts("constant:0.01", "0:inf", "inf")
        found = run_in_virtual_time(asked, Scenario(3, costs, numerics=False, parameters=9))
        assert found.summary.seconds == pytest.approx(0.3)


def test_steps_without_numerics_need_no_data():
    asked = TrainConfig(mode="sync", steps=5, dataset="gone.npz", batch_size=7)
    found = run_in_virtual_time(asked, Scenario(3, numerics=False, parameters=11)).summary
    assert (found.steps, found.samples, found.parameters) == (5, 3 * 5 * 7, 11)
    with pytest.raises(ConfigError, match=r"gone\.npz"):  # whose shape tells the model's size
        run_in_virtual_time(asked, Scenario(3, numerics=False))


def test_the_summary_is_the_last_file_to_appear(monkeypatch):
    appeared = []
    replace = os.replace

    def noted(source, target):
        appeared.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    run_in_virtual_time(config(record=False), Scenario(workers=2))
    assert appeared == ["model.safetensors", "simulation.json", "summary.json"]


def plain(**more):
    """Return a config that leaves nothing behind."""
    return dataclasses.replace(BASE, record=False, out=None, **more)


# --- who is caught, and who waits for whom --------------------------------------------------------


def test_what_auto_picks_by_may_be_given(tmp_path):
    """Where bytes cost nothing few messages are best, where messages cost nothing few bytes are."""
    picked = []
    for alpha, beta in ((1.0, 0.0), (0.0, 1.0)):
        messages = LinkCosts(alpha=alpha, beta=beta, gamma=0.0)
        path = tmp_path / "costs.json"
        path.write_text(MachineCosts(messages, messages, NodeCosts(0, 0), 1).to_json())
        asked = plain(mode="allreduce", machine_costs=str(path))
        picked.append(simulate(asked, workers=8).workers[0].strategy.plan.algorithm)
    rounds = [len(list(ALGORITHMS[name](0, 8, 1000))) for name in picked]
    assert rounds[0] < rounds[1]


@each("knobs", [{"mode": "allreduce:bucket-bytes=1"}, {"mode": "local-sgd:local-steps=2"}])
def test_a_rank_that_goes_astray_is_caught(knobs):
    """A bit of worker 1's parameters flips right before it is looked at."""

    class LeakyWorld(Simulator):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            port = self.ports[1]
            differing = port.differing

            async def after_a_flip(number):
                port.theta.view(np.int32)[3] ^= 1 << 20
                return await differing(checksum(port.theta))

            port.differing = after_a_flip

    asked = plain(check_every=3, **knobs)
    with pytest.raises(ProtocolError, match=r"of worker 1 \(rank 1\) differ .* after update 3,"):
        simulate(asked, workers=3, world=LeakyWorld)
    simulate(dataclasses.replace(asked, check_every=0), workers=3, world=LeakyWorld)


@each("k", [1, 3, 8])
def test_softsync_staleness_is_what_the_others_apply(k):
    """Between a worker's read and its push come those of the others, a quorum an update.

    Zhang et al. 2016 say that is about k, and hardly ever above 2k: so it is where k divides W.
    """
    workers, quorum = 8, 8 // k
    books = Ledger([60] * workers, 1)
    asked = TrainConfig(mode=SoftSync(k=k), servers=1, lr=1.0, epochs=1)
    [server] = record(asked, books, workers=workers, seed=k, costs="all alike").run.servers
    histogram = np.array(server.shard.counts.stats.histogram)
    mean = (histogram * np.arange(histogram.size)).sum() / histogram.sum()
    assert mean == pytest.approx((workers - 1) / quorum, rel=0.02)
    assert histogram[2 * (workers // quorum) + 1 :].sum() <= 0.01 * histogram.sum()


# --- pushes that set out while the gradient is being computed ------------------------------------

PARTS = {"hidden": (32, 32), "batch_size": 4, "steps": 5, "lr": 0.05}


@each("mode", ["sync", "async"])
def test_a_push_goes_on_while_the_gradient_is_computed(mode):
    """So the simulation shows what it gains: both directions of the link are in use, too."""
    # A gradient takes 1 s, its bytes as long as that.
    costs = SimulationCosts(compute=lambda *_: 1.0, latency=lambda _: 1e-3, bandwidth=4 * 3500.0)
    whole, parts = (
        simulate(TrainConfig(**PARTS, mode=mode, shards_per_server=each), workers=1, costs=costs)
        for each in (1, 4)
    )
    assert parts.seconds < 0.8 * whole.seconds
    assert parts.theta.tobytes() == whole.theta.tobytes()


@each("mode", ["sync", "async", "ssp", "softsync"])
def test_the_last_layers_are_pushed_first(mode):
    asked = TrainConfig(**PARTS, mode=mode, shards_per_server=4, servers=1)
    history, _ = recorded(asked, supervised_problem(asked, workers=3), workers=3)
    assert check(history).ok
    for events in history.workers:
        pushes = events[events["kind"] == Kind.PUSH].reshape(-1, 4)
        assert (pushes[:, 0]["shard"] == 3).all()
        assert (pushes[:, 0]["time"] < pushes[:, -1]["time"]).all()
