"""Runs of a module with dropout and running means in virtual time: every mode, to the bit."""

import numpy as np
import pytest

import psrt
from psrt.history.check.run import check_run
from support.torch_models import noisy, plain, problem_of

MODES = {
    "sync": {"mode": "sync"},
    "async": {"mode": "async", "servers": 2},
    "ssp": {"mode": "ssp", "staleness": 1},
    "softsync": {"mode": "softsync"},
    "local-sgd": {"mode": "local-sgd", "local_steps": 3},
    "easgd": {"mode": "easgd", "local_steps": 2},
    "allreduce": {"mode": "allreduce", "bucket_bytes": 100},
    "gossip": {"mode": "gossip"},
}
BASE = {"lr": 0.1, "epochs": 2}


def simulated(flags, **more):
    config = psrt.TrainConfig(**(BASE | flags | more))
    return psrt.simulate(config, problem_of(noisy()), workers=3)


@pytest.mark.parametrize("flags", MODES.values(), ids=MODES)
def test_every_mode_trains_and_is_the_same_again(flags):
    one, again = simulated(flags), simulated(flags)
    assert one.summary.parameters_sha256 == again.summary.parameters_sha256
    assert one.summary.test_loss == again.summary.test_loss
    assert (
        one.summary.test_loss < problem_of(noisy()).evaluate(problem_of(noisy()).initial())["loss"]
    )


@pytest.mark.parametrize("flags", MODES.values(), ids=MODES)
def test_a_recorded_run_is_checked_and_repeated_to_the_bit(tmp_path, flags):
    recorded = simulated(flags, out=str(tmp_path / "run"), record=True)
    assert check_run(tmp_path / "run").ok
    config = psrt.recorded_config(tmp_path / "run")
    again = psrt.simulate(config, problem_of(noisy()), workers=3, seed=5)  # other delays
    np.testing.assert_array_equal(again.theta, recorded.theta)


# The others stop for a checkpoint, each worker at a step of its own, and go on in another order.
@pytest.mark.parametrize("name", ["serial", "sync", "local-sgd", "easgd", "allreduce", "gossip"])
def test_a_run_goes_on_from_a_checkpoint_to_the_bit(tmp_path, name):
    flags = MODES.get(name, {})

    def run(folder, **more):
        asked = {"lr": 0.1, "steps": 8, "out": str(folder)}
        config = psrt.TrainConfig(**(asked | flags | more))
        if name == "serial":
            return psrt.run(config, problem_of(noisy()))
        return psrt.simulate(config, problem_of(noisy()), workers=3)

    whole = run(tmp_path / "whole")
    run(tmp_path / "part", checkpoint_every=5)
    onward = run(tmp_path / "onward", resume=str(tmp_path / "part"))
    assert onward.summary.steps == 8
    np.testing.assert_array_equal(onward.theta, whole.theta)
    assert onward.summary.test_loss == whole.summary.test_loss


def test_low_rank_finds_the_weights():
    config = psrt.TrainConfig(
        mode="allreduce", codec="low-rank", codec_rank=1, codec_everywhere=True, **BASE
    )
    run = psrt.simulate(config, problem_of(plain()), workers=3)
    whole = psrt.simulate(
        psrt.TrainConfig(mode="allreduce", **BASE), problem_of(plain()), workers=3
    )
    assert run.summary.test_loss < 1.1
    assert run.summary.bytes_sent < whole.summary.bytes_sent
