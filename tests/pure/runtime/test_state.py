"""Jobs that resume from checkpoints to the same bits, in settings of which no law has a job."""

from __future__ import annotations

import pytest

from psrt.config import TrainConfig
from psrt.job.resuming import resumed_config
from psrt.job.scenario import Scenario, run_in_virtual_time
from support.ticks import cuts_of

#: 24 steps in four epochs; the last batch of each is smaller.
KNOBS = {
    "dataset": "synthetic:70x12x4", "hidden": (16, 8), "batch_size": 4, "epochs": 4, "lr": 0.05,
    "optimizer": "momentum", "checkpoint_every": 4, "keep": 1000, "codec_everywhere": True,
}  # fmt: skip
SYNC = {"mode": "sync", "servers": 2}
LOCAL = {"mode": "local-sgd:local-steps=6"}
ROWS = {
    **{
        f"replies by {it}": SYNC | {"codec": "int8", "codec_reply": it}
        for it in ("top-k", "sign", "low-rank")
    },
    "local, codecs": LOCAL | {"servers": 2, "codec": "top-k", "codec_reply": "sign"},
    "elastic, codecs": {"mode": "easgd", "servers": 2, "codec": "top-k", "codec_reply": "top-k"},
    "streaming, late": LOCAL
    | {"mode": "local-sgd:local-steps=6,fragments=2,sync-delay=2,mixing=0.5"},
    "streaming, codec": LOCAL
    | {"mode": "local-sgd:local-steps=6,fragments=3,outer=nesterov,outer.lr=0.7", "codec": "top-k"},
    "buckets by a codec": {"mode": "allreduce:bucket-bytes=64", "codec": "low-rank"},
    "delays": {"mode": "sync", "inject": ("*:jitter:0.01", "1:pause:5:2")},
}


def trained(row, out):
    knobs = KNOBS | ROWS[row]
    if "codec" not in knobs:
        del knobs["codec_everywhere"]
    whole = run_in_virtual_time(TrainConfig(**knobs, out=str(out)), Scenario(3))
    return whole, cuts_of(out, whole)


#: Those that make test tries.
FEW = ("replies by sign", "streaming, late", "delays")


@pytest.mark.parametrize(
    "row", [pytest.param(it, marks=[pytest.mark.exhaustive] * (it not in FEW)) for it in ROWS]
)
def test_it_ends_with_the_bits_of_one_that_was_not_interrupted(row, tmp_path):
    whole, cuts = trained(row, tmp_path / "run")
    first, last = (
        run_in_virtual_time(resumed_config(str(it), out=str(tmp_path / it.name)), Scenario(3))
        for it in (cuts[0], cuts[-1])
    )
    assert first.theta.tobytes() == last.theta.tobytes() == whole.theta.tobytes()
    if row == "delays":  # a pause that is over takes no second time in a run that resumes behind it
        assert min(whole.seconds, first.seconds) > 2 > last.seconds
