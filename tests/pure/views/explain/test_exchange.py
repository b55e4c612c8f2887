"""Shards and codecs as shown: what the real roles did, every bit of a frame, and what is kept."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from psrt.cli import explain
from psrt.codec import CODECS, draws
from psrt.codec.casts import Float16
from psrt.codec.matrices import Matrix
from psrt.config import TrainConfig
from psrt.views.explain.codec import example_of
from psrt.views.explain.codec import run as run_codec
from psrt.views.explain.codec_output import as_document as codec_document
from psrt.views.explain.codec_output import as_text as codec_text
from psrt.views.explain.exchange import (
    BACKWARD,
    FORWARD,
    PUSH,
    PUSHES,
    READ,
    UPDATE,
    UPDATES,
    lesson,
    run,
)
from support.cases import each

STEPS = 3
MODES = ("sync", "async", "ssp", "softsync")
EVERY_MODE = pytest.mark.parametrize("mode", MODES)
EVERY_CUT = pytest.mark.parametrize(("servers", "cut"), [(1, 1), (2, 4), (1, 3)])


def exchange(mode="sync", servers=1, shards=4, workers=2, slow=None, **more):
    config = TrainConfig(mode=mode, servers=servers, shards_per_server=shards, steps=STEPS, **more)
    return run(config, workers=workers, slow=slow or {})


def of(found, what, number=None):
    return [bar for bar in found.bars if bar.what == what and number in (None, bar.number)]


@EVERY_CUT
@EVERY_MODE
def test_every_shard_of_every_step_is_pushed_updated_and_read(mode, servers, cut):
    found = exchange(mode, servers, cut)
    shards = servers * cut
    for worker in range(2):
        for what in (PUSH, READ):
            parts = [bar.part for bar in of(found, what, worker)]
            assert sorted(parts) == sorted(list(range(shards)) * STEPS)
        # Forward takes a product a layer, backward two, but one for the first layer.
        layers = max(8, shards)
        for what, share in ((FORWARD, layers), (BACKWARD, 2 * layers - 1)):
            seconds = sum(bar.stop - bar.start for bar in of(found, what, worker))
            assert seconds == pytest.approx(STEPS * share / (3 * layers - 1))
    for server in range(servers):
        updates = of(found, UPDATE, server)
        assert {bar.part for bar in updates} == set(range(server, shards, servers))
        if mode != "softsync":  # which saves gradients, besides
            total = sum(bar.stop - bar.start for bar in updates)
            assert total == pytest.approx(STEPS * UPDATES)


@EVERY_CUT
@EVERY_MODE
def test_a_link_carries_one_message_at_a_time_for_as_long_as_the_legend_says(mode, servers, cut):
    found = exchange(mode, servers, cut)
    for what, server in itertools.product((PUSH, READ), range(servers)):
        bars = [bar for bar in of(found, what) if bar.part % servers == server]
        total = sum(bar.stop - bar.start for bar in bars)
        assert total == pytest.approx(STEPS * PUSHES, rel=0.03)  # a frame around each
        if what == PUSH:  # of replies the servers' links are the senders'
            for one, after in itertools.pairwise(sorted(bars, key=lambda bar: bar.stop)):
                assert one.stop <= after.start + 1e-9


@EVERY_MODE
def test_a_shard_is_pushed_when_its_layers_are_done(mode):
    found = exchange(mode, shards=8)
    for worker in range(2):
        ends = [(bar.part, bar.stop) for bar in of(found, BACKWARD, worker)]
        for push in of(found, PUSH, worker):
            assert any((push.part, pytest.approx(push.since)) == end for end in ends)


@EVERY_MODE
def test_more_shards_hide_more_and_a_step_gets_shorter(mode):
    found = [exchange(mode, shards=it) for it in (1, 2, 4, 8)]
    assert [it.step for it in found] == sorted((it.step for it in found), reverse=True)
    assert [it.hidden() for it in found] == sorted(it.hidden() for it in found)
    assert found[0].step == found[0].whole == found[3].whole
    assert found[3].step < 0.75 * found[3].whole
    assert found[0].hidden() < 0.05 < 0.6 < found[3].hidden()
    if mode == "sync":  # of two shards one is pushed beside computing: one of four messages
        assert found[1].hidden() == pytest.approx(0.25)
    assert f"{found[3].step:.2f} gradients, {found[3].whole:.2f} with one shard" in lesson(found[3])


def test_the_command(capsys, tmp_path):
    path = tmp_path / "shards.svg"
    words = f"ssp --shards-per-server 1 --workers 3 --steps 2 --slow 1:2 --json --svg {path}"
    assert explain.main(words.split()) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["workers"], document["steps"], document["slow"]) == (3, 2, [1, 2, 1])
    svg = path.read_text()
    assert svg.count("<rect") > len(document["bars"])
    assert all(f">{name}</text>" in svg for name in ("worker 1", "pushes", "reads", "server 0"))
    explain.main(["sync"])
    assert "with --shards-per-server" not in capsys.readouterr().out
    words = "local-sgd:local-steps=1 --servers 1 --shards-per-server 2 --steps 2"
    explain.main(words.split())
    assert capsys.readouterr().out.startswith("local-sgd (1 local step)")


# Codecs.


def small(codec):
    """Return the row that is shown."""
    row = CODECS[codec]
    return replace(row, **row.small).settled(scales=True)


def explained(codec, values=None, **rest):
    row = small(codec)
    values = example_of(row) if values is None else values
    return run_codec(row, values, error_feedback=row.is_fed_back, **rest)


def frame_of(codec, values, seed=0):
    side = math.isqrt(len(values))
    matrices = [Matrix(0, side, side)] if "rank" in CODECS[codec].knobs else []
    encoder = small(codec).encoder(len(values), matrices=matrices)
    return encoder.encode(np.array(values, np.float32), draws(seed, 0, 0, 0)).tobytes()


@each("codec", CODECS)
@each("n", [1, 5, 8, 16, 70])
def test_every_bit_of_the_frame_is_explained(codec, n):
    values = tuple(float(it) for it in np.random.default_rng(n).standard_normal(n))
    if n in (8, 16):
        values = example_of(CODECS[codec])
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


def test_a_codec_that_says_nothing_of_its_parts_is_shown_byte_by_byte():
    class Silent(Float16):
        parts_of_element = ()

    codec, out = Silent(2), np.empty(2, np.float32)
    frame = codec.encode(np.array([1, -2], np.float32), None)
    codec.decode(frame, out)
    meanings = [field.meaning for field in codec.fields(frame, out)]
    assert meanings[6:] == [f"byte {i} of the payload: {it}" for i, it in enumerate(frame[-4:])]


def test_indices_in_each_form():
    few = explained("threshold", [0.0] * 100 + [5.0] * 3)
    assert any("between" in field.meaning for field in few.steps[0].fields)
    dense = explained("top-k")
    assert any("which of" in field.meaning for field in dense.steps[0].fields)


@each("codec", CODECS)
def test_nothing_is_lost_but_what_is_kept_back(codec):
    found = explained(codec, steps=3)
    if not found.error_feedback:
        return
    kept = np.zeros_like(found.steps[0].given)
    for step in found.steps:
        np.testing.assert_array_equal(step.encoded, step.given + kept)
        np.testing.assert_allclose(step.decoded + step.residual, step.encoded, atol=1e-6)
        kept = step.residual


@each("codec", CODECS)
def test_the_flags_that_it_prints_give_the_same_again(codec, capsys):
    row = CODECS[codec]
    asked = [[]] + [["--no-error-feedback"]] * (row.feeds_back is not None)
    words = [[codec, *it] for it in asked]
    for given in [*words, *([[f"{codec}:scaled=false"]] if "scaled" in row.knobs else [])]:
        explain.main(["codec", *given])
        text = capsys.readouterr().out
        assert text.startswith(f"{codec}: ")
        assert max(map(len, text.splitlines())) <= 110
        if given == [codec]:
            assert text.rstrip() == codec_text(explained(codec))
        shown = text.splitlines()[1].removeprefix("settings: ")
        explain.main(["codec", *shown.split()])
        assert capsys.readouterr().out == text
    explain.main(["codec", codec, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(json.dumps(codec_document(explained(codec))))
