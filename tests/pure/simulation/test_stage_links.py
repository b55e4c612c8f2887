"""Models that are cut across ranks, in virtual time: exact times, and what laws have no job of."""

from __future__ import annotations

import dataclasses
import math

import pytest

from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.config import TrainConfig
from psrt.config.injection import Injection
from psrt.core.errors import CrashError
from psrt.history.check.run import check_run
from psrt.job.recorded import recorded_config
from psrt.job.virtual import simulate
from psrt.pipeline.cost import StageCosts, price
from psrt.pipeline.registry import PIPELINES
from psrt.simulation import SimulationCosts
from psrt.simulation.cost_flags import read_small_products
from support.cases import each

BASE = TrainConfig(
    dataset="synthetic:90x5x3", hidden=(7, 6, 5), activation="tanh", epochs=2, lr=0.1, seed=4,
    optimizer="momentum", batch_size=16, micro_batches=5, parallel="pipeline:2",
)  # fmt: skip
#: Nothing takes any time but computing: a second for the gradient of a stage.
FREE = {"latency": lambda rng: 0.0}


#: Knobs of stages that go on with older weights.
PIPEDREAM = {"pipeline_schedule": "pipedream", "micro_batches": None}


def run(parallel, *, costs=None, numerics=True, servers=0, **more):
    config = dataclasses.replace(BASE, parallel=parallel, servers=servers or None, **more)
    workers = config.axes.cells * (config.axes.data or 1)
    return simulate(config, workers=workers, costs=costs, numerics=numerics)


@pytest.mark.parametrize(
    ("parallel", "knobs"),
    [
        ("tensor:2,pipeline:2", {}),
        ("pipeline:3", {}),
        # Five micro-batches take turns in three places: the rows of one batch and those of the next
        # are near each other, and the last stage still reads while the first one goes on.
        ("pipeline:2", {"pipeline_schedule": "zero-bubble", "stages": "1,3"}),
    ],
    ids=str,
)
def test_slices_of_stages_three_and_uneven_ones_train_as_the_whole(parallel, knobs):
    found, wanted = run(parallel, epochs=1, **knobs), run("pipeline:1", epochs=1)
    if "tensor" in parallel:
        assert found.theta == pytest.approx(wanted.theta, rel=1e-4, abs=1e-5)
    else:
        assert found.theta.tobytes() == wanted.theta.tobytes()
    told = run(parallel, epochs=1, numerics=False, **knobs)
    assert (told.seconds, told.events) == (found.seconds, found.events)
    assert told.summary.cut_bytes_sent == found.summary.cut_bytes_sent > 0


@pytest.mark.parametrize(
    ("copies", "mode"),
    [(1, "serial"), (2, "local-sgd"), (2, "sync")],
)
def test_pipedream_of_one_stage_trains_as_a_model_that_is_not_cut(copies, mode):
    """Bit for bit: batches as a whole, and gradients of the newest parameters."""
    own = {**PIPEDREAM, "servers": int(mode == "sync"), "mode": None if mode == "serial" else mode}
    found = run(f"data:{copies},pipeline:1", **own)
    plain = dataclasses.replace(BASE, parallel=None, micro_batches=None, mode=mode)
    assert found.theta.tobytes() == simulate(plain, workers=copies).theta.tobytes()
    assert found.summary.staleness.max == 0
    told = run(f"data:{copies},pipeline:1", numerics=False, **own)
    assert (told.seconds, told.events) == (found.seconds, found.events)


def one_step(name, stages, micro_batches, *, parts=None, more=None, **costs):
    """Return the time of a step of equal stages, and by stage the share in which each computes."""
    chunks = 2 if ":" in name else 1
    virtual = stages * chunks
    parts = parts or [StageCosts(1, 1, 1)] * virtual
    each = SimulationCosts(
        **{"compute": lambda rank, rng: float(virtual), "stages": parts, **FREE, **costs}
    )
    found = run(
        f"pipeline:{stages}", pipeline_schedule=name, hidden=(4,) * (virtual - 1), epochs=None,
        steps=1, micro_batches=micro_batches, batch_size=6 * micro_batches, numerics=False,
        costs=each, **more or {},
    )  # fmt: skip
    busy = sum(link.busy_s for link in found.world.links.values()) / stages
    return found.seconds, busy


