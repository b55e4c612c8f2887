"""`psrt simulate --like` takes every sound run: whatever its mode, its knobs, and its disorder.

The runs are made in virtual time, with messages that overtake one another on different links, and
their histories are those that the same run over MPI would have.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import psrt
from psrt import SimulationCosts, TrainConfig
from psrt.cli.simulate import parse_simulate
from psrt.history import Kind, read_history
from psrt.job.scenario import run_in_virtual_time
from psrt.simulation.cost_flags import VirtualCosts
from support.cases import pairs

pytestmark = pytest.mark.slow

#: Flags of every row of the mode table, and of what changes who sends what when.
SERVED = {
    "sync": "--mode sync",
    "backup 1": "--mode sync --backup 1",
    "backup 2": "--mode sync --backup 2",
    "async": "--mode async",
    "async, drops": "--mode async --staleness-rate drop --staleness-limit 2",
    "ssp 0": "--mode ssp --staleness 0",
    "ssp 2": "--mode ssp --staleness 2",
    "softsync": "--mode softsync --softsync 2",
    "local": "--mode local-sgd --local-steps 4",
    "post-local": "--mode local-sgd --local-steps 4 --post-local-epoch 1",
    "outer": "--mode local-sgd --local-steps 4 --outer-lr 0.7",
}
REDUCED = {
    "all-reduce": "--mode allreduce",
    "no overlap": "--mode allreduce --no-overlap",
    "buckets": "--mode allreduce --bucket-bytes 1024",
    "local": "--mode local-sgd --local-steps 4",
    "post-local": "--mode local-sgd --local-steps 4 --post-local-epoch 1",
    "outer": "--mode local-sgd --local-steps 4 --outer-lr 0.7",
}
#: Their sums go on while workers take steps.
STREAMED = {
    "fragments": "--mode local-sgd --local-steps 4 --fragments 2",
    "late fragments": "--mode local-sgd --local-steps 4 --fragments 2 --sync-delay 3",
    "post-local, late": "--mode local-sgd --local-steps 4 --sync-delay 3 --post-local-epoch 1",
    "eager": "--mode local-sgd --local-steps 4 --fragments 2 --eager",
}
#: Flags of the mode, and of who sums.
RUNS = [
    *pairs(SERVED.values(), [f"--servers {servers}" for servers in (1, 2, 3)], one_in=3),
    *pairs(
        REDUCED.values(), [f"--allreduce {it}" for it in ("ring", "tree", "node", "auto")], one_in=4
    ),
    *((mode, "--allreduce node") for mode in STREAMED.values()),
    ("--mode serial", "--workers 1"),
    ("--mode async", "--workers 1"),
]
#: Lengths: steps, or epochs whose last batches are smaller, and after which some have no data.
LENGTHS = ("--steps 60", "--epochs 4 --dataset synthetic:650x4x3")


@dataclass(frozen=True)
class Erratic(VirtualCosts):
    """Messages that take very different times, on any link: as between busy processes."""

    #: Of a message.
    mean_s: float = 0.0

    def at(self, role_map, *, say=None):
        return SimulationCosts(
            compute=lambda rank, rng: 1e-3 * rng.lognormal(0.0, 0.3),
            latency=lambda rng: self.mean_s * rng.exponential(),
        )


def record(folder, flags, *, mean_s, workers=5, crashes=()):
    """Make a run with a history in a folder; return its summary."""
    words = ["--workers", str(workers), *flags.split(), "--record", "--out", str(folder)]
    config, scenario = parse_simulate([*words, "--timing-only"])
    scenario = replace(scenario, costs=Erratic(mean_s=mean_s), crashes=crashes)
    return run_in_virtual_time(config, scenario).summary


def like(folder):
    return run_in_virtual_time(*parse_simulate(["--like", str(folder)])).summary


@pytest.mark.parametrize(("mode", "way"), RUNS)
@pytest.mark.one_in(4)
def test_every_sound_run_can_be_imitated(tmp_path, mode, way):
    for number, length in enumerate(LENGTHS):
        if "--post-local-epoch" in mode and "--steps" in length:
            continue
        # Messages that take much less time than a gradient, and longer ones, which come in wild
        # disorder. How fast such a run is depends on the links, and it says nothing of those.
        for mean_s, near in ((1e-5, 0.03), (3e-3, 0.5)):
            folder = tmp_path / f"{number} {mean_s}"
            measured = record(folder, f"{mode} {way} {length}", mean_s=mean_s)
            predicted = like(folder)
            assert predicted.workers == measured.workers
            if "--backup" not in mode:  # there it depends on who is overtaken
                assert predicted.samples == measured.samples
            assert predicted.samples_per_second == pytest.approx(
                measured.samples_per_second, rel=near
            )


@pytest.mark.parametrize("algorithm", ["node", "ring"])
@pytest.mark.parametrize("name", ["local", "outer", "fragments", "late fragments", "eager"])
def test_what_follows_the_last_step_is_part_of_a_run(tmp_path, algorithm, name):
    """Sums of what is left, and one that says that nobody is training: of few steps, a third."""
    flags = {**REDUCED, **STREAMED}[name]
    for steps in (6, 12):
        run = tmp_path / str(steps)
        words = ["--allreduce", algorithm, "--workers", "3", "--steps", str(steps), "--timing-only"]
        costs = ["--compute", "lognormal:0.001:0.2", "--link", "3e-4:1e8"]
        more = ["--record", "--out", str(run)]
        measured = run_in_virtual_time(*parse_simulate([*flags.split(), *words, *costs, *more]))
        # Eager sums go on while steps do: what is seen of when they end is when they are taken.
        near = 0.2 if (name, algorithm) == ("eager", "ring") else 0.03
        assert like(run).seconds == pytest.approx(measured.summary.seconds, rel=near)


@pytest.mark.parametrize("codec", ["int8", "low-rank"])
@pytest.mark.parametrize("late", ["--fragments 2 --sync-delay 1", "--eager"])
def test_what_a_codec_sums_begins_when_its_divisor_is_known(tmp_path, codec, late):
    """That is a step after it was sent: such a step is no part of the sum's time."""
    words = f"--mode local-sgd --local-steps 4 {late} --codec {codec} --workers 3 --steps 60"
    costs = "--compute lognormal:0.001:0.2 --link 1e-4:1e8 --allreduce auto --timing-only"
    flags = [*words.split(), *costs.split(), "--record", "--out", str(tmp_path)]
    measured = run_in_virtual_time(*parse_simulate(flags)).summary
    assert like(tmp_path).seconds == pytest.approx(measured.seconds, rel=0.1)


