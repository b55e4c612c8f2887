"""Costs of virtual time: what flags say is what is drawn, and what a run took is drawn again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.simulation.cost_flags import VirtualCosts, read_link, read_rate
from psrt.simulation.distributions import FORMS, read_compute, resampled
from psrt.transport import RoleMap
from support.cases import each


def draws(text, count=20_000, worker=0, seed=0):
    rng = np.random.default_rng(seed)
    draw = read_compute(text)
    return np.array([draw(worker, rng) for _ in range(count)])


def test_laws_have_the_moments_that_their_numbers_say():
    assert {*draws("constant:0.25", 10)} == {0.25}
    normal = draws("normal:2:0.5")
    assert (normal.mean(), normal.std()) == pytest.approx((2, 0.5), rel=0.03)
    lognormal = draws("lognormal:2:0.5")
    assert np.median(lognormal) == pytest.approx(2, rel=0.03)
    assert np.log(lognormal).std() == pytest.approx(0.5, rel=0.03)
    assert draws("exponential:2").mean() == pytest.approx(2, rel=0.03)
    pareto = draws("pareto:2:3")
    assert pareto.min() == pytest.approx(2, rel=0.01)
    assert np.median(pareto) == pytest.approx(2 * 2 ** (1 / 3), rel=0.03)


def test_nothing_takes_less_than_no_time():
    cut = draws("normal:1:5")
    assert cut.min() == 0.0
    assert 0.3 < (cut == 0.0).mean() < 0.5


def test_the_heaviest_tails_are_finite():
    for text in ("pareto:1e6:0.1", "lognormal:1e6:20"):
        assert np.isfinite(draws(text)).all()


@each("form", FORMS[:-1])
def test_every_law_takes_its_numbers_and_no_others(form):
    kind, *names = form.split(":")
    numbers = ["1"] * len(names)
    assert draws(":".join([kind, *numbers]), 3).min() >= 0
    for wrong in (numbers[:-1], [*numbers, "1"], ["x", *numbers[1:]], ["nan", *numbers[1:]]):
        with pytest.raises(ConfigError, match=rf"^compute .*{form}"):
            read_compute(":".join([kind, *wrong]))


@each("text", ["", "constant", "run", "CONSTANT:1", "gauss:1:1", "constant:1_0", "constant:٣"])
def test_no_law(text):
    with pytest.raises(ConfigError, match=r"^compute "):
        VirtualCosts(compute=text)


@each("bytes_per_s", ["inf", "1", "2.5e9"])
def test_bandwidths(bytes_per_s):
    assert read_link(f"0:{bytes_per_s}") == (0.0, float(bytes_per_s))
    assert read_rate("server-apply", bytes_per_s) == float(bytes_per_s)


@each("bytes_per_s", ["0", "-1", "nan", "0.5", "", "fast", "-inf"])
def test_no_bandwidths(bytes_per_s):
    with pytest.raises(ConfigError, match=r"^link must be .*BYTES_PER_S from 1 to inf, "):
        VirtualCosts(link=f"0:{bytes_per_s}")
    with pytest.raises(ConfigError, match=r"^server-apply must be BYTES_PER_S, BYTES_PER_S "):
        VirtualCosts(server_apply=bytes_per_s)


def test_costs_of_a_wiring():
    rng = np.random.default_rng(0)
    role_map = RoleMap(9, workers=(1, 2), servers=(0,))
    costs = VirtualCosts("constant:0.5", "0.25:8", "4").at(role_map)
    assert (costs.compute(2, rng), costs.latency(rng), costs.bandwidth) == (0.5, 0.25, 8.0)
    assert costs.apply is not None
    assert costs.apply(0, 12, rng) == 3.0
    free = VirtualCosts(link="0:inf", server_apply="inf").at(role_map)
    assert (free.bandwidth, free.apply) == (math.inf, None)


@pytest.fixture(scope="module", params=[{"mode": "ssp", "servers": 2}, {"mode": "allreduce"}])
def recorded(request, tmp_path_factory):
    """Return the folder of a run of 3 workers, of which worker 1 is delayed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = TrainConfig(
        **request.param, steps=4, batch_size=3, inject=["1:delay:0.5"], out=str(folder),
        record=True, dataset="synthetic:60x3x2", hidden=(),
    )  # fmt: skip
    run_in_virtual_time(config, Scenario(3, VirtualCosts("exponential:0.01")))
    return folder


def test_worker_i_draws_from_what_worker_i_of_a_run_took(recorded):
    pools = [set(draws(f"run:{recorded}", 200, worker)) for worker in range(6)]
    for worker, pool in enumerate(pools):
        assert len(pool) == 4
        assert (min(pool) >= 0.5) == (worker % 3 == 1)
        assert pool == pools[worker % 3]


def test_a_simulation_with_the_times_of_a_run(recorded):
    config = TrainConfig(mode="async", steps=3)
    scenario = Scenario(4, VirtualCosts(f"run:{recorded}"), numerics=False, parameters=5)
    assert 1.5 < run_in_virtual_time(config, scenario).summary.seconds < 2


class Empty:
    """A problem whose only batch has no samples."""

    def initial(self):
        return np.zeros(3, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.empty(0)]

    def loss_and_grad(self, theta, batch, out):
        raise AssertionError("there is nothing to compute")

    def evaluate(self, theta):
        return {}


def test_a_run_in_which_nothing_was_computed(tmp_path):
    config = TrainConfig(mode="async", epochs=1, out=str(tmp_path / "run"), record=True)
    run_in_virtual_time(config, Scenario(1), Empty())
    with pytest.raises(ConfigError, match="no gradient was computed in this run"):
        resampled(str(tmp_path / "run"))


def test_a_run_without_a_history(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no history; a run keeps one with --record$"):
        resampled(str(tmp_path))
