"""One knob by itself: what it takes, as which type, and what it says of itself."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from functools import partial

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.config.injection import KINDS as INJECTIONS
from psrt.config.injection import Injection
from psrt.config.knobs import knobs_of
from psrt.core.errors import ConfigError
from psrt.rows.knobs import accept, dashed, read_by_worker, read_flag, shown
from psrt.rows.values import BYTES, WHOLE, Number, form, read_numbers
from support.cases import each

KNOBS = knobs_of(TrainConfig)


def refusal(**knobs):
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**knobs)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("knobs", "message"), [
    ({"batch_size": 0}, "batch-size must be at least 1, got 0"),
    ({"checkpoint_every": "1" * 31}, "checkpoint-every must be steps such as 100, seconds such as "
     f"30s, or auto, got '{'1' * 31}'"),
    ({"checkpoint_every": "٣"}, "checkpoint-every must be steps such as 100, seconds such as 30s, "
     "or auto, got '٣'"),
    ({"checkpoint_every": "0"}, "checkpoint-every must be at least 1, or left out to save nothing, "
     "got '0'"),
    ({"checkpoint_every": 0}, "checkpoint-every must be at least 1, or left out to save nothing, "
     "got 0"),
    ({"batch_size": 2.0}, "batch-size must be a whole number, got 2"),
    ({"batch_size": "8"}, "batch-size must be a whole number, got '8'"),
    ({"seed": 2**63}, "seed must fit into 64 bits, got 9223372036854775808"),
    ({"lr": float("nan")}, "lr must be a finite number, got nan"),
    ({"lr": "fast"}, "lr must be a number, got 'fast'"),
    ({"optimizer": "momentum:momentum=1"}, "optimizer momentum: momentum must be below 1, got 1"),
    ({"overwrite": 1}, "overwrite must be true or false, got 1"),
    ({"out": ""}, "out must not be empty, got ''"),
    ({"out": "a\0b"}, r"out must be valid text, got 'a\x00b'"),
    ({"out": "a\udc80"}, r"out must be valid text, got 'a\udc80'"),
    ({"hidden": 64}, "hidden must be a list of whole numbers, got 64"),
    ({"inject": ("-1:delay:1",)}, "inject must be WORKER:delay:SECONDS, WORKER from 0 or * for "
     "all, SECONDS from 0 to 86400, like 1:delay:0.005, got '-1:delay:1'"),
    ({"inject": ("1:tail:1",)}, "inject must be WORKER:tail:SECONDS:SHAPE, WORKER from 0 or * for "
     "all, SECONDS from 0 to 86400, SHAPE from 0.1 to 1000000, like 1:tail:0.001:1.5, got "
     "'1:tail:1'"),
    ({"optimizer": "adm"}, "optimizer must be one of sgd, momentum, nesterov, adagrad, adam, "
     "adamw, sign-sgd, demo, got 'adm' (did you mean adam?)"),
])  # fmt: skip
def test_a_value_that_will_not_do(knobs, message):
    assert refusal(**knobs) == message


@each("name", knobs_of(TrainConfig))
def test_a_default_is_in_its_type_and_none_is_a_value_only_where_it_is_the_default(name):
    default = getattr(TrainConfig(), name)
    if default is None:
        assert TrainConfig(**{name: None}) == TrainConfig()
        return
    taken = accept(name, KNOBS[name], default)
    assert (type(taken), taken) == (type(default), default)
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{name: None})
    assert str(caught.value).startswith(f"{dashed(name)} must be ")
    assert str(caught.value).endswith("got None")


def test_values_come_in_their_canonical_types():
    config = TrainConfig(
        lr=1, batch_size=np.int64(8), timeout_s=np.float32(0.5), hidden=[4, 3],
        out=pathlib.Path("runs/a"),
    )  # fmt: skip
    values = (config.lr, config.batch_size, config.timeout_s, config.out, config.hidden)
    assert values == (1.0, 8, 0.5, "runs/a", (4, 3))
    assert [type(value) for value in values] == [float, int, float, str, tuple]


@pytest.mark.parametrize(("text", "canonical"), [
    ("1:delay:5e-3", "1:delay:0.005"),
    (" 01:delay:1.0", "1:delay:1"),
    ("0:tail:0.1:2.50", "0:tail:0.1:2.5"),
    ("1:slow:2.0", "1:slow:2"),
    ("1:slow:2.0:0", "1:slow:2"),
    ("1:slow:2.5:50", "1:slow:2.5:50"),
])  # fmt: skip
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


@each("name", [n for n, k in KNOBS.items() if k.min is not None])
def test_least_values_are_inside_their_range(name):
    least = KNOBS[name].min
    assert getattr(only_where_it_belongs(name, least), name) == least
    assert f"must be at least {least:g}, got" in refusal(**{name: KNOBS[name].kind.accept(-1)})


@each("name", [n for n, k in KNOBS.items() if k.max is not None])
def test_most_values_are_inside_their_range(name):
    most = KNOBS[name].max
    assert getattr(only_where_it_belongs(name, most), name) == most
    beyond = KNOBS[name].kind.accept(2 * most)
    assert f"must be at most {shown(float(most))}, got" in refusal(**{name: beyond})


def only_where_it_belongs(name, value):
    """Make a config that gives a knob, and what the knob needs to have a meaning."""
    needs = {only.field: next(iter(only.values)) for only in KNOBS[name].requires if only.values}
    if name in ("checkpoint_every", "keep"):
        needs = {"out": "runs/x", "checkpoint_every": 100}
    if name == "mtbf":
        needs["out"] = "runs/x"
    return TrainConfig(**needs | {name: value})


@each(("name", "hint"), [
    ("epoch", " (did you mean epochs?)"),
    ("learning_rate", " (did you mean lr?)"),
    ("colour", ""),
])  # fmt: skip
def test_an_unknown_knob_is_one_line(name, hint):
    for maker in (TrainConfig, partial(dataclasses.replace, TrainConfig())):
        with pytest.raises(ConfigError) as caught:
            maker(**{name: 5})
        assert str(caught.value) == f"there is no knob {name}{hint}"


def those(has):
    return {name for name, knob in KNOBS.items() if has(knob)}


def test_which_knobs_touch_no_numbers():
    assert those(lambda knob: not knob.numeric) == {
        "out", "overwrite", "record", "last_events", "replay", "timeout_s",
        "busy_timeout_s", "log_every", "inject", "shared_memory", "placement", "machine_costs",
        "check_every", "consensus_every",
        "gather", "bind_cores", "stages", "checkpoint_every", "mtbf", "keep", "resume", "survive",
    }  # fmt: skip


def test_which_knobs_are_of_how_a_run_was_watched():
    watched = those(lambda knob: not knob.of_run)
    assert watched == {
        "out", "overwrite", "record", "last_events", "gather", "replay", "inject", "machine_costs",
        "checkpoint_every", "mtbf", "keep", "resume", "survive",
    }  # fmt: skip
    assert all(not KNOBS[name].numeric for name in watched)


# Texts that stand for amounts, as flags write them.


def test_bytes():
    for text, nbytes in (
        *(("0", 0), ("12", 12), ("1k", 1024), ("2KB", 2048), ("1MiB", 1 << 20)),
        ("0.5 G", 1 << 29),
    ):
        assert read_flag("bytes", BYTES, text) == nbytes
    for text in ("", "K", "-1", "1T", "1.5", "1e6", "2000G", "1:2", "x"):
        with pytest.raises(ConfigError, match=r"^bytes must be "):
            read_flag("bytes", BYTES, text)


@each(("text", "message"), [
    ("x", "ranks must be a whole number, got 'x'"),
    ("0", "ranks must be at least 1, got 0"),
    ("10", "ranks must be at most 9, got 10"),
])  # fmt: skip
def test_a_flag_has_bounds(text, message):
    assert read_flag("ranks", WHOLE, " 9", min=1, max=9) == 9
    with pytest.raises(ConfigError) as caught:
        read_flag("ranks", WHOLE, text, min=1, max=9)
    assert str(caught.value) == message


LINK = (Number("LATENCY_S", 0, 1e6), Number("BYTES_PER_S", 1, math.inf))
SLOW = (Number("FACTOR", 1, 1e6), Number("STEP", 0, 2**63 - 1, whole=True, default=0))


def test_numbers_with_colons_between():
    assert form(SLOW) == "FACTOR[:STEP]"
    assert read_numbers(LINK, "0:inf") == (0.0, math.inf)
    assert read_numbers(SLOW, "2") == read_numbers(SLOW, "2:0") == (2.0, 0)
    for text in ("", "1", "1:2:3", "1:0.5", "-1:2", "nan:2", "1:nan", "a:b", "1_0:2"):
        line = "^must be LATENCY_S:BYTES_PER_S, LATENCY_S from 0 to "
        with pytest.raises(ValueError, match=line):
            read_numbers(LINK, text)


@each(("text", "words"), [
    ("1:-3", "must be WORKER:TIMES"),
    ("1:0", "must be WORKER:TIMES, WORKER from 0, TIMES from 0.01 to 1000, got '1:0'"),
    ("4:3", "names worker 4, which does not exist; the last is 3"),
    ("1:3,1:2", "names worker 1 twice"),
])  # fmt: skip
def test_numbers_of_workers(text, words):
    times = Number("TIMES", 0.01, 1000)
    assert read_by_worker("slow", times, ["1:3, 2:1.5"], 4) == {1: 3.0, 2: 1.5}
    with pytest.raises(ConfigError, match=f"^slow {words}"):
        read_by_worker("slow", times, [text], 4)
