"""Knobs that replace those of a script's config: what stays, what goes, what is refused."""

import dataclasses

import pytest

from psrt.config import MODES, TrainConfig
from psrt.config.overriding import overridden, to_text
from psrt.core.errors import ConfigError

OWN = TrainConfig(
    mode="ssp:staleness=3", servers=2, staleness_rate="inverse", shards_per_server=4, lr=0.5,
    epochs=7, codec="float16", codec_reply="float16", hidden=(3,), inject=["1:delay:0.1"],
)  # fmt: skip


def given(**knobs):
    return to_text({name: getattr(TrainConfig(**knobs), name) for name in knobs})


def differing(config):
    """Return the knobs that are not at their defaults."""
    found = ((it.name, getattr(config, it.name), it.default) for it in dataclasses.fields(config))
    return {name: value for name, value, default in found if value != default}


@pytest.mark.parametrize("mode", MODES.own)
def test_any_mode_replaces_another_with_all_that_belongs_to_it(mode):
    found, before = differing(overridden(OWN, given(mode=mode), source="it")), differing(OWN)
    assert str(found.pop("mode")) == str(MODES.read(mode))
    assert found.items() <= before.items()
    kept = {"lr", "epochs", "hidden", "inject"}
    of_servers = {"servers", "shards_per_server"}
    assert kept <= found.keys()
    if not MODES[mode].may_have_servers:
        assert not of_servers & found.keys()
    if MODES[mode].needs_servers:
        assert of_servers <= found.keys()
    assert ("staleness_rate" in found) == MODES[mode].is_stale * (MODES[mode].weakens)


@pytest.mark.parametrize(
    ("knobs", "went"),
    [
        ({"servers": 1}, {}),
        ({"steps": 9}, {"epochs"}),
        ({"mode": "allreduce", "codec": "top-k"}, {"servers", "shards_per_server"}),
    ],
)
def test_knobs_replace_what_they_are_about(knobs, went):
    config = overridden(OWN, given(**knobs), source="it")
    found = differing(config)
    assert found.items() >= differing(TrainConfig(**knobs)).items()
    assert not found.keys() & went


def test_without_knobs_it_is_the_same_config():
    assert overridden(OWN, "", source="it") is OWN
    assert overridden(OWN, "{}", source="it") == OWN


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mode = 1", "expected {knob = value, ...}"),
        ("[1]", "expected {knob = value, ...}"),
        ("{mode = ", "expected {knob = value, ...}"),
        ("{moed = 'ssp'}", "unknown key 'moed'"),
        ("{batch_size = 0}", "batch-size must be at least 1"),
        ("{mode = 'allreduce', servers = 1}", "--mode allreduce"),
    ],
)
def test_anything_else_is_refused_in_a_line_that_names_the_source(text, says):
    with pytest.raises(ConfigError, match=r"^it: ") as error:
        overridden(OWN, text, source="it")
    assert says in str(error.value)
    assert "\n" not in str(error.value)
