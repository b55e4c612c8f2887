"""TrainConfig: which knobs go together, and what a run makes of them."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace

import pytest

from psrt.cli.flags import parse_train
from psrt.codec.table import Dgc, Float16, Int8, LowRank, RandomK, Sign, TopK
from psrt.config import MODES, TrainConfig, check_data, resolve
from psrt.config.checks import check_matrices
from psrt.config.knobs import knobs_of
from psrt.config.modes import EASGD, SSP, AllReduce, Gossip, LocalSGD, Serial, Sync
from psrt.core.errors import ConfigError
from psrt.optim.table import (
    Adam,
    Always,
    Constant,
    DelayCompensated,
    Drop,
    Inverse,
    OuterNesterov,
    Power,
    Steps,
)
from support.cases import each

KNOBS = knobs_of(TrainConfig)
CTA = "combine-then-adapt"
OF_ALL = "has no effect where a merge waits for all 4 workers; give a smaller quorum"


def make(ranks=None, **knobs):
    config = TrainConfig(**knobs)
    return config if ranks is None else resolve(config, ranks=ranks)


def refusal(ranks=None, **knobs):
    """Return the one line with which these knobs are refused, at once or on so many ranks."""
    with pytest.raises(ConfigError) as caught:
        make(ranks, **knobs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def a_value(name):
    given = {
        "machine_costs": "costs.json", "codec": TopK(0.1), "codec_reply": Sign(),
        "parallel": "pipeline:2", "micro_batches": 4, "stages": "1,2", "error_feedback": True,
        "tune": True,
    }  # fmt: skip
    fallback = KNOBS[name].fallback
    return given[name] if fallback is None else fallback


CONDITIONAL = [
    (name, only.field, value)
    for name, knob in KNOBS.items()
    for only in knob.requires
    for value in KNOBS[only.field].names
]


@each(("name", "field", "value"), CONDITIONAL)
def test_a_knob_has_a_meaning_exactly_where_it_belongs(name, field, value):
    firsts = {only.field: next(iter(only.values)) for only in KNOBS[name].requires if only.values}
    # What is so by default need not be given, and may belong to another mode.
    knobs = {field: it for field, it in firsts.items() if it != KNOBS[field].fallback}
    knobs |= {field: value, name: a_value(name)}
    if (name, value) == ("placement", "local-sgd"):
        knobs["servers"] = 1
    belongs = next(only.values for only in KNOBS[name].requires if only.field == field)
    if value in belongs:
        assert getattr(TrainConfig(**knobs), name) == a_value(name)
    else:
        assert f"has no effect with --{field.replace('_', '-')} {value}" in refusal(**knobs)


#: A flag, those before it, among what it has no effect, and where it has one.
NO_EFFECT = [
    ("--staleness-rate inverse", "--mode sync", "with --mode sync",
     "--mode async, ssp, softsync or local-sgd:quorum=2"),
    *((it, "--mode local-sgd --servers 1", "with --servers 1 and --mode local-sgd", "--servers 0")
      for it in ("--allreduce ring", "--check-every 5", "--machine-costs a.json")),
    ("--machine-costs a.json", "--mode allreduce --allreduce ring", "with --allreduce ring",
     "--allreduce auto"),
]  # fmt: skip


@each(("flag", "given", "among", "where"), NO_EFFECT)
def test_a_knob_without_effect_is_refused_and_where_it_has_one_is_told(flag, given, among, where):
    with pytest.raises(ConfigError) as caught:
        parse_train([*given.split(), *flag.split()])
    assert str(caught.value) == f"{flag} has no effect {among}; it belongs to {where}"


@pytest.mark.parametrize(("knobs", "message"), [
    ({"epochs": 1, "steps": 1}, "give --epochs or --steps, not both"),
    ({"epochs": 2, "schedule": Always(warmup=2.5)},
     "--schedule constant:warmup=2.5: its warm-up is longer than the run of 2 epochs"),
    ({"mode": "local-sgd:fragments=9"}, "mode local-sgd: fragments 9 is more than local-steps 8: "
     "at most one fragment is sent after each step"),
    ({"mode": "local-sgd:local-steps=4,sync-delay=5"}, "mode local-sgd: sync-delay 5 is "
     "longer than the period, local-steps 4: an average must arrive before the next one begins"),
    ({"mode": "local-sgd:eager=true,sync-delay=2"},
     "mode local-sgd: sync-delay 2 has no effect with eager true"),
    ({"mode": "local-sgd:mixing=0.5"},
     "mode local-sgd: mixing 0.5 has no effect with sync-delay 0"),
    ({"mode": "local-sgd:fragment-order=sequential"},
     "mode local-sgd: fragment-order sequential has no effect with fragments 1"),
    ({"mode": "local-sgd:eager=true", "servers": 1},
     "--mode local-sgd:eager=true: eager has no effect with --servers 1"),
    ({"mode": "local-sgd:fragments=2", "check_every": 5},
     "--check-every 5 has no effect with --mode local-sgd:fragments=2; it has one with other knobs "
     "of local-sgd"),
    *(({"mode": f"local-sgd:quorum=2,{it}"}, f"mode local-sgd: {line}") for it, line in (
        ("merge=median,merge-weights=samples", "merge-weights samples has no effect with "
         "merge=median, which gives all the same"),
        ("grace=0", "grace must be above 0, got 0"),
        ("grace=auto", "grace auto needs sync-delay: without one no computing hides a window"),
        ("dynamic=true,fragments=2", "dynamic is not possible with fragments 2"),
        ("eager=true", "eager is not possible with a quorum, a merge or merge-weights"),
        ("post-local-epoch=1", "post-local-epoch 1 is not possible with a quorum, a merge or "
         "merge-weights"),
    )),
    ({"mode": "gossip:variant=pairs,order=adapt-then-combine"},
     "mode gossip: order adapt-then-combine has no effect with variant pairs"),
    ({"mode": "gossip:consensus-rate=0.5"},
     "--mode gossip:consensus-rate=0.5: consensus-rate has no effect without --codec"),
    ({"mode": "gossip:variant=push-sum", "codec": "sign"},
     "--codec sign has no effect with --mode gossip:variant=push-sum; it has one with other knobs "
     "of gossip"),
    ({"codec": "demo:chunk=4,kept=17"}, "codec demo: kept 17 is more than chunk 4 squared"),
    ({"mode": "sync", "codec": "int8", "codec_reply": "sign:bucket=12"},
     "codec-reply sign: bucket must be a multiple of 8, got 12"),
    ({"codec": "random-k:scaled=true", "error_feedback": True},
     "--error-feedback cannot be combined with --codec random-k:scaled=true: the scaled sum of "
     "what is sent and what is kept back would grow from step to step"),
    ({"mode": "gossip", "codec": "random-k:scaled=true"},
     "--codec random-k:scaled=true: for changes of parameters scaled is always false"),
    ({"mode": "sync", "codec": "sign", "codec_reply": "dgc"}, "--codec-reply dgc cannot send "
     "changes of parameters; use one of float16, bfloat16, float8-e4m3, float8-e5m2, float4-e3m0, "
     "int8, qsgd, sign, top-k, threshold, random-k, low-rank, nonzero"),
    ({"mode": "allreduce:overlap=true", "clip_norm": 2},
     "--mode allreduce:overlap=true cannot be combined with --clip-norm 2, which needs the norm of "
     "the whole gradient before it is summed; use overlap=false"),
    ({"mode": "allreduce:overlap=false,bucket-bytes=9"},
     "mode allreduce: bucket-bytes 9 has no effect with overlap false, which sums the gradient as "
     "a whole"),
    ({"mode": "allreduce", "allreduce": "node+ring", "shared_memory": False},
     "--allreduce node+ring uses shared memory, got --no-shared-memory"),
    ({"steps": 10, "inject": ("0:slow:2", "*:pause:10:1")},
     "--inject *:pause:10:1 begins at step 10, the run has 10 from 0 on"),
])  # fmt: skip
def test_knobs_that_do_not_go_together(knobs, message):
    assert refusal(**knobs) == message


@each(("knobs", "servers", "message"), [
    ("quorum=5", 1, "--mode local-sgd:quorum=5 needs at least 5 workers, got 4"),
    ("quorum=4,grace=1", 1, "--mode local-sgd:quorum=4,grace=1: grace has no effect where a merge "
     "waits for all 4 workers; give a smaller quorum"),
    ("dynamic=true", 1, "--mode local-sgd:dynamic=true: dynamic has no effect without a quorum; "
     "give quorum=K, less than all workers"),
    ("outer=delayed-nesterov", 1, "--mode local-sgd:outer=delayed-nesterov: outer delayed-nesterov "
     "has no effect without a quorum; give quorum=K, less than all workers"),
    ("quorum=2,merge=trimmed", 1, "--mode local-sgd:quorum=2,merge=trimmed: merge=trimmed needs a "
     "quorum of at least 3 workers, got 2"),
    ("merge=trimmed,merge.trim=2", 1, "--mode local-sgd:merge=trimmed,merge.trim=2: merge="
     "trimmed,merge.trim=2 needs a quorum of at least 5 workers, got 4"),
    ("merge=median,merge-weights=samples", 1, "mode local-sgd: merge-weights samples has no effect "
     "with merge=median, which gives all the same"),
    ("quorum=2", 0, "--mode local-sgd:quorum=2 needs at least 1 server, got --servers 0"),
    *((it, 0, f"--mode local-sgd:{it}: {it.split('=')[0]} has no effect without a quorum; give "
       "quorum=K, less than all workers") for it in ("grace=1", "dynamic=true")),
    ("quorum=2,dynamic=true,fragments=2", 1,
     "mode local-sgd: dynamic is not possible with fragments 2"),
    ("quorum=2,grace=auto", 1, "mode local-sgd: grace auto needs sync-delay: without one no "
     "computing hides a window"),
    ("quorum=2,fragments=2,sync-delay=5", 1, "--mode local-sgd:fragments=2,sync-delay=5,quorum=2: "
     "with servers sync-delay may be at most 4, the steps from one fragment to the next: a worker "
     "has one on its way at a time"),
    ("quorum=2,eager=true", 1,
     "mode local-sgd: eager is not possible with a quorum, a merge or merge-weights"),
    ("quorum=2,post-local-epoch=1", 1, "mode local-sgd: post-local-epoch 1 is not possible with a "
     "quorum, a merge or merge-weights"),
    ("quorum=2,grace=soon", 1, "mode local-sgd: grace must be a finite number or auto, got 'soon'"),
])  # fmt: skip
def test_what_learners_cannot_have(knobs, servers, message):
    assert refusal(4 + servers, mode=f"local-sgd:{knobs}", servers=servers) == message


def test_what_depends_on_the_mode_waits_for_it():
    config = TrainConfig(staleness_rate="inverse")
    with pytest.raises(
        ConfigError, match=r"^--staleness-rate inverse has no effect with --mode sy"
    ):
        resolve(config, ranks=2)
    assert resolve(dataclasses.replace(config, mode="ssp"), ranks=2).staleness_rate == Inverse()


@each(("knobs", "ranks", "expected"), [
    ({}, 1, {"mode": Serial(), "servers": 0, "epochs": 10.0, "steps": None, "lr": 0.1}),
    ({}, 3, {"mode": Sync(backup=0), "servers": 1, "placement": "first"}),
    ({"mode": "async"}, 2, {"servers": 1, "staleness_rate": Constant()}),
    ({"mode": "ssp", "servers": 2}, 4, {"servers": 2, "mode": SSP(3), "allreduce": None}),
    ({"mode": "allreduce", "servers": 0}, 1,
     {"mode": AllReduce(overlap=True, bucket_bytes=1 << 20), "check_every": 100,
      "machine_costs": None}),
    ({"mode": "allreduce", "clip_norm": 1}, 2, {"mode": AllReduce(overlap=False)}),
    ({"mode": "local-sgd"}, 2,
     {"servers": 0, "allreduce": "auto", "mode": LocalSGD(8), "placement": None,
      "check_every": 100}),
    *(({"mode": f"local-sgd:sync-delay=1{it}"}, 2,
       {"mode": LocalSGD(8, sync_delay=1, mixing=mixing)})
      for it, mixing in (("", 0.5), (",mixing=0.25", 0.25))),
    *(({"mode": "local-sgd:quorum=4,grace=1", "servers": 1, "resume": "runs/a"}, ranks,
       {"mode": LocalSGD(8, quorum=4, grace=1.0)}) for ranks in (4, 5, 6)),
    *(({"mode": "gossip", "codec": codec}, 2, {"mode": Gossip(order=CTA, consensus_rate=rate)})
      for codec, rate in ((None, None), ("sign", 1.0), ("top-k:density=0.1", 0.1))),
    ({"mode": "gossip:variant=push-sum"}, 2,
     {"mode": Gossip(variant="push-sum", order="adapt-then-combine")}),
    ({"mode": "local-sgd", "servers": 1}, 2,
     {"allreduce": None, "placement": "first", "check_every": None}),
    ({"mode": "local-sgd:outer=nesterov,outer.momentum=0.5"}, 2,
     {"mode": LocalSGD(8, outer=OuterNesterov(0.7, 0.5))}),
    ({"mode": "easgd"}, 2,
     {"servers": 1, "mode": EASGD(0.9, 10, asynchronous=False), "staleness_rate": None,
      "allreduce": None}),
    ({"steps": 7}, 1, {"epochs": None, "steps": 7}),
    ({"optimizer": "adam"}, 1, {"lr": 0.002, "optimizer": Adam(0.9, 0.999, 1e-8)}),
    ({"schedule": "step"}, 1, {"schedule": Steps(5.0, 0.1)}),
    *(({"mode": mode, **rate}, 2, expected) for mode in ("async", "ssp", "softsync")
      for rate, expected in (
        ({}, {"staleness_rate": Constant()}),
        ({"staleness_rate": "power"}, {"staleness_rate": Power(0.5)}),
        ({"staleness_rate": "drop"}, {"staleness_rate": Drop(4)}),
        ({"staleness_rate": "delay-compensated"}, {"staleness_rate": DelayCompensated(0.04)}),
        ({"staleness_rate": "delay-compensated:adaptive=true"},
         {"staleness_rate": DelayCompensated(2.0, adaptive=True)}),
    )),
])  # fmt: skip
def test_defaults(knobs, ranks, expected):
    config = resolve(TrainConfig(**knobs), ranks=ranks)
    assert {name: getattr(config, name) for name in expected} == expected
    assert resolve(config, ranks=ranks) == config


@pytest.mark.parametrize(("asked", "codec", "feedback"), [
    ({"codec": "sign"}, Sign(bucket=1024), True),
    ({"codec": "int8"}, Int8(bucket=1024), None),
    ({"codec": "top-k"}, TopK(density=0.01), True),
    ({"codec": "float16"}, Float16(), False),
    ({"codec": "random-k"}, RandomK(scaled=True), False),
    ({"codec": "random-k", "error_feedback": True}, RandomK(scaled=False), True),
    ({"codec": "random-k:scaled=false"}, RandomK(scaled=False), True),
    ({"codec": "dgc:momentum=0.5"}, Dgc(momentum=0.5), None),
])  # fmt: skip
def test_defaults_of_codecs(asked, codec, feedback):
    for mode, row in MODES.items():
        if not row.codecs or row.mixes or (row.elastic and "momentum" in codec.knobs):
            continue
        config = resolve(TrainConfig(mode=mode, **asked), ranks=2)
        due = codec, feedback
        if row.elastic is not None and feedback is not None:
            # the next difference to the centre has what a frame lost
            due = codec.settled(scales=False), bool(asked.get("error_feedback"))
            due = (replace(due[0], scaled=False) if "scaled" in codec.knobs else due[0]), due[1]
        assert (config.codec, config.error_feedback) == due
        assert resolve(config, ranks=2) == config
        encoder = config.codec.encoder(100, error_feedback=config.error_feedback)
        assert (encoder.residual is not None) == (due[1] or "momentum" in codec.knobs)


def test_differences_are_never_scaled():
    config = resolve(TrainConfig(mode="async", codec="random-k", codec_reply="random-k"), ranks=2)
    assert (config.codec.scaled, config.codec_reply.of_differences().scaled) == (True, False)


def test_the_rank_is_one_that_a_matrix_can_have():
    check_matrices(TrainConfig(codec="sign"), [])
    check_matrices(TrainConfig(codec="low-rank:rank=20"), [(20, 30), (2, 100)])
    for rank, shapes, match in [
        (21, [(20, 30), (2, 100)], "rank 21 is higher than that of any matrix of the model, "),
        (1, [], " compresses matrices, but the model has none; a "),
    ]:
        with pytest.raises(ConfigError, match=f"^--codec low-rank:rank={rank}.*{match}"):
            check_matrices(TrainConfig(codec=LowRank(rank)), shapes)
        replies = TrainConfig(mode="async", codec="sign", codec_reply=LowRank(rank))
        with pytest.raises(ConfigError, match=f"^--codec-reply low-rank:rank={rank}.*{match}"):
            check_matrices(replies, shapes)


@pytest.mark.parametrize(("knobs", "ranks", "message"), [
    ({"mode": "serial"}, 2, "--mode serial is one process, got 2 ranks; choose another --mode"),
    ({"mode": "ssp"}, 1, "--mode ssp needs a server and a worker, got 1 rank; start more with psrt "
     "launch -n N"),
    ({"servers": 5}, 4, "--servers 5 is more than the 4 ranks of the job"),
    ({"mode": "ssp", "servers": 0}, 2, "--mode ssp needs at least 1 server, got --servers 0"),
    ({"servers": 4}, 4, "--servers 4 leaves no worker among 4 ranks"),
    ({"mode": "softsync:k=3"}, 3, "--mode softsync:k=3 needs at least 3 workers, got 2"),
    ({"mode": "sync:backup=2"}, 3,
     "--mode sync:backup=2 leaves no worker to wait for, got 2"),
    ({"mode": "easgd:elastic=1.51"}, 4, "--mode easgd:elastic=1.51 drives 3 workers and the centre "
     "apart: elastic may be at most 1.5"),
    ({"mode": "easgd:elastic=1.1,asynchronous=true"}, 2,
     "--mode easgd:elastic=1.1,asynchronous=true drives 1 worker and the centre apart: elastic may "
     "be at most 1"),
    ({"inject": ("*:delay:1", "1:slow:2:7"), "mode": "ssp"}, 2,
     "--inject 1:slow:2:7 names a worker that does not exist; the last is 0"),
    ({"schedule": "constant:warmup=12"}, 1,
     "--schedule constant:warmup=12: its warm-up is longer than the run of 10 epochs"),
    *(({"mode": f"local-sgd:{it}", "servers": 1}, 5, f"--mode local-sgd:{it}{line}")
      for it, line in (
        ("quorum=5", " needs at least 5 workers, got 4"),
        ("quorum=4,grace=1", f": grace {OF_ALL}"),
        ("quorum=4,dynamic=true", f": dynamic {OF_ALL}"),
        ("outer=delayed-nesterov,quorum=4", f": outer delayed-nesterov {OF_ALL}"),
        ("quorum=2,merge=trimmed",
         ": merge=trimmed needs a quorum of at least 3 workers, got 2"),
        ("merge=trimmed,merge.trim=2",
         ": merge=trimmed,merge.trim=2 needs a quorum of at least 5 workers, got 4"),
    )),
    *(({"mode": f"local-sgd:{it}", "servers": 0}, 4,
       f"--mode local-sgd:{it} needs at least 1 server, got --servers 0")
      for it in ("quorum=2", "merge=median", "merge-weights=equal")),
])  # fmt: skip
def test_what_does_not_fit_the_ranks(knobs, ranks, message):
    assert refusal(ranks, **knobs) == message


@pytest.mark.parametrize(("knobs", "ranks"), [
    ({"mode": "softsync:k=2"}, 3),
    ({"mode": "sync:backup=1"}, 3),
    ({"mode": "easgd:elastic=1.5"}, 4),
    *(({"mode": f"local-sgd:{it}", "servers": 1}, 5) for it in (
        "quorum=4", "quorum=3,grace=1,dynamic=true", "quorum=3,outer=delayed-nesterov",
        "quorum=3,merge=trimmed", "quorum=2,merge=radial,merge-weights=equal",
        "quorum=2,local-steps=2,fragments=2,fragment-order=sequential",
        "quorum=2,sync-delay=1,grace=auto",
    )),
    ({"mode": "local-sgd:local-steps=4,fragments=2,sync-delay=3", "servers": 0}, 4),
    ({"mode": "easgd:elastic=3,asynchronous=true"}, 4),
    ({"servers": 3}, 4),
    ({"inject": ("0:delay:1", "*:jitter:1"), "mode": "ssp"}, 2),
    ({"inject": ("1:delay:1",), "mode": "allreduce"}, 2),
    ({"inject": ("0:pause:9:1",), "steps": 10}, 1),
    ({"schedule": "constant:warmup=10"}, 1),
])  # fmt: skip
def test_what_just_fits_the_ranks(knobs, ranks):
    assert resolve(TrainConfig(**knobs), ranks=ranks).lr == 0.1


@each(("knobs", "least", "few", "line"), [
    ({"batch_size": 25}, {"samples": 100, "workers": 4}, {"samples": 99},
     "--batch-size 25: a step of all 4 workers takes 100 samples, the data has 99; expected at "
     "most 24"),
    ({"batch_size": 25}, {"samples": 25, "workers": 1}, {"samples": 24},
     "--batch-size 25: a step takes 25 samples, the data has 24"),
    ({"servers": 3, "batch_size": 1}, {"samples": 10, "parameters": 3}, {"parameters": 2},
     "--servers 3: 2 parameters cannot be split into that many shards"),
    ({}, {"samples": 99, "classes": 2}, {"classes": 0},
     "--loss cross-entropy needs class labels, digits has"),
])  # fmt: skip
def test_a_run_has_to_have_enough_data(knobs, least, few, line):
    config = resolve(TrainConfig(**knobs), ranks=5)
    enough = {"parameters": 10, "workers": 1} | least
    check_data(config, **enough)
    with pytest.raises(ConfigError) as caught:
        check_data(config, **enough | few)
    assert str(caught.value).startswith(line)
    check_data(TrainConfig(loss="squared"), samples=99, parameters=9, workers=1, classes=0)


@pytest.mark.parametrize(("knobs", "message"), [
    ({"mode": "local-sgd"}, "--optimizer demo is one half of a codec of gradients, which --mode "
     "local-sgd does not send; use one of sync, async, ssp, softsync, allreduce"),
    ({"codec": "sign"}, "--optimizer demo is one half of --codec demo, got sign"),
    ({"codec_everywhere": False},
     "--no-codec-everywhere is not possible with --optimizer demo, which always needs its codec"),
])  # fmt: skip
def test_an_optimizer_that_cannot_have_its_codec(knobs, message):
    config = TrainConfig(**{"mode": "sync", "optimizer": "demo"} | knobs)
    with pytest.raises(ConfigError, match=re.escape(message)):
        resolve(config, ranks=2)
