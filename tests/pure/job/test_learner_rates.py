"""The closed form of learners against whole jobs in virtual time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.history import EventLog, Kind
from psrt.job.learner_rates import LearnerJob, LearnerRates, learner_rates
from psrt.job.virtual import simulate
from psrt.simulation import SimulationCosts
from psrt.transport.port import RoleMap
from support.cases import each

STEPS, PARAMETERS = 8, 10_000
#: A mean step of the fastest learner, in seconds; by law, its standard deviation over its mean.
STEP_S = 1e-3
LAWS = {"constant": 0.0, "lognormal": 0.1, "exponential": 1.0}


class Case(NamedTuple):
    """A job of learners whose speeds are evenly spread."""

    learners: int
    quorum: int
    #: How many times as long the slowest computes.
    spread: float
    law: str = "lognormal"
    latency_s: float = 1e-4
    #: Bytes a second.
    bandwidth: float = math.inf
    servers: int = 1
    grace_s: float = 0.0
    rounds: int = 0

    def speeds(self) -> np.ndarray:
        """Return a step of each learner over the fastest's, in no order."""
        even = np.linspace(1, self.spread, self.learners)
        return np.random.default_rng(0).permutation(even)

    def predicted(self) -> LearnerRates:
        """Return what the closed form says."""
        return learner_rates(
            LearnerJob(
                STEPS * STEP_S * self.speeds(),
                self.quorum,
                variation=LAWS[self.law] / math.sqrt(STEPS),
                is_lognormal=self.law == "lognormal",
                grace_s=self.grace_s,
                nbytes=4.0 * PARAMETERS,
                servers=self.servers,
                latency_s=self.latency_s,
                bandwidth=self.bandwidth,
            )
        )

    def simulated(self, folder: Path) -> LearnerRates:
        """Return what happens in virtual time, from a quarter of it until the first has ended."""
        speeds, law, variance = self.speeds(), self.law, math.log1p(LAWS[self.law] ** 2)

        def costs(role_map: RoleMap) -> SimulationCosts:
            number = {rank: it for it, rank in enumerate(role_map.workers)}

            def compute(rank: int, rng: np.random.Generator) -> float:
                mean = STEP_S * float(speeds[number[rank]])
                if law == "exponential":
                    return mean * rng.standard_exponential()
                deviate = math.sqrt(variance) * rng.standard_normal() if variance else 0.0
                return mean * math.exp(deviate - variance / 2)

            return SimulationCosts(
                compute=compute, latency=lambda _: self.latency_s, bandwidth=self.bandwidth
            )

        rounds = self.rounds or max(40, 2000 // self.learners)
        knobs = f"local-steps={STEPS},quorum={self.quorum}"
        knobs += f",grace={self.grace_s}" if self.grace_s else ""
        config = TrainConfig(
            mode=f"local-sgd:{knobs}", servers=self.servers, steps=STEPS * rounds,
            shards_per_server=1,
        )  # fmt: skip
        path = folder / "all.npy"
        with EventLog(path) as log:
            simulate(
                config, workers=self.learners, costs=costs, numerics=False, parameters=PARAMETERS,
                log=log,
            )  # fmt: skip
        events = np.load(path)
        path.unlink()
        end = events["time"][events["kind"] == Kind.LEAVE].min()
        merged = events[(events["kind"] == Kind.APPLY) & (events["shard"] == 0)]
        merged = merged[(merged["time"] > end / 4) & (merged["time"] <= end)]
        versions, times = merged["version"], merged["time"]
        merged = merged[versions > versions.min()]
        merges, seconds = np.ptp(versions), np.ptp(times)
        each_ = np.bincount(merged["worker"], minlength=self.learners) / seconds
        members = len(merged) / merges
        computing = float(each_ @ speeds) * STEPS * STEP_S / self.learners
        return LearnerRates(
            float(merges / seconds),
            members,
            float(merged["tau"].mean()),
            float(each_.mean()) * 4 * PARAMETERS,
            1 - computing,
        )

    def check(self, folder: Path, *, within: float = 0.05) -> None:
        """Assert that both agree, idle shares in points."""
        found, predicted = self.simulated(folder), self.predicted()
        for name in ("merges", "members", "nbytes"):
            expected = pytest.approx(getattr(found, name), rel=within)
            assert getattr(predicted, name) == expected, f"{name} of {self}"
        assert predicted.staleness == pytest.approx(found.staleness, rel=within, abs=0.05), self
        assert predicted.idle == pytest.approx(found.idle, abs=within), self


def quorums(learners: int) -> list[int]:
    """Return one, a quarter and half of the learners."""
    return [1, learners // 4, learners // 2]


@each("spread", [1, 2, 4])
@each("learners", [16, 64])
def test_it_says_what_happens_in_virtual_time(learners, spread, tmp_path):
    for quorum in quorums(learners):
        Case(learners, quorum, spread).check(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("spread", [1, 2, 4])
@pytest.mark.parametrize("learners", [8, 16, 64, 256])
def test_it_does_for_every_law_and_link(learners, spread, law, tmp_path):
    # With 8 learners one more or less in a merge is a lot.
    within = 0.07 if learners == 8 else 0.06 if law == "constant" else 0.05
    fast = 10 * 4 * PARAMETERS * learners / (STEPS * STEP_S)
    for quorum in quorums(learners):
        for latency_s, bandwidth, servers in (
            (0.0, math.inf, 1), (1e-3, math.inf, 1), (1e-3, math.inf, 3), (1e-4, fast, 1),
            (1e-4, fast / 2, 2),
        ):  # fmt: skip
            case = Case(learners, quorum, spread, law, latency_s, bandwidth, servers)
            case.check(tmp_path, within=within)


@pytest.mark.exhaustive
@pytest.mark.parametrize("spread", [1, 2, 4])
def test_it_does_for_2048_learners(spread, tmp_path):
    for quorum in quorums(2048):
        Case(2048, quorum, spread, rounds=12).check(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("quorum", [16, 32])
@pytest.mark.parametrize("grace_s", [5e-4, 2e-3, 8e-3])
@pytest.mark.parametrize("spread", [2, 4])
def test_windows_are_within_15_percent(spread, grace_s, quorum, tmp_path):
    Case(64, quorum, spread, grace_s=grace_s).check(tmp_path, within=0.15)


def test_answers_that_are_on_their_way_hold_the_buffers_of_their_versions(tmp_path):
    Case(64, 1, 2, latency_s=5e-3, rounds=24).check(tmp_path)


def test_nearly_all_wait_for_the_slowest(tmp_path):
    Case(16, 15, 2).check(tmp_path)


def test_learners_of_one_speed_make_whole_merges_in_a_round():
    for learners in range(1, 20):
        for quorum in range(1, learners + 1):
            found = learner_rates(LearnerJob([0.5] * learners, quorum))
            assert found.merges == pytest.approx(2 * (learners // quorum))
            assert found.idle == pytest.approx(learners % quorum / learners, abs=1e-6)
            assert found.staleness == pytest.approx(learners / quorum - 1)


def test_a_quorum_of_one_waits_for_nobody_and_one_of_all_for_the_slowest():
    rounds = [1.0, 2.0, 3.0, 8.0]
    found = learner_rates(LearnerJob(rounds, 1, nbytes=10.0))
    assert found.merges == pytest.approx(sum(1 / it for it in rounds))
    assert found.idle == pytest.approx(0.0, abs=1e-6)
    assert found.nbytes == pytest.approx(10 * found.merges / 4)
    found = learner_rates(LearnerJob(rounds, 4, nbytes=10.0))
    assert found.merges == pytest.approx(1 / 8)
    assert found.idle == pytest.approx(1 - 14 / 32)
    assert found.staleness == 0


def test_an_exchange_of_all_takes_the_time_of_the_servers_link():
    # 10 bytes at 5 a second: 2 s there, 2 s back for each of three, latency twice.
    found = learner_rates(LearnerJob([1.0] * 3, 3, nbytes=10.0, bandwidth=5.0, latency_s=0.25))
    assert 1 / found.merges == pytest.approx(1 + 2 * 0.25 + 2 + 3 * 2)


def test_a_link_that_is_full_says_how_many_merges_there_are():
    found = learner_rates(LearnerJob([1e-6] * 50, 1, nbytes=10.0, bandwidth=5.0))
    assert found.merges == pytest.approx(1 / 2)
    assert found.idle == pytest.approx(1.0, abs=1e-4)


def test_a_window_takes_in_all_who_come_within_it():
    found = learner_rates(LearnerJob([1.0, 1.1, 1.2, 1.3], 2, grace_s=0.25))
    assert found.members == 4
    assert found.merges == pytest.approx(1 / 1.3)
