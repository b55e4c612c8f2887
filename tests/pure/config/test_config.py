"""TrainConfig: what each knob takes, which knobs go together, and what a run makes of them."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import pathlib
import re
from functools import partial
from typing import get_args

import numpy as np
import pytest

from psrt.codec import TABLE, make_encoder
from psrt.collective import ALGORITHMS
from psrt.config import ALLREDUCE_NAMES, MODES, TrainConfig, check_data, resolve
from psrt.config.checks import check_rank
from psrt.config.injection import KINDS as INJECTIONS
from psrt.config.injection import Injection
from psrt.config.knobs import accept, dashed, knobs_of, shown
from psrt.config.train import ModeName, OptimizerName
from psrt.errors import ConfigError
from support.cases import each

KNOBS = knobs_of(TrainConfig)


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


@pytest.mark.parametrize("module", ["suggest", "values", "injection", "knobs"])
def test_examples_in_docstrings(module):
    found = doctest.testmod(importlib.import_module(f"psrt.config.{module}"))
    assert found.attempted > 0
    assert found.failed == 0


# What one knob takes.


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"batch_size": 0}, "batch-size must be at least 1, got 0"),
        (
            {"checkpoint_every": 0},
            "checkpoint-every must be at least 1, or left out to save nothing, got 0",
        ),
        ({"batch_size": 2.0}, "batch-size must be a whole number, got 2"),
        ({"batch_size": True}, "batch-size must be a whole number, got true"),
        ({"batch_size": "8"}, "batch-size must be a whole number, got '8'"),
        ({"seed": 2**63}, "seed must fit into 64 bits, got 9223372036854775808"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"lr": float("nan")}, "lr must be a finite number, got nan"),
        ({"lr": -float("inf")}, "lr must be a finite number, got -inf"),
        ({"lr": 10**400}, f"lr must be a finite number, got {10**400}"),
        ({"lr": 0}, "lr must be above 0, got 0"),
        ({"lr": "fast"}, "lr must be a number, got 'fast'"),
        ({"lr": False}, "lr must be a number, got false"),
        ({"optimizer": "momentum", "momentum": 1}, "momentum must be below 1, got 1"),
        ({"codec": "top-k", "codec_density": 0}, "codec-density must be above 0, got 0"),
        ({"codec": "top-k", "codec_density": 1.5}, "codec-density must be at most 1, got 1.5"),
        ({"codec": "qsgd", "codec_levels": 128}, "codec-levels must be at most 127, got 128"),
        ({"codec": "low-rank", "codec_rank": 0}, "codec-rank must be at least 1, got 0"),
        ({"schedule": "step", "decay_factor": 1.5}, "decay-factor must be at most 1, got 1.5"),
        ({"overwrite": 1}, "overwrite must be true or false, got 1"),
        ({"out": ""}, "out must not be empty, got ''"),
        ({"out": 3}, "out must be a text, got 3"),
        ({"out": "a\0b"}, r"out must be valid text, got 'a\x00b'"),
        ({"out": "a\udc80"}, r"out must be valid text, got 'a\udc80'"),
        ({"hidden": 64}, "hidden must be a list of whole numbers, got 64"),
        ({"hidden": (64, 0)}, "hidden must be whole numbers of at least 1, got 64,0"),
        (
            {"inject": ("1:dely:1",)},
            "inject must be WORKER:KIND:NUMBERS, KIND delay, jitter, tail, pause or slow "
            "(did you mean delay?), like 1:delay:0.005, got '1:dely:1'",
        ),
        (
            {"inject": ("-1:delay:1",)},
            "inject must be WORKER:delay:SECONDS, WORKER from 0 or * for all, SECONDS from 0 to "
            "86400, like 1:delay:0.005, got '-1:delay:1'",
        ),
        (
            {"inject": ("1:slow:0.5",)},
            "inject must be WORKER:slow:FACTOR[:STEP], WORKER from 0 or * for all, FACTOR from 1 "
            "to 1000000, STEP from 0, like 1:slow:2:50, got '1:slow:0.5'",
        ),
        (
            {"inject": ("1:tail:1",)},
            "inject must be WORKER:tail:SECONDS:SHAPE, WORKER from 0 or * for all, SECONDS from 0 "
            "to 86400, SHAPE from 0.1 to 1000000, like 1:tail:0.001:1.5, got '1:tail:1'",
        ),
        (
            {"optimizer": "adm"},
            "optimizer must be one of sgd, momentum, nesterov, adagrad, adam, adamw, sign-sgd, "
            "demo, got 'adm' (did you mean adam?)",
        ),
        (
            {"loss": "zzz"},
            "loss must be one of cross-entropy, squared, got 'zzz'",
        ),
    ],
)
def test_a_value_that_will_not_do(knobs, message):
    assert refusal(**knobs) == message


@each("name", knobs_of(TrainConfig))
def test_none_is_a_value_only_where_it_is_the_default(name):
    if getattr(TrainConfig(), name) is None:
        assert TrainConfig(**{name: None}) == TrainConfig()
        return
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{name: None})
    assert str(caught.value).startswith(f"{dashed(name)} must be ")
    assert str(caught.value).endswith("got None")


def test_defaults_are_in_their_canonical_types():
    """So `TrainConfig` takes them as they are."""
    for name, knob in knobs_of(TrainConfig).items():
        default = getattr(TrainConfig(), name)
        if default is not None:
            taken = accept(name, knob, default)
            assert (type(taken), taken) == (type(default), default), name


def test_values_come_in_their_canonical_types():
    config = TrainConfig(
        lr=1, batch_size=np.int64(8), timeout_s=np.float32(0.5), hidden=[4, 3],
        out=pathlib.Path("runs/a"),
    )  # fmt: skip
    values = (config.lr, config.batch_size, config.timeout_s, config.out)
    assert values == (1.0, 8, 0.5, "runs/a")
    assert [type(value) for value in values] == [float, int, float, str]
    assert config.hidden == (4, 3)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1:delay:5e-3", "1:delay:0.005"),
        (" 01:delay:1.0", "1:delay:1"),
        ("*:jitter:0", "*:jitter:0"),
        ("0:tail:0.1:2.50", "0:tail:0.1:2.5"),
        ("2:pause:+100:2.0", "2:pause:100:2"),
        ("1:slow:2.0", "1:slow:2"),
        ("1:slow:2.0:0", "1:slow:2"),
        ("1:slow:2.5:50", "1:slow:2.5:50"),
    ],
)
def test_an_injection_has_one_text(text, canonical):
    [injection] = TrainConfig(inject=[text]).inject
    assert str(injection) == canonical
    assert TrainConfig(inject=[canonical]).inject == (injection,)
    # As it is, and as JSON hands it back.
    worker, kind, numbers = injection
    for given in (injection, [worker, kind, list(numbers)]):
        assert TrainConfig(inject=[given]).inject == (injection,)
    assert [type(number) for number in numbers] == [
        int if wanted.whole else float for wanted in INJECTIONS[kind][0]
    ]


@pytest.mark.parametrize(
    "given",
    ["1:delay:1", 3, [3], [None], [[1, "delay"]], [[1, 2, 3]], Injection(1, "delay", (1.0,))],
)
def test_injections_are_a_list_of_texts(given):
    assert refusal(inject=given).startswith(
        'inject must be a list of texts, like ["1:delay:0.005"], got '
    )


@pytest.mark.parametrize("name", [n for n, k in KNOBS.items() if k.min is not None])
def test_least_values_are_inside_their_range(name):
    least = KNOBS[name].min
    assert getattr(only_where_it_belongs(name, least), name) == least
    assert f"must be at least {least:g}, got" in refusal(**{name: KNOBS[name].kind.accept(-1)})


@pytest.mark.parametrize("name", [n for n, k in KNOBS.items() if k.max is not None])
def test_most_values_are_inside_their_range(name):
    most = KNOBS[name].max
    assert getattr(only_where_it_belongs(name, most), name) == most
    beyond = KNOBS[name].kind.accept(2 * most)
    assert f"must be at most {shown(float(most))}, got" in refusal(**{name: beyond})


def only_where_it_belongs(name, value):
    """Make a config that gives a knob, and what the knob needs to have a meaning."""
    needs = {only.field: only.values[0] for only in KNOBS[name].requires if only.values}
    if name == "warmup_epochs":
        needs = {"epochs": 1e9}
    if name in ("checkpoint_every", "keep"):
        needs = {"out": "runs/x", "checkpoint_every": 100}
    if name == "mtbf":
        needs["out"] = "runs/x"
    return TrainConfig(**needs | {name: value})


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().lr = 0.1


# Which knobs go together.


def a_value(name):
    knob = KNOBS[name]
    if knob.fallback is not None:
        return knob.fallback
    given = {"outer_lr": 0.7, "outer_momentum": 0.9, "post_local_epoch": 2, "dc_lambda": 0.1}
    given |= {
        "machine_costs": "costs.json",
        "overlap": True,
        "bucket_bytes": 64,
        "shard": "optimizer",
    }
    given |= {"codec": "top-k", "codec_density": 0.1, "codec_levels": 3, "codec_bucket": 64}
    given |= {"codec_chunk": 64, "codec_kept": 32, "codec_reply": "sign"}
    given |= {"codec_threshold": 0.1, "codec_rank": 2, "codec_momentum": 0.9}
    given |= {"codec_clip_norm": 1.0, "codec_warmup_epochs": 2, "codec_scaled": False}
    given |= {"parallel": "pipeline:2", "micro_batches": 4, "stages": "1,2"}
    given |= {"error_feedback": True, "consensus_rate": 0.5}
    return given[name]


CONDITIONAL = [
    (name, only.field, value)
    for name, knob in KNOBS.items()
    for only in knob.requires
    for value in KNOBS[only.field].choices
]


@each(("name", "field", "value"), CONDITIONAL)
def test_a_knob_has_a_meaning_exactly_where_it_belongs(name, field, value):
    firsts = {only.field: only.values[0] for only in KNOBS[name].requires if only.values}
    # What is so by default need not be given, and may belong to another mode.
    knobs = {field: it for field, it in firsts.items() if it != KNOBS[field].fallback}
    knobs |= {field: value, name: a_value(name)}
    if name == "codec_reply_shared":
        knobs |= {"codec": "sign", "mode": "sync"}
    if field == "shard":
        knobs["mode"] = "allreduce"
    if (name, value) == ("placement", "local-sgd"):
        knobs["servers"] = 1
    belongs = next(only.values for only in KNOBS[name].requires if only.field == field)
    if value in belongs:
        assert getattr(TrainConfig(**knobs), name) == a_value(name)
    else:
        assert f"has no effect with --{field.replace('_', '-')} {value}" in refusal(**knobs)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"mode": "async", "staleness": 3},
            "--staleness 3 has no effect with --mode async; it belongs to --mode ssp",
        ),
        (
            {"mode": "sync", "staleness_rate": "inverse"},
            "--staleness-rate inverse has no effect with --mode sync; "
            "it belongs to --mode async, ssp or softsync",
        ),
        (
            {"mode": "async", "dc_adaptive": False},
            "--no-dc-adaptive has no effect without --staleness-rate; "
            "it belongs to --staleness-rate delay-compensated",
        ),
        (
            {"momentum": 0.5},
            "--momentum 0.5 has no effect with --optimizer sgd; "
            "it belongs to --optimizer momentum or nesterov",
        ),
        ({"epochs": 1, "steps": 1}, "give --epochs or --steps, not both"),
        (
            {"epochs": 2, "warmup_epochs": 2.5},
            "--warmup-epochs 2.5 is longer than the run of 2 epochs",
        ),
        (
            {"mode": "local-sgd", "fragments": 9},
            "--fragments 9 is more than --local-steps 8: after each step of a period one is sent, "
            "or none",
        ),
        (
            {"mode": "local-sgd", "local_steps": 4, "sync_delay": 5},
            "--sync-delay 5 is longer than the period, --local-steps 4: an average arrives before "
            "the next one begins",
        ),
        (
            {"mode": "local-sgd", "servers": 1, "fragments": 2},
            "--fragments 2 has no effect with --servers 1; it belongs to --servers 0",
        ),
        (
            {"mode": "local-sgd", "servers": 2, "eager": True},
            "--eager has no effect with --servers 2; it belongs to --servers 0",
        ),
        (
            {"mode": "local-sgd", "eager": True, "sync_delay": 2},
            "--sync-delay 2 has no effect with --eager; it belongs to --no-eager",
        ),
        (
            {"mode": "local-sgd", "mixing": 0.5},
            "--mixing 0.5 has no effect without --sync-delay; it belongs to --sync-delay 1 or more",
        ),
        (
            {"mode": "local-sgd", "fragment_order": "strided"},
            "--fragment-order strided has no effect without --fragments; "
            "it belongs to --fragments 2 or more",
        ),
        (
            {"mode": "local-sgd", "fragments": 2, "check_every": 5},
            "--check-every 5 has no effect with --fragments 2; it belongs to --fragments 1",
        ),
        ({"mode": "ssp", "servers": 0}, "--mode ssp needs at least 1 server, got --servers 0"),
        ({"mode": "easgd", "servers": 0}, "--mode easgd needs at least 1 server, got --servers 0"),
        ({"mode": "easgd", "elastic": -0.1}, "elastic must be at least 0, got -0.1"),
        (
            {"mode": "sync", "elastic": 0.5},
            "--elastic 0.5 has no effect with --mode sync; it belongs to --mode easgd",
        ),
        (
            {"mode": "easgd", "post_local_epoch": 2},
            "--post-local-epoch 2 has no effect with --mode easgd; it belongs to --mode local-sgd",
        ),
        (
            {"mode": "easgd", "staleness_rate": "inverse", "asynchronous": True},
            "--staleness-rate inverse has no effect with --mode easgd; "
            "it belongs to --mode async, ssp or softsync",
        ),
        (
            {"mode": "easgd", "asynchronous": True, "codec": "int8", "codec_reply": "int8"}
            | {"codec_reply_shared": True},
            "--codec-reply-shared is for workers who all read every version, as in sync, got "
            "--mode easgd --asynchronous",
        ),
        (
            {"mode": "allreduce", "servers": 2},
            "--servers 2 has no effect with --mode allreduce, which has none",
        ),
        (
            {"mode": "local-sgd", "servers": 1, "allreduce": "ring"},
            "--allreduce ring has no effect with --servers 1; it belongs to --servers 0",
        ),
        (
            {"mode": "local-sgd", "placement": "last"},
            "--placement last has no effect without --servers; it belongs to --servers 1 or more",
        ),
        (
            {"mode": "local-sgd", "servers": 1, "check_every": 5},
            "--check-every 5 has no effect with --servers 1; it belongs to --servers 0",
        ),
        (
            {"mode": "local-sgd", "servers": 1, "machine_costs": "a.json"},
            "--machine-costs a.json has no effect with --servers 1; it belongs to --servers 0",
        ),
        (
            {"mode": "allreduce", "allreduce": "ring", "machine_costs": "a.json"},
            "--machine-costs a.json has no effect with --allreduce ring; "
            "it belongs to --allreduce auto",
        ),
        (
            {"codec_density": 0.5},
            "--codec-density 0.5 has no effect without --codec; it belongs to --codec top-k, "
            "random-k or dgc",
        ),
        (
            {"codec": "demo", "codec_chunk": 4, "codec_kept": 17},
            "--codec-kept 17 is more than --codec-chunk 4 squared",
        ),
        (
            {"codec": "sign", "codec_bucket": 12},
            "--codec-bucket 12 must be a multiple of 8 with --codec sign",
        ),
        (
            {"mode": "sync", "codec": "int8", "codec_reply": "sign", "codec_bucket": 12},
            "--codec-bucket 12 must be a multiple of 8 with --codec-reply sign",
        ),
        (
            {"mode": "sync", "codec": "sign", "codec_reply": "int8", "codec_levels": 3},
            "--codec-levels 3 has no effect with --codec sign and --codec-reply int8; it belongs "
            "to --codec qsgd",
        ),
        (
            {"codec": "random-k", "error_feedback": True, "codec_scaled": True},
            "--error-feedback cannot be combined with --codec-scaled: the scaled sum of what is "
            "sent and what is kept back would grow from step to step",
        ),
        (
            {"mode": "allreduce", "overlap": True, "clip_norm": 2},
            "--overlap cannot be combined with --clip-norm 2: the norm is that of the whole "
            "gradient",
        ),
        (
            {"mode": "allreduce", "overlap": False, "bucket_bytes": 9},
            "--bucket-bytes 9 has no effect with --no-overlap, which sums the gradient as a whole",
        ),
        (
            {"mode": "allreduce", "clip_norm": 1, "bucket_bytes": 9},
            "--bucket-bytes 9 has no effect with --clip-norm, which sums the gradient as a whole",
        ),
        (
            {"mode": "allreduce", "allreduce": "node+ring", "shared_memory": False},
            "--allreduce node+ring is by shared memory, got --no-shared-memory",
        ),
        (
            {"mode": "local-sgd", "overlap": False},
            "--no-overlap has no effect with --mode local-sgd; it belongs to --mode allreduce",
        ),
        (
            {"mode": "serial", "shared_memory": False},
            "--no-shared-memory has no effect with --mode serial",
        ),
        (
            {"steps": 10, "inject": ("0:slow:2", "*:pause:10:1")},
            "--inject *:pause:10:1 begins at step 10, the run has 10 from 0 on",
        ),
        (
            {"steps": 10, "inject": ("0:slow:2:12",)},
            "--inject 0:slow:2:12 begins at step 12, the run has 10 from 0 on",
        ),
    ],
)
def test_knobs_that_do_not_go_together(knobs, message):
    assert refusal(**knobs) == message


def test_what_depends_on_the_mode_waits_for_it():
    config = TrainConfig(staleness=3)
    with pytest.raises(ConfigError, match=r"^--staleness 3 has no effect with --mode sync; "):
        resolve(config, ranks=2)
    assert resolve(dataclasses.replace(config, mode="ssp"), ranks=2).staleness == 3


# What a run makes of them.


@pytest.mark.parametrize(
    ("knobs", "ranks", "expected"),
    [
        ({}, 1, {"mode": "serial", "servers": 0, "epochs": 10.0, "steps": None, "lr": 0.1}),
        ({}, 3, {"mode": "sync", "servers": 1, "backup": 0, "placement": "first"}),
        ({"mode": "async"}, 2, {"servers": 1, "staleness_rate": "constant", "staleness": None}),
        ({"mode": "ssp", "servers": 2}, 4, {"servers": 2, "staleness": 3, "allreduce": None}),
        ({"mode": "softsync"}, 2, {"softsync": 1, "backup": None}),
        ({"mode": "allreduce"}, 4, {"servers": 0, "allreduce": "auto", "placement": None}),
        (
            {"mode": "allreduce", "servers": 0},
            1,
            {"overlap": True, "bucket_bytes": 1 << 20, "check_every": 100, "machine_costs": None},
        ),
        ({"mode": "allreduce", "clip_norm": 1}, 2, {"overlap": False, "bucket_bytes": None}),
        ({"mode": "allreduce", "overlap": False}, 2, {"overlap": False, "bucket_bytes": None}),
        (
            {"mode": "local-sgd"},
            2,
            {"servers": 0, "allreduce": "auto", "local_steps": 8, "placement": None}
            | {"check_every": 100, "overlap": None, "bucket_bytes": None}
            | {"outer_lr": None, "outer_momentum": None, "post_local_epoch": None},
        ),
        (
            {"mode": "local-sgd", "servers": 1},
            2,
            {"allreduce": None, "placement": "first", "check_every": None},
        ),
        ({"mode": "local-sgd", "outer_momentum": 0.5}, 2, {"outer_lr": 0.7}),
        (
            {"mode": "easgd"},
            2,
            {"servers": 1, "local_steps": 10, "elastic": 0.9, "asynchronous": False}
            | {"post_local_epoch": None, "staleness_rate": None, "allreduce": None},
        ),
        ({"mode": "easgd", "local_steps": 8}, 2, {"local_steps": 8}),
        ({"mode": "local-sgd", "outer_lr": 0.5}, 2, {"outer_momentum": 0.9}),
        ({"steps": 7}, 1, {"epochs": None, "steps": 7}),
        ({"optimizer": "adam"}, 1, {"lr": 0.002, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}),
        ({"optimizer": "nesterov", "lr": 3}, 1, {"lr": 3.0, "momentum": 0.9, "beta1": None}),
        ({"schedule": "step"}, 1, {"decay_epochs": 5.0, "decay_factor": 0.1}),
        ({"schedule": "cosine"}, 1, {"decay_epochs": None, "decay_factor": None}),
    ],
)
def test_defaults(knobs, ranks, expected):
    config = resolve(TrainConfig(**knobs), ranks=ranks)
    assert {name: getattr(config, name) for name in expected} == expected
    assert resolve(config, ranks=ranks) == config


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ({"staleness_rate": "power"}, {"staleness_power": 0.5, "staleness_decay": None}),
        ({"staleness_rate": "exponential"}, {"staleness_decay": 0.2}),
        ({"staleness_rate": "drop"}, {"staleness_limit": 4, "dc_adaptive": None}),
        ({"staleness_rate": "delay-compensated"}, {"dc_lambda": 0.04, "dc_adaptive": False}),
        ({"staleness_rate": "delay-compensated", "dc_adaptive": True}, {"dc_lambda": 2.0}),
        ({"staleness_rate": "gap-aware"}, {"dc_lambda": None, "staleness_limit": None}),
    ],
)
@pytest.mark.parametrize("mode", ["async", "ssp", "softsync"])
def test_defaults_of_staleness_rates(mode, rate, expected):
    config = resolve(TrainConfig(mode=mode, **rate), ranks=2)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({}, {"codec_everywhere": None, "error_feedback": None, "codec_density": None}),
        ({"codec": "sign"}, {"codec_bucket": 1024, "error_feedback": True}),
        ({"codec": "int8"}, {"codec_bucket": 1024, "error_feedback": None}),
        ({"codec": "top-k"}, {"codec_density": 0.01, "codec_everywhere": False}),
        ({"codec": "float16"}, {"error_feedback": False, "codec_bucket": None}),
        ({"codec": "random-k"}, {"codec_scaled": True, "error_feedback": False}),
        ({"codec": "random-k", "codec_scaled": False}, {"error_feedback": True}),
        (
            {"codec": "random-k", "codec_scaled": False, "error_feedback": False},
            {"codec_scaled": False, "error_feedback": False},
        ),
        (
            {"codec": "dgc", "codec_momentum": 0.5},
            {"codec_momentum": 0.5, "codec_clip_norm": None, "codec_warmup_epochs": 4}
            | {"codec_density": 0.001, "error_feedback": None},
        ),
    ],
)
def test_defaults_of_codecs(knobs, expected):
    for mode, row in MODES.items():
        if not row.codecs or row.mixes or (row.elastic and knobs.get("codec") == "dgc"):
            continue
        config = resolve(TrainConfig(mode=mode, **knobs), ranks=2)
        due = expected
        if row.elastic is not None:  # the next difference to the centre has what a frame lost
            off = {"error_feedback": False, "codec_scaled": False}
            due = {name: off.get(name, it) if it else it for name, it in expected.items()}
        assert {name: getattr(config, name) for name in due} == due
        assert resolve(config, ranks=2) == config
        if config.codec is not None:
            encoder = make_encoder(
                config.codec, 100, error_feedback=config.error_feedback, **config.codec_knobs
            )
            assert (encoder.residual is not None) == (
                config.error_feedback or knobs["codec"] == "dgc"
            )


def test_every_knob_of_a_codec_is_one_of_the_configuration():
    for name, row in TABLE.items():
        assert TrainConfig(codec=name).codec_knobs == row.knobs


@each(
    ("codec", "reply", "asked", "expected", "pushes", "replies"),
    [
        # Those that agree have one default; where they do not, each has its own.
        ("sign", "int8", {}, 1024, {"bucket": 1024}, {"bucket": 1024}),
        ("sign", "float8-e4m3", {}, None, {"bucket": 1024}, {"bucket": 128}),
        ("sign", "float8-e4m3", {"codec_bucket": 64}, 64, {"bucket": 64}, {"bucket": 64}),
        ("float16", "int8", {"codec_bucket": 64}, 64, {}, {"bucket": 64}),
        ("float16", "int8", {}, 1024, {}, {"bucket": 1024}),
        ("int8", "float16", {"codec_bucket": 64}, 64, {"bucket": 64}, {}),
    ],
)
def test_a_knob_holds_for_every_codec_of_the_run_that_has_it(
    codec, reply, asked, expected, pushes, replies
):
    asked = TrainConfig(mode="async", codec=codec, codec_reply=reply, **asked)
    config = resolve(asked, ranks=2)
    assert (config.codec_bucket, config.codec_knobs, config.reply_knobs) == (
        expected, pushes, replies,
    )  # fmt: skip
    assert (asked.codec_knobs, asked.reply_knobs) == (pushes, replies)
    assert resolve(config, ranks=2) == config


def test_differences_are_never_scaled():
    config = resolve(TrainConfig(mode="async", codec="random-k", codec_reply="random-k"), ranks=2)
    assert (config.codec_scaled, config.reply_knobs["scaled"]) == (True, False)
    assert "--codec-scaled has no effect with --codec sign" in refusal(
        mode="async", codec="sign", codec_reply="random-k", codec_scaled=True
    )


def test_the_rank_is_one_that_a_matrix_can_have():
    check_rank(TrainConfig(codec="sign"), [])
    check_rank(TrainConfig(codec="low-rank", codec_rank=20), [(20, 30), (2, 100)])
    for rank, shapes, match in [
        (21, [(20, 30), (2, 100)], "--codec-rank 21 is more than a matrix of the model can have, "),
        (1, [], "--codec low-rank is for matrices, and the problem has no matrices"),
    ]:
        with pytest.raises(ConfigError, match=match):
            check_rank(TrainConfig(codec="low-rank", codec_rank=rank), shapes)
        replies = TrainConfig(mode="async", codec="sign", codec_reply="low-rank", codec_rank=rank)
        with pytest.raises(ConfigError, match=match.replace("codec low", "codec-reply low")):
            check_rank(replies, shapes)


@pytest.mark.parametrize("mode", MODES)
def test_every_knob_of_the_mode_is_set_and_no_other(mode):
    config = resolve(TrainConfig(mode=mode), ranks=1 if mode == "serial" else 2)
    for name, knob in KNOBS.items():
        if any(only.field == "mode" and mode not in only.values for only in knob.requires):
            assert getattr(config, name) is None
    assert (config.servers > 0) == MODES[mode].needs_servers


@pytest.mark.parametrize(
    ("knobs", "ranks", "message"),
    [
        (
            {"mode": "serial"},
            2,
            "--mode serial is one process, got 2 ranks; choose another --mode",
        ),
        (
            {"mode": "ssp"},
            1,
            "--mode ssp needs a server and a worker, got 1 rank; start more with psrt launch -n N",
        ),
        (
            {"servers": 2, "mode": "serial"},
            1,
            "--servers 2 has no effect with --mode serial, which has none",
        ),
        ({"servers": 5}, 4, "--servers 5 are more than the 4 ranks of the job"),
        ({"servers": 4}, 4, "--servers 4 leaves no worker among 4 ranks"),
        ({"mode": "local-sgd", "servers": 2}, 2, "--servers 2 leaves no worker among 2 ranks"),
        ({"mode": "softsync", "softsync": 3}, 3, "--softsync 3 is more than the 2 workers"),
        ({"mode": "softsync", "softsync": 5}, 2, "--softsync 5 is more than the 1 worker"),
        ({"backup": 2}, 3, "--backup 2 leaves no worker to wait for, there are 2"),
        (
            {"mode": "easgd", "elastic": 1.51},
            4,
            "--elastic 1.51 drives 3 workers and the centre apart: it may be at most 1.5",
        ),
        (
            {"mode": "easgd", "elastic": 1.1, "asynchronous": True},
            2,
            "--elastic 1.1 drives 1 worker and the centre apart: it may be at most 1",
        ),
        (
            {"inject": ("*:delay:1", "1:slow:2:7"), "mode": "ssp"},
            2,
            "--inject 1:slow:2:7 names a worker that does not exist, the last is 0",
        ),
        ({"warmup_epochs": 12}, 1, "--warmup-epochs 12 is longer than the run of 10 epochs"),
    ],
)
def test_what_does_not_fit_the_ranks(knobs, ranks, message):
    assert refusal(ranks, **knobs) == message


@each("knob", ["servers", "backup", "staleness"])
def test_who_gives_no_mode_is_told_that_one_rank_is_few(knob):
    assert refusal(1, **{knob: 2}).endswith(
        "; without --mode that is how 1 rank trains; start more with psrt launch -n N"
    )


@pytest.mark.parametrize(
    ("knobs", "ranks"),
    [
        ({"mode": "softsync", "softsync": 2}, 3),
        ({"backup": 1}, 3),
        ({"mode": "easgd", "elastic": 1.5}, 4),
        ({"mode": "easgd", "elastic": 3, "asynchronous": True}, 4),
        ({"servers": 3}, 4),
        ({"inject": ("0:delay:1", "*:jitter:1"), "mode": "ssp"}, 2),
        ({"inject": ("1:delay:1",), "mode": "allreduce"}, 2),
        ({"inject": ("0:pause:9:1",), "steps": 10}, 1),
        ({"warmup_epochs": 10}, 1),
    ],
)
def test_what_just_fits_the_ranks(knobs, ranks):
    assert resolve(TrainConfig(**knobs), ranks=ranks).lr == 0.1


# What the data says to it.


def test_a_step_must_not_take_more_than_the_data():
    config = resolve(TrainConfig(batch_size=25), ranks=5)
    check_data(config, samples=100, parameters=10, workers=4)
    with pytest.raises(ConfigError) as caught:
        check_data(config, samples=99, parameters=10, workers=4)
    assert str(caught.value) == (
        "--batch-size 25: a step of 4 workers together takes 100 samples, the data has 99; "
        "expected at most 24"
    )
    with pytest.raises(ConfigError, match=r"^--batch-size 25: a step takes 25 samples, the data "):
        check_data(config, samples=24, parameters=10, workers=1)


def test_every_shard_must_own_a_parameter():
    config = resolve(TrainConfig(servers=3, batch_size=1), ranks=4)
    check_data(config, samples=10, parameters=3, workers=1)
    with pytest.raises(ConfigError) as caught:
        check_data(config, samples=10, parameters=2, workers=1)
    assert str(caught.value) == ("--servers 3: 2 parameters cannot be split into that many shards")


def test_a_regression_needs_squared_error():
    check_data(TrainConfig(loss="squared"), samples=99, parameters=9, workers=1, classes=0)
    check_data(TrainConfig(), samples=99, parameters=9, workers=1, classes=2)
    check_data(TrainConfig(), samples=99, parameters=9, workers=1)
    with pytest.raises(ConfigError, match=r"^--loss cross-entropy needs class labels, digits has"):
        check_data(TrainConfig(), samples=99, parameters=9, workers=1, classes=0)


def test_the_names_of_schedules_are_those_of_the_registry():
    assert set(ALGORITHMS) < set(ALLREDUCE_NAMES)
    assert {f"node+{name}" for name in ALGORITHMS} < set(ALLREDUCE_NAMES)
    assert len(set(ALLREDUCE_NAMES)) == len(ALLREDUCE_NAMES) == 3 + 2 * len(ALGORITHMS)


def test_every_knob_is_told_in_one_line_of_help():
    for name, knob in KNOBS.items():
        assert re.fullmatch(r"[^\n]{10,130}", knob.help), name
        assert (getattr(TrainConfig(), name) is None) or not knob.requires, name


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"mode": "serial"},
            "--optimizer demo is one half of a codec of gradients, which --mode serial does not "
            "send; those that do: sync, async, ssp, softsync, allreduce",
        ),
        (
            {"mode": "local-sgd"},
            "--optimizer demo is one half of a codec of gradients, which --mode local-sgd does "
            "not send; those that do: sync, async, ssp, softsync, allreduce",
        ),
        ({"codec": "sign"}, "--optimizer demo is one half of --codec demo, got sign"),
        (
            {"codec_everywhere": False},
            "--optimizer demo cannot do without its codec anywhere",
        ),
    ],
)
def test_an_optimizer_that_cannot_have_its_codec(knobs, message):
    config = TrainConfig(**{"mode": "sync", "optimizer": "demo"} | knobs)
    with pytest.raises(ConfigError, match=re.escape(message)):
        resolve(config, ranks=1 if config.mode == "serial" else 2)


def test_an_optimizer_may_bring_its_codec():
    for mode in (name for name, row in MODES.items() if row.encodes_gradients):
        for knobs in ({}, {"codec": "demo", "codec_kept": 8}, {"codec_kept": 8}):
            config = resolve(TrainConfig(mode=mode, optimizer="demo", **knobs), ranks=2)
            assert (config.codec, config.codec_everywhere) == ("demo", True)
            assert (config.codec_chunk, config.codec_kept) == (64, knobs.get("codec_kept", 32))
            assert resolve(config, ranks=2) == config


@each(
    ("name", "hint"),
    [
        ("epoch", " (did you mean epochs?)"),
        ("learning_rate", " (did you mean lr?)"),
        ("batchsize", " (did you mean batch_size?)"),
        ("colour", ""),
    ],
)
def test_an_unknown_knob_is_one_line(name, hint):
    for make in (TrainConfig, partial(dataclasses.replace, TrainConfig())):
        with pytest.raises(ConfigError) as caught:
            make(**{name: 5})
        assert str(caught.value) == f"there is no knob {name}{hint}"


def test_it_is_shown_as_it_was_made():
    assert repr(TrainConfig()) == "TrainConfig()"
    config = TrainConfig(mode="ssp", staleness=2, hidden=(4,))
    assert repr(config) == "TrainConfig(mode='ssp', staleness=2, hidden=(4,))"
    assert eval(repr(config), {"TrainConfig": TrainConfig}) == config


def test_a_type_checker_knows_the_names():
    assert get_args(ModeName) == knobs_of(TrainConfig)["mode"].choices
    assert get_args(OptimizerName) == knobs_of(TrainConfig)["optimizer"].choices
