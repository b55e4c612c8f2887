"""Copies of a model that is cut: each part is encoded as one by itself."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.codec import TABLE, ErrorFeedback, make_codec, make_encoder, matrices_of_part
from psrt.codec.randomness import draws, seed_of_part
from psrt.config import TrainConfig, resolve
from psrt.job.combinations import ROWS, TINY
from psrt.job.cut import cut_of, cut_plan
from psrt.job.problems import supervised_problem
from psrt.job.virtual import simulate
from psrt.runtime import push_codec, reply_codec
from psrt.runtime.push_codec import PushEncoder
from psrt.runtime.strategies import choco
from psrt.transport import coded_sum
from support.cases import each

#: Nothing is written.
OWN = TINY | {"out": None, "overwrite": False, "micro_batches": 2}
CODED = [name for name, knobs in ROWS.items() if "codec" in knobs and "gossip" not in name]


def trained(parallel, **knobs):
    axes = TrainConfig(parallel=parallel).axes
    config = TrainConfig(**OWN | knobs, parallel=parallel)
    return simulate(config, workers=axes.data * axes.cells)


@each("name", CODED)
def test_a_codec_that_loses_nothing_trains_as_the_whole_does(name):
    """But where workers do not take turns alike, and fragments are those of a part."""
    knobs = ROWS[name] | {"codec": "nonzero"}
    knobs |= {"codec_reply": "nonzero"} if "codec_reply" in knobs else {}
    if name.startswith("async") or "fragments" in knobs:
        return
    whole = trained("data:2", **knobs)
    assert whole.summary.frame_bytes
    more = {"servers": 4} if "servers" in knobs else {}
    cut = trained("data:2,pipeline:2", **knobs | more)
    np.testing.assert_array_equal(cut.theta, whole.theta)


STEPS = 4
#: Of the knobs that a codec has, those that suit vectors as small as parts are here.
SMALL = {"rank": 2, "density": 0.05, "chunk": 4, "kept": 4}


@each("name", ["sign", "low-rank", "int8", "top-k", "dgc", "demo", "random-k"])
def test_a_part_is_encoded_as_a_vector_of_its_own(name):
    """Frame by frame as one that is alone; what is kept back and what arrived are all there was."""
    pushed = {}
    encode = PushEncoder.encode

    def noting(self, push, gradient):
        frame = encode(self, push, gradient)
        pushed.setdefault(id(self), (self, []))[1].append((gradient.copy(), frame.copy()))
        return frame

    coded = {"codec": name, "codec_everywhere": True, "optimizer": "sgd"}
    coded |= {f"codec_{it}": SMALL[it] for it in TABLE[name].knobs if it in SMALL}
    for axes in ("data:1,pipeline:2", "data:1,tensor:2")[: 2 if name == "low-rank" else 1]:
        knobs = {"mode": "sync", "steps": STEPS, "lr": 1.0, "servers": 2, "seed": 3} | coded
        config = resolve(TrainConfig(**OWN | knobs | {"parallel": axes}), ranks=4)
        problem = supervised_problem(config, workers=1)
        cut = cut_of(config, cut_plan(config, problem, problem.model.n), (0, 1), (2, 3), None)
        pushed.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PushEncoder, "encode", noting)
            moved = problem.initial() - trained(axes, **knobs).theta
        by_size = {pushes[0][0].size: (made, pushes) for made, pushes in pushed.values()}
        assert len(by_size) == len(cut.cells) == 2
        for number, cell in enumerate(cut.cells):
            made, pushes = by_size[cell.part.size]
            matrices = matrices_of_part(problem.matrices(), cell.part)
            its = {"matrices": matrices, **config.codec_knobs}
            alone = make_encoder(name, cell.part.size, error_feedback=None, **its)
            codec = make_codec(name, cell.part.size, **its)
            given, arrived = np.zeros((2, cell.part.size))
            for clock, (gradient, frame) in enumerate(pushes):
                rng = draws(seed_of_part(3, number), 0, clock, 0)
                alone.begin_epoch(0)
                assert alone.encode(gradient, rng).tobytes() == frame.tobytes()
                decoded = np.empty(cell.part.size, np.float32)
                codec.decode(frame, decoded)
                given, arrived = given + gradient, arrived + decoded
            assert clock == STEPS - 1
            np.testing.assert_allclose(cell.part.take(moved), arrived, rtol=1e-4, atol=1e-5)
            (sender,) = made._senders
            if isinstance(sender, ErrorFeedback):
                np.testing.assert_allclose(arrived + sender.residual, given, rtol=1e-4, atol=1e-5)
                assert np.abs(sender.residual).max() > 0


@pytest.mark.parametrize(
    "knobs", [{"mode": "sync", "servers": 4}, {"mode": "allreduce"}, {"mode": "gossip"}], ids=str
)
def test_no_two_parts_or_copies_draw_alike(knobs, monkeypatch):
    """What is rounded up in one stage is not what is rounded up in another."""
    drawn = []

    def noting(*key, **way):
        drawn.append(draws(*key, **way).random())
        return draws(*key, **way)

    for module in coded_sum, push_codec, reply_codec, choco:
        monkeypatch.setattr(module, "draws", noting)
    knobs = knobs | {"codec": "ternary" if knobs["mode"] != "gossip" else "int8", "steps": 3}
    knobs |= {"codec_reply": "int8"} if "servers" in knobs else {}
    for axes in "data:2,pipeline:4", "data:2,pipeline:2,tensor:2":
        drawn.clear()
        trained(axes, codec_everywhere=True, **knobs)
        assert len(drawn) >= 2 * 4 * 3
        assert len(set(drawn)) == len(drawn)
