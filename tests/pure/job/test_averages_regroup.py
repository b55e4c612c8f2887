"""Runs whose workers train alone, and average at servers, which go on with other workers."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.checkpoint import Disk, Manifest, read_part
from psrt.config import TrainConfig
from psrt.errors import PsrtError
from psrt.job.resuming import resumed_config
from psrt.job.virtual import simulate
from psrt.runtime.strategies.base import LocalSteps
from psrt.runtime.worker import Worker
from support.cases import each

KNOBS = {
    "dataset": "synthetic:72x12x4", "hidden": (16, 8), "epochs": 2, "lr": 0.05, "servers": 2,
    "keep": 1000, "checkpoint_every": 1,
}  # fmt: skip
MODES = {
    "local": {"mode": "local-sgd", "local_steps": 2, "outer_lr": 0.7},
    "elastic": {"mode": "easgd", "local_steps": 2},
    "elastic, asynchronous": {"mode": "easgd", "local_steps": 2, "asynchronous": True},
}
GROUPS = [(3, 2), (2, 4)]


def trees_of(folder):
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
    return {it.name: read_part(Disk(), folder, it) for it in manifest.parts}


@each(("before", "after"), GROUPS)
def test_an_average_after_each_step_is_that_of_gradients(tmp_path, before, after):
    """With plain steps of as many samples it does not matter who takes them."""
    knobs = KNOBS | {"mode": "local-sgd", "local_steps": 1, "optimizer": "sgd"}
    out = tmp_path / f"{before} {after}"
    config = TrainConfig(**knobs, batch_size=12 // before, out=str(out / "run"))
    whole = simulate(config, workers=before)
    again = resumed_config(
        str(out / "run/checkpoints/00000004"), out=str(out / "on"), batch_size=12 // after
    )
    run = simulate(again, workers=after)
    assert (run.summary.steps, run.summary.samples) == (12, whole.summary.samples)
    np.testing.assert_allclose(run.theta, whole.theta, rtol=2e-4, atol=2e-5)


@each(("mode", "before", "after"), [(mode, *group) for mode in MODES for group in GROUPS])
def test_who_stays_has_what_it_had_and_who_joins_begins_at_the_centre(
    tmp_path, mode, before, after
):
    out = tmp_path / f"{mode} {before} {after}"
    config = TrainConfig(
        **KNOBS, **MODES[mode], optimizer="momentum", batch_size=12 // before, out=str(out / "run")
    )
    simulate(config, workers=before)
    where = sorted((out / "run/checkpoints").iterdir())[1]
    found, restore = {}, Worker.restore

    def watched(mp):
        def restoring(self, tree):
            found[self.number] = tree
            restore(self, tree)

        mp.setattr(Worker, "restore", restoring)

    with pytest.MonkeyPatch.context() as mp:
        watched(mp)
        again = resumed_config(str(where), out=str(out / "on"), batch_size=12 // after)
        run = simulate(again, workers=after)
    assert run.summary.epochs == 2
    trees = trees_of(where)
    centre = np.concatenate([trees[f"shard-{i}-of-2"]["theta"] for i in range(2)])
    for worker, tree in found.items():
        momentum = tree["strategy"]["updater"]["optimizer"]["state"]["velocity"]
        own = trees.get(f"worker-{worker}-of-{before}")
        if own is None:
            assert not momentum.any()
            if "averager" in tree["strategy"] and "theta" in tree["strategy"]["averager"]:
                assert (tree["strategy"]["averager"]["theta"] == centre).all()
            continue
        theirs = own["role"]["strategy"]
        assert (momentum == theirs["updater"]["optimizer"]["state"]["velocity"]).all()
        assert momentum.any()
        if "theta" in theirs["averager"]:
            assert (tree["strategy"]["averager"]["theta"] == theirs["averager"]["theta"]).all()


@pytest.mark.parametrize("mode", MODES)
def test_the_oracle_finds_what_is_not_a_workers_own(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(LocalSteps, "of_worker", ())
    test = test_who_stays_has_what_it_had_and_who_joins_begins_at_the_centre.__wrapped__
    with pytest.raises((AssertionError, PsrtError)):
        test(tmp_path, mode, 2, 4)
