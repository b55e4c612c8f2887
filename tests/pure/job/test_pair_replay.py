"""Gossip without rounds repeated in one process: other delays, the same pairs at the same steps."""

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError, ReplayError
from psrt.history import Kind, read_history
from psrt.history.pair_replay import PairScript, PairSequencer
from psrt.job.recorded import recorded_config
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.runtime.strategies.pair_gossip import FreeTurns, PairGossip
from psrt.simulation.cost_flags import VirtualCosts

BASE = {
    "mode": "gossip", "asynchronous": True, "dataset": "synthetic:400x6x3", "hidden": (5,),
    "batch_size": 4, "lr": 0.05,
}  # fmt: skip
#: Laws of computing: nothing that both have in common tells who is first.
THEN = VirtualCosts(compute="lognormal:0.001:0.8")
NOW = VirtualCosts(compute="exponential:0.002", link="0.01:1e5")
RUNS = {
    "ring": (4, {"topology": "ring", "steps": 15}),
    "star": (3, {"topology": "star", "steps": 15, "optimizer": "nesterov"}),
    "hypercube": (8, {"topology": "hypercube", "steps": 9, "clip_norm": 0.1}),
    "a pair": (2, {"topology": "full", "steps": 15}),
    "alone": (1, {"steps": 3}),
    "with leaves": (6, {"topology": "ring", "partition": "dirichlet:0.3", "epochs": 1}),
}


def recorded(out, name, **more):
    workers, knobs = RUNS[name]
    config = TrainConfig(**(BASE | knobs | more), out=str(out), record=True)
    return run_in_virtual_time(config, Scenario(workers=workers, costs=THEN))


def replayed(folder, **more):
    workers = len(read_history(folder).header.workers)
    config = recorded_config(folder, **more)
    return run_in_virtual_time(config, Scenario(workers=workers, costs=NOW))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", RUNS)
def test_the_same_bits_and_the_same_pairs(tmp_path, name, seed):
    run = recorded(tmp_path / "then", name, seed=seed)
    again = replayed(tmp_path / "then", out=str(tmp_path / "now"), record=True)
    np.testing.assert_array_equal(again.theta, run.theta)
    then, now = read_history(tmp_path / "then"), read_history(tmp_path / "now")
    for before, after in zip(then.workers, now.workers, strict=True):
        for field in ("kind", "worker", "shard", "clock", "version", "tau", "rate", "gap", "flag"):
            np.testing.assert_array_equal(before[field], after[field], err_msg=field)
    assert run.summary.staleness == again.summary.staleness


def test_a_void_offer_shows_where_it_was_learnt(tmp_path):
    """In some run a neighbour leaves while an offer is open, and the next one goes to another."""
    for seed in range(20):
        recorded(tmp_path / str(seed), "with leaves", seed=seed)
        events = read_history(tmp_path / str(seed)).workers
        scripts = [PairScript.of(*it) for it in enumerate(events)]
        if any((script.rows[:, 4] == 2).any() for script in scripts):
            replayed(tmp_path / str(seed))
            return
    pytest.fail("no offer was void")


def test_what_is_taken_at_another_step_is_found_out(tmp_path, monkeypatch):
    recorded(tmp_path / "then", "ring")
    poll = PairSequencer.poll

    async def late(self, clock):
        """Takes what comes a step later."""
        return await poll(self, clock - 1) if clock % 5 else None

    monkeypatch.setattr(PairSequencer, "poll", late)
    with pytest.raises(ReplayError, match=r"the replay diverges at event \d+ of worker \d"):
        replayed(tmp_path / "then")


def test_without_its_script_it_comes_to_other_parameters(tmp_path, monkeypatch):
    recorded(tmp_path / "then", "ring")
    made = PairGossip.__init__

    def free(self, port, updater, pairs, *, turns=None, **more):
        made(self, port, updater, pairs, turns=FreeTurns(port, pairs), **more)

    monkeypatch.setattr(PairGossip, "__init__", free)
    monkeypatch.setattr(PairSequencer, "finish", lambda self: None)
    with pytest.raises(ReplayError, match="came to other parameters"):
        replayed(tmp_path / "then")


def test_what_a_run_offers_is_said_before_its_replay(tmp_path):
    recorded(tmp_path / "then", "ring")
    lines = []
    config = recorded_config(tmp_path / "then")
    run_in_virtual_time(config, Scenario(workers=4, costs=NOW), say=lines.append)
    events = read_history(tmp_path / "then").workers
    count = sum(
        int(((it["kind"] == Kind.OFFER) & (it["flag"] == 0)).sum())
        + int((it["kind"] == Kind.TAKE).sum())
        for it in events
    )
    assert any(f"{count} offers and averages in their recorded order" in line for line in lines)
    assert any("the same parameters to the bit" in line for line in lines)


def test_a_run_in_which_one_died_is_refused(tmp_path):
    config = TrainConfig(**BASE, topology="ring", steps=9, out=str(tmp_path / "run"), record=True)
    run_in_virtual_time(config, Scenario(workers=4, costs=THEN, crashes=((1, 0.003),)))
    with pytest.raises(ConfigError, match="worker 1 died in it, which a replay cannot repeat"):
        replayed(tmp_path / "run")