@each("stages", [2, 3])
@each("name", ["sequential", "gpipe", "1f1b", "interleaved:2", "zero-bubble"])
def test_a_step_takes_what_the_schedule_is_priced_at(name, stages):
    row, chunks = PIPELINES[name.partition(":")[0]], 2 if ":" in name else 1
    micro_batches = 1 if name == "sequential" else 6
    seconds, busy = one_step(name, stages, micro_batches)
    part = StageCosts(1 / 3, 1 / 3, 1 / 3)
    wanted = price(
        row.plan(stages, micro_batches, chunks), [part] * (stages * chunks), [6] * micro_batches
    )
    assert seconds == pytest.approx(wanted.seconds, rel=1e-9)
    assert busy == pytest.approx(chunks, rel=1e-9)
    assert 1 - busy / seconds == pytest.approx(wanted.bubble)


def test_gpipe_by_hand():
    """(P − 1)·(f + b) beside a stage's time; and each message that nobody can hide, once."""
    seconds, _ = one_step("gpipe", 3, 4)
    assert seconds == pytest.approx(1 + 2 * 2 / 12)
    late, _ = one_step("gpipe", 3, 4, latency=lambda rng: 0.01)
    assert late == pytest.approx(1 + 2 * 2 / 12 + 4 * 0.01)
    # 6 rows of 4 numbers, and one more number that goes along.
    slow, _ = one_step("gpipe", 3, 4, bandwidth=(4 * 6 * 4 + 8) / 0.01)
    assert slow == pytest.approx(1 + 2 * 2 / 12 + 4 * 0.01)
    # One forward, one back to the input and one to the weights, of each micro-batch.
    beside, _ = one_step("gpipe", 1, 4, pass_s=0.01)
    assert beside == pytest.approx(1 + 3 * 4 * 0.01)


def test_small_products_are_dear():
    dearer = read_small_products("6:2:3:4,24:1:1:1")
    seconds, _ = one_step("gpipe", 1, 4, slowdown=dearer, more={"defer_weights": False})
    assert seconds == pytest.approx((2 + 3 + 4) / 3)
    deferred, _ = one_step("gpipe", 1, 4, slowdown=dearer, more={"defer_weights": True})
    assert deferred == pytest.approx((2 + 3 + 1) / 3)


@pytest.mark.parametrize(
    ("parallel", "knobs"),
    [
        ("pipeline:2,tensor:2", {"pipeline_schedule": "gpipe"}),
        (
            "data:2,pipeline:2",
            {"mode": "allreduce:shard=parameters", "micro_batches": 3, "defer_weights": True},
        ),
        ("data:3,pipeline:3", {**PIPEDREAM, "mode": "ssp", "servers": 3}),
        # The first stage has most of the parameters, and two versions of them.
        ("pipeline:2", {**PIPEDREAM, "stages": "3,1"}),
    ],
    ids=str,
)
def test_a_simulation_is_recorded_checked_and_repeated(parallel, knobs, tmp_path):
    found = run(parallel, **knobs, record=True, out=str(tmp_path / "run"))
    outcome = check_run(tmp_path / "run")
    assert outcome.ok, outcome.lines()
    assert outcome.checked["pipeline"]
    lines = []
    again = simulate(
        recorded_config(tmp_path / "run"), workers=len(found.workers), seed=7, say=lines.append
    )
    assert again.theta.tobytes() == found.theta.tobytes()
    assert any("the same parameters to the bit" in line for line in lines)


def test_a_part_that_crashes_ends_the_job_and_is_named():
    """Servers would do without a worker, but its copy cannot do without its part."""
    config = dataclasses.replace(
        BASE, parallel="data:2,pipeline:2", epochs=None, steps=3, mode="async", servers=2
    )
    costs = SimulationCosts(compute=lambda rank, rng: 1.0, latency=lambda rng: 0.01)
    for when in (0.0, 0.4, 1.3):
        with pytest.raises(CrashError) as caught:
            simulate(config, workers=4, numerics=False, costs=costs, crashes=[(3, when)])
        place = f"worker 3, stage 1 of copy 1 (rank 5) crashed at {when:g} s of virtual time, at c"
        assert str(caught.value).startswith(place)
        assert caught.value.exit_status == 5


#: Seconds of a pass of one of four micro-batches, forward, to the input or to the weights, where
#: two stages are alike and a gradient takes a second.
PASS_S = 1 / 2 / 3 / 4


def four_micro_batches(parallel, *, hosts=(), latency=0.01, rate=1e4, steps=1, **more):
    """Return the time of steps, in each of which a gradient takes a second."""
    config = dataclasses.replace(
        BASE, parallel=parallel, hidden=(8,), epochs=None, steps=steps, micro_batches=4,
        batch_size=24, dataset="synthetic:96x8x8", **{"pipeline_schedule": "gpipe"} | more,
    )  # fmt: skip
    costs = SimulationCosts(
        compute=lambda rank, rng: 1.0, stages=[StageCosts(1, 1, 1)] * config.axes.pipeline,
        latency=lambda rng: latency, bandwidth=rate,
    )  # fmt: skip
    workers = config.axes.cells * (config.axes.data or 1)
    return simulate(config, workers=workers, hosts=hosts, costs=costs, numerics=False).seconds


