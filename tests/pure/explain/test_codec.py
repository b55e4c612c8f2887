"""A codec explained: every bit of its frame, and what is kept back."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from psrt.cli import explain
from psrt.codec import TABLE, draws, make_encoder
from psrt.codec.matrices import Matrix
from psrt.errors import ConfigError
from psrt.explain.codec import example_of, run, small_knobs
from psrt.explain.codec_output import FORMAT, as_document, as_text


def explained(codec, values=None, **rest):
    knobs = small_knobs(codec)
    feeds_back = TABLE[codec].feeds_back_with(knobs)
    values = example_of(codec) if values is None else values
    return run(codec, values, knobs=knobs, error_feedback=feeds_back, **rest)


def frame_of(codec, values, seed=0):
    side = math.isqrt(len(values))
    matrices = [Matrix(0, side, side)] if "rank" in TABLE[codec].knobs else []
    encoder = make_encoder(codec, len(values), matrices=matrices, **small_knobs(codec))
    return encoder.encode(np.array(values, np.float32), draws(seed, 0, 0, 0)).tobytes()


@pytest.mark.parametrize("codec", TABLE)
@pytest.mark.parametrize("n", [1, 2, 5, 8, 11, 16, 70])
def test_every_bit_of_the_frame_is_explained(codec, n):
    values = tuple(float(it) for it in np.random.default_rng(n).standard_normal(n))
    if n in (8, 16):
        values = example_of(codec)
    [step] = explained(codec, values, seed=3).steps
    whole, at = int.from_bytes(frame_of(codec, values, 3), "little"), 0
    for field in step.fields:
        assert field.at == at
        bits = field.bits.replace(" ", "")
        assert len(bits) == field.size
        assert int(bits, 2) == whole >> at & ((1 << field.size) - 1)
        assert field.meaning
        at += field.size
    assert at == 8 * step.nbytes


@pytest.mark.parametrize("codec", TABLE)
def test_nothing_is_lost_but_what_is_kept_back(codec):
    found = explained(codec, steps=3)
    if not found.error_feedback:
        return
    kept = np.zeros_like(found.steps[0].given)
    for step in found.steps:
        np.testing.assert_array_equal(step.encoded, step.given + kept)
        np.testing.assert_allclose(step.decoded + step.residual, step.encoded, atol=1e-6)
        kept = step.residual


def test_indices_in_each_form():
    few = explained("threshold", [0.0] * 100 + [5.0] * 3)
    assert any("between" in field.meaning for field in few.steps[0].fields)
    dense = explained("top-k")
    assert any("which of" in field.meaning for field in dense.steps[0].fields)


@pytest.mark.parametrize("codec", TABLE)
def test_what_is_printed(codec, capsys):
    assert explain.main(["codec", codec, "--steps", "2"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0].startswith(f"{codec}: ")
    assert {"step 0", "step 1"} <= set(lines)
    assert text.count("on the wire: 20 bytes of header") == 2
    assert max(map(len, lines)) <= 110
    assert text.rstrip() == as_text(explained(codec, steps=2))


@pytest.mark.parametrize("codec", TABLE)
def test_the_flags_that_it_prints_give_the_same_again(codec, capsys):
    row = TABLE[codec]
    asked = [[]] + [["--no-error-feedback"]] * (row.feeds_back is not None)
    for given in [*asked, *([["--no-codec-scaled"]] if "scaled" in row.knobs else [])]:
        explain.main(["codec", codec, *given])
        text = capsys.readouterr().out
        flags = [line.removeprefix("with ") for line in text.splitlines() if line[:5] == "with "]
        explain.main(["codec", codec, *" ".join(flags).split()])
        assert capsys.readouterr().out == text


def test_the_document(capsys):
    assert explain.main(["codec", "sign", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(json.dumps(as_document(explained("sign"))))
    assert document["format"] == FORMAT
    assert document["steps"][0]["fields"][0]["meaning"] == "number of the codec: 10"


def test_knobs_and_a_vector_of_ones_own(capsys):
    words = "random-k --error-feedback --codec-density 0.5 --values 1,2,3,4"
    explain.main(["codec", *words.split()])
    text = capsys.readouterr().out
    assert "--codec-density 0.5 --no-codec-scaled --error-feedback" in text
    assert "elements sent: 2" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "required: NAME; psrt explain codec --help says more"),
        ("zip", "nonzero, got 'zip'"),
        ("sgin", "nonzero, got 'sgin' (did you mean sign?)"),
        ("sign --codec-density 0.1", "--codec-density 0.1 has no effect with --codec sign"),
        ("int8 --error-feedback", "--error-feedback has no effect with --codec int8"),
        ("random-k --error-feedback --codec-scaled", "cannot be combined with --codec-scaled"),
        ("top-k --codec-density 2", "codec-density must be at most 1, got 2"),
        ("sign --codec-bucket 12", "--codec-bucket 12 must be a multiple of 8 with --codec sign"),
        ("sign --values 1,x", "values must be a finite number, got 'x'"),
        ("sign --steps 0", "steps must be at least 1, got 0"),
        ("sign --values " + ",".join(["1"] * 257), "values must be at most 256 numbers"),
    ],
)
def test_what_will_not_do(words, told):
    with pytest.raises(ConfigError) as caught:
        explain.main(["codec", *words.split()])
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
