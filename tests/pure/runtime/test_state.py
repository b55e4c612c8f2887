"""A job that goes on from the state of its roles at a step is the job that was not interrupted."""

import pytest

from psrt.config import TrainConfig
from psrt.optim.registry import OPTIMIZERS
from support.resuming import differences, trained

pytestmark = pytest.mark.rest_one_in(3)

#: 24 steps in four epochs; the last batch of each is smaller.
KNOBS = {
    "dataset": "synthetic:70x12x4", "hidden": (16, 8), "batch_size": 4, "epochs": 4, "lr": 0.05,
}  # fmt: skip
MODES = {
    "serial": {"mode": "serial", "batch_size": 12},
    "all-reduce": {"mode": "allreduce", "allreduce": "ring", "bucket_bytes": 64},
    "all-reduce of nodes": {"mode": "allreduce"},
    "clipped": {"mode": "allreduce", "allreduce": "tree", "clip_norm": 0.5},
    "optimizer shared out": {"mode": "allreduce", "allreduce": "ring", "shard": "optimizer"},
    "sync": {"mode": "sync"},
    "servers": {"mode": "sync", "servers": 2, "clip_norm": 0.5},
    "shards": {"mode": "sync", "servers": 2, "shards_per_server": 2},
}
LOCAL = {"mode": "local-sgd", "local_steps": 3, "optimizer": "momentum"}
OUTER = {**LOCAL, "outer_lr": 0.7, "outer_momentum": 0.9}
ELASTIC = {"mode": "easgd", "local_steps": 3, "optimizer": "momentum", "servers": 2}
RING, SERVERS = {"allreduce": "ring"}, {"servers": 2}
TOP_K = {"codec": "top-k", "codec_density": 0.1, "codec_everywhere": True}
#: Modes whose workers train alone between averages.
AVERAGES = {
    "local": LOCAL | RING,
    "local, servers": LOCAL | SERVERS,
    "post-local": LOCAL | RING | {"post_local_epoch": 1},
    "post-local, servers": LOCAL | SERVERS | {"post_local_epoch": 1},
    "outer": OUTER | RING,
    "outer, servers": OUTER | SERVERS,
    "local, codec": LOCAL | TOP_K,
    "local, codec by hops": LOCAL | RING | TOP_K,
    "outer, codec, servers": OUTER | SERVERS | TOP_K,
    "local, codecs, servers": LOCAL | SERVERS | TOP_K | {"codec_reply": "sign"},
    "streaming": LOCAL | RING | {"fragments": 3},
    "streaming, late": LOCAL | {"local_steps": 6, "fragments": 2, "sync_delay": 2, "mixing": 0.5},
    "streaming, codec": LOCAL | TOP_K | {"fragments": 2, "outer_lr": 0.7},
    "elastic": ELASTIC,
    "elastic, codec": ELASTIC | TOP_K,
    "elastic, codecs": ELASTIC | TOP_K | {"codec_reply": "top-k"},
    "delays": {"mode": "sync", "inject": ("*:jitter:0.01", "1:pause:5:2")},
}
MIXING = {"mode": "gossip", "optimizer": "momentum"}
ADAPTS_FIRST = {"order": "adapt-then-combine"}
BY_HOST = MIXING | {"by_host": True}
#: Modes whose workers mix with neighbours.
GOSSIP = {
    "ring": MIXING,
    "star, adapts first": MIXING | ADAPTS_FIRST | {"topology": "star"},
    "one peer a round": MIXING | {"topology": "one-peer-exponential", "push_sum": True},
    "push-sum": MIXING | {"push_sum": True, "topology": "exponential", "clip_norm": 0.5},
    "push-sum, adapts first": MIXING | ADAPTS_FIRST | {"push_sum": True},
    "tracking": MIXING | {"gradient_tracking": True},
    "tracking, adapts first": MIXING | ADAPTS_FIRST | {"gradient_tracking": True, "clip_norm": 0.5},
    "by host": BY_HOST,
    "by host, adapts first": BY_HOST | ADAPTS_FIRST,
}
NAMES_OF_CODECS = (
    *("top-k", "sign", "low-rank", "dgc", "random-k", "threshold", "float4-e3m0", "qsgd"),
)  # fmt: skip
EVERYWHERE = {"mode": "sync", "servers": 2, "codec_everywhere": True}
CODECS = {
    "demo": {"mode": "allreduce", "optimizer": "demo"},
    **{f"{it}, sync": EVERYWHERE | {"codec": it} for it in NAMES_OF_CODECS},
    **{
        f"{it}, all-reduce": {"mode": "allreduce", "codec": it, "codec_everywhere": True}
        for it in NAMES_OF_CODECS
    },
    **{
        f"replies by {it}, shared {shared}": EVERYWHERE
        | {"codec": "int8", "codec_reply": it, "codec_reply_shared": shared}
        for it in ("top-k", "sign", "low-rank")
        for shared in (None, True)
    },
}
FRAMED_MIXING = {
    f"{it}, gossip": MIXING | {"codec": it, "codec_everywhere": True, **more}
    for it, more in {
        "top-k": {},
        "low-rank": {"consensus_rate": 0.2},
        "sign": ADAPTS_FIRST,
        "qsgd": {},
    }.items()
}
ROWS = MODES | AVERAGES | GOSSIP | FRAMED_MIXING | CODECS
#: As registered under other names, too; a codec makes the other half of the last one.
NAMES = [name for name in OPTIMIZERS if name != "demo"]


