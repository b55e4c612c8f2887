"""What is predicted: costs that come back out of times made of them, and the time of a step."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from cuts.layer_times import PassCosts, of_stages
from cuts.prediction import Predictor

from psrt.bench.fit import Readings, as_text, doubt, fit_machine, solve
from psrt.cli.simulate import parse_simulate
from psrt.collective.analysis.choose import predict
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts, NodeCosts
from psrt.collective.costs import LinkCosts
from psrt.config.modes import AllReduce
from psrt.job.scenario import run_in_virtual_time
from psrt.pipeline.cost import StageCosts, price
from psrt.pipeline.registry import PIPELINES

# --- costs out of times -------------------------------------------------------------------------

NBYTES = [64, 1024, 65536, 1 << 20, 1 << 23]
TRUE = MachineCosts(
    inside=LinkCosts(4e-6, 3e-10, 2e-10),
    between=LinkCosts(30e-6, 9e-10, 2e-10),
    node=NodeCosts(sync_s=3e-6, byte_s=2e-10),
    cores=2,
    measured=(("mpi", (2,), 1024, 5e-6), ("mpi", (2,), 1 << 20, 1e-3)),
)


def readings_of(costs, **changed):
    exact = {
        "inside": {m: costs.inside.alpha + m * costs.inside.beta for m in NBYTES},
        "between": {m: costs.between.alpha + m * costs.between.beta for m in NBYTES},
        "fold": {m: m * costs.inside.gamma for m in NBYTES},
        "node": {(p, n): predict("node", [p], n, 4, costs) for p in (2, 4) for n in NBYTES},
        "library": {(p, n): s for _, (p,), n, s in costs.measured},
    }
    return Readings(**(exact | changed))


def close(a, b):
    return a == pytest.approx(b, rel=1e-6)


def test_exact_times_give_the_costs_back():
    fitted = fit_machine(readings_of(TRUE), cores=2)
    got = fitted.costs
    for name in ("inside", "between"):
        for constant in ("alpha", "beta", "gamma"):
            assert close(
                getattr(getattr(got, name), constant), getattr(getattr(TRUE, name), constant)
            )
    assert close(got.node.sync_s, 3e-6)
    assert close(got.node.byte_s, 2e-10)
    assert (got.cores, got.measured) == (2, TRUE.measured)
    assert all(fit.worst < 1e-6 for fit in fitted.fits.values())
    assert MachineCosts.from_json(got.to_json()) == got


def test_small_times_count_as_much_as_large_ones():
    rng = np.random.default_rng(0)
    sizes = np.repeat(NBYTES, 20)
    times = (5e-6 + sizes * 4e-10) * rng.uniform(0.9, 1.1, sizes.size)
    fit = solve([(1.0, m) for m in sizes], times.tolist())
    # Plain least squares would leave α to the noise of the largest times, some 300 µs.
    assert fit.values[0] == pytest.approx(5e-6, rel=0.1)
    assert fit.values[1] == pytest.approx(4e-10, rel=0.1)
    assert 0.03 < fit.typical < 0.08
    assert fit.typical < fit.worst < 0.2
    assert fit.readings == 100


def test_no_constant_is_negative():
    # Falling times: the best line has a negative slope.
    fit = solve([(1, 1), (1, 2), (1, 3)], [3.0, 2.0, 1.0])
    assert fit.values[1] == 0.0
    # Below the line through the origin: its intercept would be negative.
    fit = solve([(1, 100), (1, 1000)], [0.5e-6, 1e-5])
    assert fit.values[0] == 0.0
    assert fit.values[1] > 0


def test_what_was_not_measured_is_the_guess_and_is_said_to_be():
    fitted = fit_machine(readings_of(TRUE, inside={}, node={}, library={}), cores=7)
    default = DEFAULT_COSTS
    assert fitted.costs.inside == LinkCosts(default.inside.alpha, default.inside.beta, 2e-10)
    assert fitted.costs.node == default.node
    assert fitted.costs.cores == 7
    assert set(fitted.fits) == {"between", "fold"}
    assert as_text(fitted).count("not measured") == 4
    assert fit_machine(Readings(), cores=2).costs == default


def test_costs_of_a_busy_machine_are_doubted_and_those_of_another_are_not():
    assert doubt(fit_machine(readings_of(TRUE), cores=2)) is None
    readings = readings_of(TRUE)
    late = {m: s + 1.6e-3 for m, s in readings.inside.items()}  # turns of the scheduler
    found = doubt(fit_machine(replace(readings, inside=late), cores=2))
    assert found.startswith("α inside a host, per step: 1,60")
    # Some of the turns only: no line is near.
    for name in ("inside", "between", "fold", "node"):
        each = getattr(readings, name)
        odd = {key: s * (100.0 if k % 2 else 1.0) for k, (key, s) in enumerate(each.items())}
        assert doubt(fit_machine(replace(readings, **{name: odd}), cores=2)) is not None, name


# --- the time of a step -------------------------------------------------------------------------

SIZES, BATCH, M = (6, 8, 7, 9, 5), 48, 4
#: By layer, seconds of all rows: no two alike, and small products that are dearer by pass.
WHOLE = [StageCosts(0.6, 0.1, 0.9), StageCosts(1, 1.5, 1.2), StageCosts(2, 2.1, 1.8),
         StageCosts(0.5, 0.7, 0.4)]  # fmt: skip
DEARER = (1.5, 1.25, 2.0)
SMALL = [StageCosts(*(f * s for f, s in zip(DEARER, it[:3], strict=True))) for it in WHOLE]
N = sum(a * b + b for a, b in pairwise(SIZES))
ALL = sum(it.seconds for it in WHOLE)


def predictor(*, update_rate=math.inf, copy_rate=math.inf, at_once=1.0):
    layers = PassCosts(WHOLE, SMALL, BATCH // M, BATCH)
    return Predictor(SIZES, BATCH, layers, at_once, update_rate, copy_rate)


def seconds(*args, steps=1, rates=None, **more):
    return predictor(**rates or {}).step(*args, steps=steps, **more).seconds


CUTS = [("sequential", 1), ("gpipe", M), ("1f1b", M), ("zero-bubble", M), ("interleaved:2", M)]


@pytest.mark.parametrize(
    ("name", "parts", "deferred"),
    [(*it, False) for it in CUTS] + [(*it, True) for it in CUTS if it[1] > 1],
)
def test_where_messages_are_free_a_step_takes_the_price_of_its_schedule(name, parts, deferred):
    row, chunks = PIPELINES[name.partition(":")[0]], 2 if ":" in name else 1
    counts = [1, 1, 1, 1] if chunks == 2 else [3, 1]
    knobs = {"parallel": "pipeline:2", "pipeline_schedule": name, "micro_batches": parts}
    knobs |= {"stages": ",".join(map(str, counts))}
    knobs |= {"defer_weights": True} if deferred else {}
    costs = PassCosts(WHOLE, SMALL, BATCH // M, BATCH)
    rows = [BATCH // parts] * parts
    due = price(
        row.plan(2, parts, chunks, deferred=deferred), of_stages(WHOLE, counts), rows,
        slowdown=costs.slowdown,
    )  # fmt: skip
    assert seconds(knobs, counts) == pytest.approx(due.seconds, rel=1e-4)


def test_batches_that_follow_one_another_take_the_price_of_a_run():
    knobs = {"parallel": "pipeline:2", "pipeline_schedule": "pipedream", "stages": "3,1"}
    steps = 5
    plan = PIPELINES["pipedream"].plan(2, steps)
    # ``price`` takes the costs of all rows of a run.
    costs = [StageCosts(*(steps * s for s in it)) for it in of_stages(WHOLE, [3, 1])]
    due = price(plan, costs, [BATCH] * steps).seconds / steps
    assert seconds(knobs, [3, 1], steps=steps) == pytest.approx(due, rel=1e-4)


def test_one_process_and_slices_by_hand():
    slices = {"parallel": "tensor:2", "micro_batches": 1}
    assert seconds(slices) == pytest.approx(ALL / 2, rel=1e-4)
    rates = {"update_rate": 4 * N / 0.5}
    for knobs in ({"mode": "serial"}, {"parallel": "pipeline:1", "micro_batches": 1}):
        assert seconds(knobs, rates=rates, steps=3) == pytest.approx(ALL + 0.5, rel=1e-4)
    parts = {"parallel": "pipeline:1", "micro_batches": M}
    small = sum(it.seconds for it in SMALL)
    # 0.01 for each of three passes.
    found = seconds(parts, pass_s=0.01, rates=rates)
    assert found == pytest.approx(small + 0.5 + 3 * M * 0.01, rel=1e-3)
    deferred = sum(s.forward + s.backward_input + w.backward_weight
                   for s, w in zip(SMALL, WHOLE, strict=True))  # fmt: skip
    assert seconds(parts | {"defer_weights": True}) == pytest.approx(deferred, rel=1e-4)


def test_a_stage_updates_its_own_parameters():
    knobs = {"parallel": "pipeline:2", "pipeline_schedule": "gpipe", "micro_batches": M}
    counts, rates = [2, 2], {"update_rate": 4.0}  # a second an element
    first = sum(a * b + b for a, b in pairwise(SIZES[:3]))
    one, two = (seconds(knobs, counts, steps=k, rates=rates) * k for k in (1, 2))
    # The next step begins when the last update of the first stage, or of the last one, is over.
    assert two - one >= max(first, N - first)
    assert one > max(first, N - first)


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
@pytest.mark.parametrize("shard", [None, "optimizer"])
def test_copies_by_hand(shard, bucket_bytes):
    """Half of the rows, one element in two updated and summed, however many sums there are."""
    mode = AllReduce(bucket_bytes=bucket_bytes, shard=shard)
    knobs = {"parallel": "data:2", "micro_batches": 1, "mode": mode}
    half = sum(it.seconds for it in predictor().layers.of_rows(BATCH // 2).whole)
    assert half > ALL / 2
    assert seconds(knobs) == pytest.approx(half, rel=1e-4)
    # Of an odd bucket one has more; and the end of training is told with a last sum of few numbers.
    halves, rate = pytest.approx(half + 0.5, abs=0.02), 4 * (N / 2) / 0.5
    assert seconds(knobs, rates={"update_rate": rate}) == halves
    assert seconds(knobs, rates={"copy_rate": rate}) == halves


@pytest.mark.parametrize(
    ("knobs", "counts"),
    [
        ({"mode": "serial"}, None),
        ({"parallel": "data:2", "micro_batches": 1}, None),
        (
            {
                "parallel": "pipeline:2", "pipeline_schedule": "gpipe", "micro_batches": M,
                "defer_weights": True, "stages": "1,3",
            },
            [1, 3],
        ),
    ],
)  # fmt: skip
def test_its_flags_say_the_same(knobs, counts):
    found = predictor(update_rate=1e3, copy_rate=1e4).step(knobs, counts, steps=2, pass_s=0.01)
    config, scenario = parse_simulate(shlex.split(found.flags))
    assert run_in_virtual_time(config, scenario).seconds / 2 == found.seconds
