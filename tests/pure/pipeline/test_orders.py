"""What stages compute, in the small cases that the papers draw, and what cannot be asked for."""

from __future__ import annotations

import re

import pytest

from psrt.core.errors import ConfigError
from psrt.pipeline import ALL, PIPELINES, Kind, PipelineStep, forms, most_alive, schedule_of
from psrt.pipeline.step import COMPUTING
from support.cases import each

LETTERS = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.BACKWARD_INPUT: "I",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.SEND_ACTIVATION: "a>",
    Kind.RECEIVE_ACTIVATION: "a<",
    Kind.SEND_GRADIENT: "g>",
    Kind.RECEIVE_GRADIENT: "g<",
}


def told(steps, *, messages=True):
    return (
        " ".join(
            f"{LETTERS[it.kind]}{'*' if it.micro_batch == ALL else it.micro_batch}{'abc'[it.chunk]}"
            for it in steps
            if messages or it.kind in COMPUTING
        )
        .replace("a ", " ")
        .removesuffix("a")
    )


@each(
    ("name", "chunks", "deferred", "stage", "due"),
    [
        ("sequential", 1, False, 0, "F0 B0 F1 B1 F2 B2 F3 B3"),
        ("gpipe", 1, False, 0, "F0 F1 F2 F3 B0 B1 B2 B3"),
        ("gpipe", 1, False, 1, "F0 F1 F2 F3 I0 W0 I1 W1 I2 W2 I3 W3"),
        ("gpipe", 1, True, 1, "F0 F1 F2 F3 I0 I1 I2 I3 W*"),
        ("1f1b", 1, False, 0, "F0 F1 B0 F2 B1 F3 B2 B3"),
        ("1f1b", 1, False, 1, "F0 I0 W0 F1 I1 W1 F2 I2 W2 F3 I3 W3"),
        ("1f1b", 1, True, 1, "F0 I0 F1 I1 F2 I2 F3 I3 W*"),
        ("pipedream", 1, False, 0, "F0 F1 B0 F2 B1 F3 B2 B3"),
        ("pipedream", 1, False, 1, "F0 I0 W0 F1 I1 W1 F2 I2 W2 F3 I3 W3"),
        ("sequential", 1, False, 1, "F0 B0 F1 B1 F2 B2 F3 B3"),
        ("zero-bubble", 1, False, 0, "F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3"),
        ("zero-bubble", 1, False, 1, "F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3"),
        ("zero-bubble", 1, True, 1, "F0 I0 F1 I1 F2 I2 F3 I3 W*"),
        ("interleaved", 2, False, 0,
         "F0 F1 F0b F1b F2 I0b W0b F3 I1b W1b F2b B0 F3b B1 I2b W2b I3b W3b B2 B3"),
        ("interleaved", 2, False, 1,
         "F0 F1 F0b I0b W0b F1b I1b W1b F2 I0 W0 F3 I1 W1 F2b I2b W2b F3b I3b W3b I2 W2 I3 W3"),
    ],
)  # fmt: skip
def test_the_order_of_two_stages_and_four_micro_batches(name, chunks, deferred, stage, due):
    steps = PIPELINES[name](stage, 2, 4, chunks, deferred=deferred)
    assert told(steps, messages=False) == due


def test_the_messages_of_1f1b():
    """A stage takes a gradient before it sends an activation, whose receiver sends one, too."""
    first, last = PIPELINES["1f1b"].plan(2, 3)
    assert told(first) == "F0 a>0 F1 g<0 a>1 B0 F2 g<1 a>2 B1 g<2 B2"
    assert told(last) == "a<0 F0 I0 g>0 W0 a<1 F1 I1 g>1 W1 a<2 F2 I2 g>2 W2"


def test_in_a_wave_a_stage_sends_before_it_receives():
    """So that no stage waits for those behind it to be through, and they for those behind them."""
    assert told(PIPELINES["gpipe"](1, 3, 2)) == (
        "a<0 F0 a>0 a<1 F1 a>1 g<0 I0 g>0 W0 g<1 I1 g>1 W1"
    )


def test_weights_wait_for_the_sends_of_the_same_pass():
    assert told(PIPELINES["zero-bubble"](1, 3, 2)) == (
        "a<0 F0 a>0 a<1 F1 g<0 a>1 I0 g>0 g<1 I1 g>1 W0 W1"
    )


def test_deferred_weights_of_the_chunk_that_is_back_first_are_first():
    steps = PIPELINES["interleaved"](1, 2, 2, 2, deferred=True)
    assert told(steps).endswith(" I0 g>0 g<1 I1 g>1 W*b W*")


def test_slots():
    row = PIPELINES["interleaved"]
    assert most_alive(row(0, 2, 4, 2), 2) == (4, 2)
    assert most_alive(row(0, 2, 4, 2, deferred=True), 2) == (4, 4)
    # Received, but not yet forward, counts.
    one, two = (PipelineStep(Kind.RECEIVE_ACTIVATION, m, 0, 0) for m in range(2))
    assert most_alive([one, two, PipelineStep(Kind.FORWARD, 0)]) == (2,)


def test_steps_in_words():
    lines = [str(step) for step in PIPELINES["interleaved"](1, 2, 2, 2, deferred=True)]
    assert lines[0] == "receive activation of 0 from 0"
    assert {"forward of 1 in chunk 1", "backward-weight of all in chunk 1"} < {*lines}


@each("name", PIPELINES)
def test_names(name):
    form = next(it for it in forms() if it.startswith(name))
    found = schedule_of(form.replace("V", "3"))
    assert found == (name, 3 if found.row.chunked else 1)
    assert str(found) == form.replace("V", "3")


@each(
    ("text", "words"),
    [
        ("gpipes", "must be one of sequential, gpipe, 1f1b, interleaved:V, "),
        ("gpipe:2", "(did you mean gpipe?), got 'gpipe:2'"),
        (
            "interleaved",
            "must have the chunks of a stage, 2 or more, as in interleaved:2",
        ),
        ("interleaved:1", "2 or more, as in interleaved:2, got 'interleaved:1'"),
        ("interleaved:²", "as in interleaved:2, got 'interleaved:²'"),
    ],
)
def test_names_that_are_none(text, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        schedule_of(text)
    with pytest.raises(ConfigError, match="weights of pipedream cannot be deferred"):
        list(PIPELINES["pipedream"](0, 2, 4, deferred=True))
    with pytest.raises(ConfigError, match="gpipe needs at least one stage, micro-batch and chunk"):
        list(PIPELINES["gpipe"](0, 2, 0))