def config_of(row, **more):
    return TrainConfig(**KNOBS | ROWS[row] | more)


def goes_on(config, steps, *, workers=3, problem=None):
    """Check that a job goes on from some of its cuts."""
    hosts = (3, 1) if config.by_host else ()
    job = {"workers": sum(hosts) or workers, "hosts": hosts}
    whole = trained(config, problem=problem and problem(), cuts=True, **job)
    assert len(whole.snapshots) >= 8
    if isinstance(steps, slice):
        steps = sorted(whole.snapshots)[steps]
    for step in steps:
        start = whole.snapshots[step]
        again = trained(config, problem=problem and problem(), seed=9, start=start, **job)
        assert again.run.theta.tobytes() == whole.run.theta.tobytes(), step
        if step < max(whole.snapshots):  # after the last step no gradient, push or note is left
            assert not differences(whole.roles, again.roles), step


def workers_in(mode):
    return 1 if MODES[mode]["mode"] == "serial" else 3


@pytest.mark.parametrize("mode", MODES)
def test_a_job_goes_on(mode):
    goes_on(config_of(mode, optimizer="adam"), [6, 13], workers=workers_in(mode))


@pytest.mark.parametrize("optimizer", NAMES)
def test_a_job_goes_on_with_each_optimizer(optimizer):
    goes_on(config_of("sync", optimizer=optimizer), [7])


@pytest.mark.one_in(5)
@pytest.mark.parametrize("row", [*AVERAGES, *GOSSIP, *FRAMED_MIXING, *CODECS])
def test_a_job_with_averages_or_codecs_goes_on(row):
    goes_on(config_of(row), slice(3, 4))


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", [*AVERAGES, *GOSSIP, *FRAMED_MIXING, *CODECS])
def test_a_job_with_averages_or_codecs_goes_on_from_every_cut(row):
    goes_on(config_of(row), slice(0, 20))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", NAMES)
def test_a_job_goes_on_from_every_step(mode, optimizer):
    config = config_of(mode, optimizer=optimizer)
    goes_on(config, range(1, 21), workers=workers_in(mode))


def test_a_pause_that_is_over_is_over():
    """It takes no second time in a run that goes on behind it."""
    config = config_of("delays")
    whole = trained(config, cuts=True)
    assert whole.run.seconds > 2
    assert trained(config, start=whole.snapshots[4]).run.seconds > 2
    assert trained(config, start=whole.snapshots[7]).run.seconds < 2