class TestHosts:
    def test_two_stages_over_a_slow_link(self):
        """The link takes most: no message waits for a pass but the first one in each direction."""
        message = (6 * 8 * 4 + 8) / 1e3
        assert message > 2 * PASS_S
        # Forward in both stages, back to the input in both, and to the last weights.
        wanted = 5 * PASS_S + 2 * (4 * message + 0.01)
        assert four_micro_batches("pipeline:2", hosts=(1, 1), rate=1e3) == pytest.approx(wanted)

    def test_stages_of_one_host_send_in_no_time(self):
        """(P − 1)·(f + b) are idle, and that is all."""
        found = four_micro_batches("pipeline:2", hosts=(2,), rate=1e3)
        assert found == pytest.approx(12 * PASS_S + 2 * PASS_S)

    def test_slices_of_one_host_pay_its_memory_and_of_two_the_link(self):
        """Two layers have a sum forward of each micro-batch: 6 rows of 8 numbers."""
        nbytes, node = 6 * 8 * 4, DEFAULT_COSTS.node
        memory = 2 * node.sync_s + nbytes * node.byte_s
        assert four_micro_batches("tensor:2", hosts=(2,)) == pytest.approx(
            1 / 2 + 4 * memory, abs=1e-12
        )
        # Half of it each way twice: to its owner, and back as a sum; and a barrier before each.
        between = 2 * (0.01 + nbytes / 2 / 1e4)
        assert four_micro_batches("tensor:2", hosts=(1, 1)) == pytest.approx(1 / 2 + 4 * between)

    def test_a_replay_is_on_the_hosts_of_the_run(self, tmp_path):
        """Six ranks on two hosts: slices share a host first, so ranks are not in order."""
        config = dataclasses.replace(
            BASE, parallel="pipeline:3,tensor:2", record=True, out=str(tmp_path / "run")
        )
        lines, again = [], []
        simulate(config, workers=6, hosts=(3, 3), say=lines.append)
        places = [it for it in lines if it.startswith("copy ")]
        assert places == [
            "copy 0: stage 0 on ranks 0, 1 (host 0), stage 1 on ranks 3, 4 (host 1), "
            "stage 2 on ranks 2, 5 (host 0, 1)"
        ]
        simulate(recorded_config(tmp_path / "run"), workers=6, seed=7, say=again.append)
        assert [it for it in again if it.startswith("copy ")] == places


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_a_delay_of_the_last_stage_hides_in_the_bubble_and_of_the_first_it_does_not(name):
    """The last stage waits f + b in every step: for a gradient to come back, and to come again."""
    stages = [StageCosts(1 / 2 / 3, 1 / 2 / 3, 1 / 2 / 3)] * 2
    usual = price(PIPELINES[name].plan(2, 4, 1), stages, [6] * 4).seconds

    def step(worker, delay):
        inject = (Injection(worker, "delay", (delay,)),)
        more = {"latency": 0.0, "rate": math.inf, "pipeline_schedule": name, "inject": inject}
        return four_micro_batches("pipeline:2", steps=4, **more) - four_micro_batches(
            "pipeline:2", steps=3, **more
        )

    hidden = 2 * PASS_S
    assert step(1, 0.5 * hidden) == pytest.approx(usual)
    assert step(1, 3.0 * hidden) == pytest.approx(usual + 2.0 * hidden)
    assert step(0, 0.5 * hidden) == pytest.approx(usual + 0.5 * hidden)


@each("name", ["gpipe", "1f1b", "zero-bubble", "interleaved:2"])
@each("slow", [0, 1])
def test_a_slow_worker_is_a_dear_stage(name, slow):
    """Its passes take three times as long: the price of stages of which one costs as much."""
    row, chunks = PIPELINES[name.partition(":")[0]], 2 if ":" in name else 1
    virtual = 2 * chunks
    stages = [StageCosts(*[(3 if i % 2 == slow else 1) / 3] * 3) for i in range(virtual)]
    wanted = price(row.plan(2, 6, chunks), stages, [6] * 6).seconds
    seconds, _ = one_step(
        name, 2, 6, compute=lambda rank, rng: virtual * (3.0 if rank == slow else 1.0)
    )
    assert seconds == pytest.approx(wanted)