@pytest.mark.parametrize("name", [name for name in SERVED if not name.startswith("post")])
@pytest.mark.one_in(3)
def test_runs_in_which_a_worker_died_can_be_imitated(tmp_path, name):
    for servers in (1, 2, 3):
        flags = f"{SERVED[name]} --servers {servers} --steps 60"
        record(tmp_path / str(servers), flags, mean_s=1e-3, crashes=((1, 0.03),))
        assert like(tmp_path / str(servers)).workers == 5


def test_a_worker_may_die_before_all_shards_have_its_gradient(tmp_path):
    died_amid = 0
    for seed in range(4):
        flags = f"--mode async --servers 2 --shards-per-server 3 --steps 60 --seed {seed}"
        crashes = tuple((worker, 0.01 * worker + 0.0123) for worker in range(1, 5))
        folder = tmp_path / str(seed)
        record(folder, flags, mean_s=1e-3, crashes=crashes)
        for events in read_history(folder).workers:
            died_amid += bool((events["kind"] == Kind.PUSH).sum() % 6)
        assert like(folder).workers == 5
    assert died_amid


def test_shards_that_backups_leave_behind_are_asked_again(tmp_path):
    """Such a push is received, but no step: it is in no worker's events."""
    flags = "--mode sync --backup 2 --servers 2 --steps 60"
    record(tmp_path / "run", flags, mean_s=3e-3, workers=4)
    history = read_history(tmp_path / "run")
    received = sum(int((events["kind"] == Kind.RECEIVE).sum()) for events in history.shards)
    pushed = sum(int((events["kind"] == Kind.PUSH).sum()) for events in history.workers)
    assert received > pushed
    assert np.isfinite(like(tmp_path / "run").samples_per_second)


class Own:
    """A problem that cuts its own batches: 10 of the same size for each worker."""

    def __init__(self, size):
        self.size = size

    def initial(self):
        return np.ones(6, np.float32)

    def batches(self, worker, workers, epoch):
        return [np.zeros((self.size, 2))] * 10

    def loss_and_grad(self, theta, batch, out):
        out[:] = theta
        return float(theta @ theta)

    def evaluate(self, theta):
        return {"loss": float(theta @ theta)}


@pytest.mark.parametrize("size", [5, 32, 50])
@pytest.mark.parametrize("length", [{"epochs": 2}, {"steps": 15}], ids=str)
def test_batches_are_as_large_as_those_of_the_run_whatever_its_batch_size(tmp_path, size, length):
    folder = tmp_path / "run"
    config = TrainConfig(mode="async", servers=1, record=True, out=str(folder), **length)
    measured = psrt.simulate(config, Own(size), workers=3).summary
    predicted = like(folder)
    assert (predicted.steps, predicted.samples) == (measured.steps, measured.samples)


@pytest.mark.parametrize("codec", ["low-rank", "demo"])
@pytest.mark.parametrize("mode", ["sync", "allreduce"])
@pytest.mark.parametrize("length", [{"epochs": 2}, {"steps": 15}], ids=str)
def test_matrices_are_those_of_the_run(tmp_path, mode, codec, length):
    problem, folder = Own(8), tmp_path / "run"
    problem.initial = lambda: np.ones(500, np.float32)
    problem.matrices = lambda: [(3, 20, 20)]
    config = TrainConfig(mode=mode, codec=codec, lr=0.01, record=True, out=str(folder), **length)
    measured = psrt.simulate(config, problem, workers=3).summary
    predicted = like(folder)
    assert 0 < measured.frame_bytes < measured.framed_bytes
    for figure in ("frame_bytes", "framed_bytes"):
        assert getattr(predicted, figure) == getattr(measured, figure)
