"""Gossip among copies of a cut model: each part mixes with the same part of its neighbours."""

import dataclasses
import math

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.history.check.run import check_run
from psrt.job.combinations import TINY
from psrt.job.virtual import simulate
from psrt.partition import Part, Span
from psrt.report import final_table
from psrt.runtime.mean import mean_of, mean_of_parts

#: Nothing is written.
OWN = TINY | {"out": None, "overwrite": False, "micro_batches": 2, "dataset": "synthetic:80x12x4"}


def trained(parallel, **knobs):
    axes = TrainConfig(parallel=parallel).axes
    config = TrainConfig(**OWN | knobs, parallel=parallel)
    return simulate(config, workers=axes.data * axes.cells)


@pytest.mark.parametrize("axes", ["data:4,pipeline:2", "data:3,tensor:2"])
def test_a_full_graph_averages_as_an_all_reduce_does(axes):
    found = trained(axes, mode="gossip", topology="full", order="adapt-then-combine")
    wanted = trained(axes, mode="allreduce")
    np.testing.assert_allclose(found.theta, wanted.theta, rtol=1e-4, atol=1e-6)
    assert found.summary.graph_averages.models == TrainConfig(parallel=axes).axes.data


@pytest.mark.parametrize(
    "knobs", [{}, {"push_sum": True}, {"gradient_tracking": True}, {"codec": "nonzero"}], ids=str
)
def test_copies_of_stages_mix_as_copies_of_the_whole(knobs):
    """Each has the bits, and they end as far apart; a ring of four is not a full graph."""
    knobs = {"mode": "gossip", "topology": "ring"} | knobs
    knobs |= {"codec_everywhere": True} if "codec" in knobs else {}
    cut, whole = (trained(f"data:4,pipeline:{stages}", **knobs) for stages in (2, 1))
    np.testing.assert_array_equal(cut.theta, whole.theta)
    apart = [it.summary.graph_averages.consensus_distance for it in (cut, whole)]
    assert apart[0] == pytest.approx(apart[1], rel=1e-5)
    assert apart[0] > 0


@pytest.mark.parametrize("knobs", [{}, {"gradient_tracking": True}], ids=str)
def test_the_first_worker_may_wait_for_the_parts_of_others_between_epochs(knobs, tmp_path):
    out = str(tmp_path / "run")
    knobs |= {"mode": "gossip", "steps": None, "epochs": 2, "record": True, "out": out}
    trained("data:3,pipeline:2", **knobs, inject=("1:delay:0.01",))
    assert check_run(out).ok, check_run(out).lines()


def test_the_mean_of_models_is_put_together_of_their_parts():
    vectors = np.random.default_rng(0).normal(size=(3, 10)).astype(np.float32)
    parts = [Part.of_spans([Span(0, 2), Span(7, 10)]), Part.of_spans([Span(2, 7)])]
    means = [mean_of([(part.take(it), 1.0) for it in vectors]) for part in parts]
    found, wanted = mean_of_parts(parts, means), mean_of([(it, 1.0) for it in vectors])
    np.testing.assert_array_equal(found.theta, wanted.theta)
    assert found.models == wanted.models == 3
    assert math.isclose(found.distance, wanted.distance, rel_tol=1e-9)


def test_models_that_mix_are_those_of_copies():
    lines = []
    config = TrainConfig(**OWN | {"mode": "gossip", "parallel": "data:2,pipeline:2"})
    summary = simulate(config, workers=4, say=lines.append).summary
    lines += final_table(dataclasses.asdict(summary)).splitlines()
    mixing = [it for it in lines if it.startswith(("topology", "accuracy:", "model  "))]
    assert all("cop" in it and "worker" not in it for it in mixing), mixing
    assert len(mixing) == 4


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        ({"asynchronous": True}, "--asynchronous: each part of --parallel data:4"),
        ({"by_host": True}, "--by-host: the parts of --parallel data:4"),
        ({"consensus_every": 5}, "--consensus-every 5 measures whole models"),
    ],
    ids=str,
)
def test_what_parts_cannot_do_apart_is_refused(knobs, line):
    with pytest.raises(ConfigError, match=line) as caught:
        trained("data:4,pipeline:2", mode="gossip", topology="ring", **knobs)
    assert "\n" not in str(caught.value)
