"""Codecs over the copies of a model that is cut: each part is a vector of its own."""

from functools import partial

import numpy as np

from psrt.codec import TABLE, make_codec, matrices_of_part
from psrt.config import TrainConfig, resolve
from psrt.job.combinations import ROWS, TINY
from psrt.job.cut import cut_of, cut_plan
from psrt.job.problems import supervised_problem
from psrt.job.virtual import simulate
from support.cases import each

RNG = partial(np.random.default_rng, 0)
#: Nothing is written.
OWN = TINY | {"out": None, "overwrite": False, "micro_batches": 2}
CODED = [name for name, knobs in ROWS.items() if "codec" in knobs and "gossip" not in name]


def trained(parallel, **knobs):
    axes = TrainConfig(parallel=parallel).axes
    config = TrainConfig(**OWN | knobs, parallel=parallel)
    return simulate(config, workers=axes.data * axes.cells)


@each("name", CODED)
def test_what_loses_nothing_trains_as_the_whole_does(name):
    """But where workers do not take turns alike, and fragments are those of a part."""
    knobs = ROWS[name] | {"codec": "nonzero"}
    knobs |= {"codec_reply": "nonzero"} if "codec_reply" in knobs else {}
    if name.startswith("async") or "fragments" in knobs:
        return
    whole = trained("data:2", **knobs)
    assert whole.summary.frame_bytes
    for axes in "data:2,pipeline:2", "data:2,pipeline:4":
        more = {"servers": 4} if "servers" in knobs else {}
        np.testing.assert_array_equal(trained(axes, **knobs | more).theta, whole.theta)
    plain = {it: value for it, value in knobs.items() if not it.startswith("codec")}
    if "mode" not in plain:  # means of differences are rounded once more than means
        np.testing.assert_array_equal(trained("data:2,pipeline:2", **plain).theta, whole.theta)


@each("name", [*TABLE])
def test_a_part_is_encoded_as_a_vector_of_its_own(name):
    """One worker of each part pushes one gradient; whole, it is what SGD without a codec did."""
    if name in ("dgc", "demo"):  # of a gradient they send something else
        return
    for axes in "data:1,pipeline:2", "data:1,tensor:2":
        knobs = {"mode": "sync", "parallel": axes, "steps": 1, "lr": 1.0, "servers": 2}
        coded = {"codec": name, "codec_everywhere": True}
        coded |= {"codec_rank": 2} if name == "low-rank" else {}
        coded |= {"codec_density": 0.25} if "density" in TABLE[name].knobs else {}
        config = resolve(TrainConfig(**OWN | knobs | coded), ranks=4)
        problem = supervised_problem(config, workers=1)
        n = problem.model.n
        cut = cut_of(config, cut_plan(config, problem, n), (0, 1), (2, 3), None)
        start = problem.initial()
        plain = trained(axes, **{it: knobs[it] for it in knobs if it != "parallel"})
        found = trained(axes, **{it: knobs[it] for it in knobs if it != "parallel"}, **coded)
        for cell in cut.cells:
            gradient, sent = (
                cell.part.take(start - it.theta).astype(np.float32) for it in (plain, found)
            )
            matrices = matrices_of_part(problem.matrices(), cell.part)
            codec = make_codec(name, cell.part.size, matrices=matrices, **config.codec_knobs)
            frame, wanted = codec.encode(gradient, RNG()).copy(), np.empty_like(gradient)
            codec.decode(frame, wanted)
            lost, due = (np.linalg.norm(it - gradient) for it in (sent, wanted))
            assert due / 2 - 1e-6 <= lost <= due * 2 + 1e-6
            if not TABLE[name].is_unbiased and name != "low-rank":  # nothing is drawn
                # Of numbers between two steps some go the other way: a gradient is a difference.
                assert np.mean(~np.isclose(sent, wanted, rtol=1e-4, atol=1e-6)) < 0.02
