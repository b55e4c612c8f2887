"""TOML: what is written comes back exactly, and what cannot be read is told in one line."""

from __future__ import annotations

import dataclasses
import tomllib
from typing import get_type_hints

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from psrt.cli.flags import parse_train
from psrt.config import TrainConfig, from_toml, resolve, to_toml
from psrt.config.injection import KINDS, Injection
from psrt.config.knobs import RunKnob, knobs_of
from psrt.core.errors import ConfigError
from psrt.rows.knobs import dashed
from psrt.rows.row import Rows, knobs_of_row
from psrt.rows.values import REAL, SWITCH, WHOLE, WIDTHS, write_text

KNOBS = knobs_of(TrainConfig)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def injections():
    """Return a strategy of every injection there can be."""

    def numbers(number):
        if number.whole:
            return st.integers(number.min, number.max)
        return st.floats(number.min, number.max)

    one_of = [
        st.builds(
            Injection,
            st.none() | st.integers(0, 2**63 - 1),
            st.just(kind),
            st.tuples(*map(numbers, wanted)),
        )
        for kind, (wanted, _) in KINDS.items()
    ]
    return st.one_of(one_of)


def rows_of(rows):
    """Return a strategy of the rows of a registry, with any knobs."""
    return st.one_of(
        st.builds(
            type(row),
            **{name: values_like(knob) for name, knob in knobs_of_row(row).items()},
        )
        for row in rows.values()
    )


def values_of(name):
    """Return a strategy of everything that a knob takes."""
    knob = KNOBS[name]
    if name == "inject":
        return st.lists(injections()).map(tuple)
    return rows_of(knob.rows) if isinstance(knob.rows, Rows) else values_like(knob)


def values_like(knob):
    """Return a strategy of what a knob of a kind takes."""
    if names := knob.names if isinstance(knob, RunKnob) else knob.choices:
        return st.sampled_from(list(names))
    if knob.kind is SWITCH:
        return st.booleans()
    if knob.kind is WHOLE:
        return st.integers(int(knob.min), int(knob.max or 2**63 - 1))
    if knob.kind is REAL:
        least, exclude_least = (
            (knob.min, False) if knob.exclusive_min is None else (knob.exclusive_min, True)
        )
        most, exclude_most = (
            (knob.max, False) if knob.exclusive_max is None else (knob.exclusive_max, True)
        )
        return st.floats(least, most, exclude_min=exclude_least, exclude_max=exclude_most)
    if knob.kind is WIDTHS:
        return st.lists(st.integers(1, 2**63 - 1)).map(tuple)
    return texts


@st.composite
def configs(draw, without=()):
    """Draw a config in which any knob that may be given is given or not."""
    knobs = {}
    order = sorted(
        KNOBS, key=lambda name: len(KNOBS[name].requires)
    )  # what others need comes first
    for name in order:
        if name in without or not draw(st.booleans()):
            continue
        try:
            value = draw(values_of(name))
            TrainConfig(**knobs, **{name: value})
        except ConfigError:
            continue  # has no effect beside what was drawn before
        knobs[name] = value
    return TrainConfig(**knobs)


@given(configs())
@settings(max_examples=8)
def test_what_is_written_comes_back(config):
    text = to_toml(config)
    assert from_toml(text) == config
    assert to_toml(from_toml(text)) == text


@given(configs(without=("replay", "resume")))  # which take over a run's
@settings(max_examples=8)
def test_what_is_given_as_flags_comes_back(config):
    argv = []
    for name in KNOBS:
        value = getattr(config, name)
        if isinstance(value, bool):
            argv.append(f"--{'' if value else 'no-'}{dashed(name)}")
        elif isinstance(value, tuple):
            if value or name == "hidden":
                argv.append(f"--{dashed(name)}={','.join(map(str, value))}")
        elif value is not None:
            argv.append(f"--{dashed(name)}={value}")
    assume("--" not in [word.partition("=")[2] for word in argv])
    assert parse_train(argv) == config


@given(texts)
@example("".join(map(chr, range(1, 128))))
def test_any_text_can_be_written(text):
    assert tomllib.loads(f"key = {write_text(text)}") == {"key": text}


def test_every_field_is_compared_with_its_type():
    # 1 == 1.0 == True: equality alone would not see a type that is lost on the way.
    config = resolve(TrainConfig(mode="ssp", optimizer="adam", inject=["0:delay:1"]), ranks=2)
    again = from_toml(to_toml(config))
    for field in dataclasses.fields(config):
        assert type(getattr(again, field.name)) is type(getattr(config, field.name))
    assert [type(number) for it in again.inject for number in it.numbers] == [float]
    assert get_type_hints(TrainConfig)["epochs"] == (float | None)


def test_the_text():
    text = to_toml(resolve(TrainConfig(hidden=(), out='a "b"', steps=5), ranks=1))
    assert text.startswith('# mode\nmode = "serial"\nservers = 0\n\n# optimizer\n')
    assert "\nhidden = []\n" in text
    assert '\nout = "a \\"b\\""\n' in text
    assert "\nsteps = 5\n" in text
    assert "epochs = 10" not in text


@pytest.mark.parametrize(("text", "message"), [
    ("learning_rate = 3", "unknown key 'learning_rate' (did you mean lr?)"),
    ("[train]\nlr = 3", "unknown key 'train'"),
    ('batch_size = "8"', "batch-size must be a whole number, got '8'"),
    ("mode = {a = 1}", "mode must be the name of a mode, such as 'serial', got {'a': 1}"),
    ('inject = "1:delay:1"',
     """inject must be a list of texts, like ["1:delay:0.005"], got '1:delay:1'"""),
    ("steps = 3\nepochs = 2", "give --epochs or --steps, not both"),
])  # fmt: skip
def test_what_cannot_be_read(text, message):
    with pytest.raises(ConfigError) as caught:
        from_toml(text, source="run.toml")
    assert str(caught.value) == f"run.toml: {message}"


@pytest.mark.parametrize(
    "text", ["lr", "lr = 1\nlr = 2", "lr = " + "9" * 5000, "lr = " + "[" * 5000]
)
def test_what_is_not_toml(text):
    with pytest.raises(ConfigError, match=r"^run.toml: not TOML: [^\n]+$"):
        from_toml(text, source="run.toml")
