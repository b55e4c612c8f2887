"""Shards as drawn: what the real roles did, and that it overlaps as they say."""

from __future__ import annotations

import itertools
import json

import pytest

from psrt.cli import explain
from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.explain.exchange import (
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
from psrt.explain.exchange_output import FORMAT, as_document, as_text, draw

STEPS = 3
MODES = ("sync", "async", "ssp", "softsync")
EVERY_MODE = pytest.mark.parametrize("mode", MODES)
EVERY_CUT = pytest.mark.parametrize(
    ("servers", "each"), [(1, 1), (1, 4), (1, 8), (2, 1), (2, 4), (1, 3)]
)


def exchange(mode="sync", servers=1, each=4, workers=2, slow=None, **more):
    config = TrainConfig(mode=mode, servers=servers, shards_per_server=each, steps=STEPS, **more)
    return run(config, workers=workers, slow=slow or {})


def of(found, what, number=None):
    return [bar for bar in found.bars if bar.what == what and number in (None, bar.number)]


@EVERY_CUT
@EVERY_MODE
def test_every_shard_of_every_step_is_pushed_updated_and_read(mode, servers, each):
    found = exchange(mode, servers, each)
    shards = servers * each
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
def test_a_link_carries_one_message_at_a_time_for_as_long_as_the_legend_says(mode, servers, each):
    found = exchange(mode, servers, each)
    for what, server in itertools.product((PUSH, READ), range(servers)):
        bars = [bar for bar in of(found, what) if bar.part % servers == server]
        total = sum(bar.stop - bar.start for bar in bars)
        assert total == pytest.approx(STEPS * PUSHES, rel=0.03)  # a frame around each
        if what == PUSH:  # of replies the servers' links are the senders'
            for one, after in itertools.pairwise(sorted(bars, key=lambda bar: bar.stop)):
                assert one.stop <= after.start + 1e-9


@EVERY_MODE
def test_a_shard_is_pushed_when_its_layers_are_done(mode):
    found = exchange(mode, each=8)
    for worker in range(2):
        ends = {(bar.part, round(bar.stop, 9)) for bar in of(found, BACKWARD, worker)}
        for push in of(found, PUSH, worker):
            assert (push.part, round(push.since, 9)) in ends


@EVERY_MODE
def test_more_shards_hide_more_and_a_step_gets_shorter(mode):
    found = [exchange(mode, each=each) for each in (1, 2, 4, 8)]
    assert [it.step for it in found] == sorted((it.step for it in found), reverse=True)
    assert [it.hidden() for it in found] == sorted(it.hidden() for it in found)
    assert found[0].step == found[0].whole == found[3].whole
    assert found[3].step < 0.75 * found[3].whole
    assert found[0].hidden() < 0.05 < 0.6 < found[3].hidden()
    assert f"{found[3].step:.2f} gradients, {found[3].whole:.2f} with one shard" in lesson(found[3])


def test_the_text():
    text = as_text(exchange(each=2, workers=1), width=70)
    for line in ("worker 0  computes  ░░░", "          pushes    ", "server 0  updates   "):
        assert line in text
    assert text.startswith("sync · 1 worker, 1 server · 2 shards a server · 3 steps each\n")
    rows = [line[20:] for line in text.splitlines()[1:5]]
    computing, pushes, reads, updates = (row.ljust(70) for row in rows)
    assert set(computing) == set("░█ ")
    assert set(pushes) <= set("01· ")
    assert any(a == "█" and b == "1" for a, b in zip(computing, pushes, strict=True))
    assert not any(a == "█" and b == "0" for a, b in zip(computing, reads, strict=True))
    assert [key for key, _ in itertools.groupby(updates.replace(" ", ""))] == list("101010")


@EVERY_CUT
def test_the_drawing(servers, each):
    found = exchange("ssp", servers, each)
    svg = draw(found).as_text()
    assert svg.count("<rect") > len(found.bars)
    assert all(f">{name}</text>" in svg for name in ("worker 1", "pushes", "reads", "server 0"))


def test_the_document():
    found = exchange(each=2)
    document = as_document(found)
    assert document["format"] == FORMAT
    assert (document["shards"], document["servers"], document["workers"]) == (2, 1, 2)
    assert len(document["bars"]) == len(found.bars)
    keys = {bar["what"]: set(bar) - {"start", "stop", "what"} for bar in document["bars"]}
    assert keys == {
        FORWARD: {"worker", "layer"},
        BACKWARD: {"worker", "layer"},
        PUSH: {"worker", "shard", "since"},
        READ: {"worker", "shard", "since"},
        UPDATE: {"server", "shard"},
    }


def test_the_command(capsys, tmp_path):
    def ran(words):
        assert explain.main(words.split()) == 0
        return capsys.readouterr().out

    assert ran("sync --shards-per-server 4").startswith(
        "sync · 2 workers, 1 server · 4 shards a server · 3 steps each\n"
    )
    path = tmp_path / "shards.svg"
    words = f"ssp --shards-per-server 1 --workers 3 --steps 2 --slow 1:2 --json --svg {path}"
    document = json.loads(ran(words))
    assert (document["workers"], document["steps"], document["slow"]) == (3, 2, [1, 2, 1])
    assert path.read_text().startswith("<svg")
    assert "with --shards-per-server" not in ran("sync")
    local = ran("local-sgd --servers 1 --shards-per-server 2 --steps 2 --local-steps 1")
    assert local.startswith("local-sgd (1 local step)")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sync --shards-per-server 37", "37 shards cannot be drawn, at most 36 can"),
        ("sync --shards-per-server 9 --servers 5", "45 shards cannot be drawn"),
        ("sync --shards-per-server 0", "shards-per-server must be at least 1, got 0"),
        ("sync --shards-per-server 2 --workers 17", "workers must be at most 16, got 17"),
        ("allreduce --shards-per-server 2", "--shards-per-server 2 has no effect with --mode"),
        ("sync --shards-per-server 2 --slow 2:3", "slow names worker 2 that does not exist"),
    ],
)
def test_mistakes(words, message):
    with pytest.raises(ConfigError) as caught:
        explain.main(words.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
