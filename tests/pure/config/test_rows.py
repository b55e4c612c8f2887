"""Rows: their texts, what is refused of them, those of other packages, and what files once had."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace

import pytest

from psrt.cli.flags import parse_train
from psrt.codec import CODECS
from psrt.codec.table import CodecRow, Demo, RandomK, Sign, TopK
from psrt.config import TrainConfig, from_toml, resolve, to_toml
from psrt.config.former import as_spelled_now
from psrt.config.modes import EASGD, AllReduce, Gossip, LocalSGD
from psrt.core.errors import ConfigError
from psrt.history import Header
from psrt.history.header import sealed
from psrt.optim.table import OuterNesterov
from psrt.rows.knobs import knob
from psrt.rows.row import Rows
from psrt.rows.values import TEXT
from support.cases import each
from support.histories import header_of


@each(("text", "row", "short"), [
    ("sign", Sign(), "sign"),
    ("top-k:density=0.10", TopK(0.1), "top-k:density=0.1"),
    ("demo: kept = 4, chunk=8", Demo(8, 4), "demo:chunk=8,kept=4"),
    ("random-k:scaled=false", RandomK(scaled=False), "random-k:scaled=false"),
])  # fmt: skip
def test_a_row_is_what_its_text_says(text, row, short):
    assert CODECS.read(text) == row
    assert str(row) == short
    assert CODECS.read(row.text) == CODECS.read(short) == CODECS.accept(row) == row


def test_a_row_has_the_bits_that_its_text_has():
    assert repr(OuterNesterov(momentum=-0.0)) == repr(OuterNesterov(momentum=0.0))


@dataclass(frozen=True)
class Twofold(CodecRow):
    name, code, times = "twofold", 97, ((1, 1), (1, 1))
    inner: CodecRow | None = knob(None, CODECS.kind, "first", rows=CODECS)  # noqa: RUF009
    label: str = knob("a", TEXT, "what it is called")


TWOFOLD = Rows("codec", "psrt.codecs", CodecRow, [Twofold])


@each(("text", "row", "short"), [
    ("twofold", Twofold(), "twofold"),
    ("twofold:inner=demo:kept=4", Twofold(Demo(kept=4)), "twofold:inner=demo,inner.kept=4"),
    ("twofold:inner=demo,label=b,inner.kept=4,inner.chunk=8", Twofold(Demo(8, 4), "b"),
     "twofold:inner=demo,inner.chunk=8,inner.kept=4,label=b"),
])  # fmt: skip
def test_a_knob_may_be_a_row_whose_knobs_follow_behind_a_dot(text, row, short):
    assert TWOFOLD.read(text) == row
    assert str(row) == short
    assert TWOFOLD.read(row.text) == TWOFOLD.read(short) == row


@each(("text", "line"), [
    ("inner.kept=4", "twofold has inner.kept without inner=NAME before it"),
    ("inner=demo,inner.kept", "twofold has inner.kept without =VALUE"),
    ("inner=demo,inner.kept=1,inner.kept=2", "twofold: inner demo has kept twice"),
    ("inner=demo,inner.keep=1", "twofold: inner demo has no knob 'keep' .did you mean kept?"),
])  # fmt: skip
def test_what_will_not_do_of_a_row_inside_another(text, line):
    with pytest.raises(ConfigError, match=f"^{line}"):
        TWOFOLD.read(f"twofold:{text}")


def test_a_text_that_a_list_of_knobs_cannot_hold_is_refused():
    for text in ("a,b", " a"):
        with pytest.raises(ConfigError, match=r"^twofold: label cannot have a comma, or blanks"):
            Twofold(label=text)


def test_files_have_all_knobs_as_defaults_may_change():
    config = resolve(TrainConfig(mode="sync", codec="random-k"), ranks=2)
    assert 'codec = "random-k:density=0.01,scaled=true"' in to_toml(config)
    assert from_toml(to_toml(config)) == config
    assert config.plain()["codec"] == "random-k:density=0.01,scaled=true"


@each(("flag", "line"), [
    ("--codec topk", "codec must be one of .*, got 'topk' .did you mean top-k?"),
    ("--codec fp16", ".*got 'fp16' .did you mean float16?"),
    ("--codec top-k:", "codec top-k has no knob ''; it has density"),
    ("--codec nonzero:a=1", "codec nonzero has no knob 'a'; it has none"),
    ("--codec top-k:densty=1", "codec top-k has no knob 'densty' .did you mean density?"),
    ("--codec sign:levels=3", "codec sign has no knob 'levels', which is one of qsgd"),
    ("--codec top-k:density", "codec top-k has density without =VALUE"),
    ("--codec top-k:density=1,density=1", "codec top-k has density twice"),
    ("--codec top-k:density=a", "codec top-k: density must be a finite number, got 'a'"),
    ("--codec top-k:density=2", "codec top-k: density must be at most 1, got 2"),
    ("--mode local-sgd:outer.lr=3", "mode local-sgd has outer.lr without outer=NAME before it"),
    ("--mode ssp:2", "mode ssp has no knob '2': write staleness=2"),
    ("--mode ssp:backup=1", "mode ssp has no knob 'backup', which is one of sync"),
    ("--mode gossip:push-sum=true", "mode gossip has no knob 'push-sum'"),
    ("--staleness 3", "unknown flag --staleness: it is now --mode ssp:staleness=..."),
    ("--no-overlap", "unknown flag --no-overlap: it is now --mode allreduce:overlap=..."),
    ("--softsync 2", "unknown flag --softsync: it is now --mode softsync:k=..."),
    ("--outer-lr 1", "unknown flag --outer-lr: it is now "
     "--mode local-sgd:outer=nesterov,outer.lr=..."),
    ("--push-sum", "unknown flag --push-sum: it is now --mode gossip:variant=push-sum"),
    ("--fsdp", "unknown flag --fsdp .did you mean --mode allreduce:shard=...?"),
    ("--codec-density 0.1", "unknown flag --codec-density: it is now --codec top-k:density=..."),
    ("--no-codec-scaled", "unknown flag --no-codec-scaled: it is now --codec random-k:scaled=..."),
])  # fmt: skip
def test_what_will_not_do_is_one_line(flag, line):
    with pytest.raises(ConfigError, match=f"^{line}") as caught:
        parse_train(flag.split())
    assert "\n" not in str(caught.value)


@each(("value", "line"), [
    (3, "codec must be the name of a codec, such as 'float16', got 3"),
    ({"density": 0.1}, "codec must be the name of a codec"),
])  # fmt: skip
def test_what_is_no_row(value, line):
    with pytest.raises(ConfigError, match=line):
        TrainConfig(codec=value)


# Once the knobs of codecs were knobs of the run.

FORMER = {"codec": "sign", "codec_reply": "float8-e4m3", "codec_bucket": 64, "codec_density": None}


def test_files_that_have_former_knobs_are_read():
    text = "\n".join(f"{name} = {json.dumps(it)}" for name, it in FORMER.items() if it)
    now = TrainConfig(mode="async", codec="sign:bucket=64", codec_reply="float8-e4m3:bucket=64")
    assert from_toml(f'mode = "async"\n{text}') == now
    header = header_of(resolve(now, ranks=2), workers=1, servers=1)
    values = json.loads(header.to_json())
    values["config"] |= FORMER
    del values["crc32"]
    assert Header.from_json(sealed(values)) == Header.from_json(header.to_json())


@each(("values", "mode"), [
    ({"mode": "ssp", "staleness": 2}, "ssp:staleness=2"),
    ({"mode": "softsync", "softsync": 2}, "softsync:k=2"),
    ({"mode": "sync", "backup": 1, "local_steps": None, "push_sum": None}, "sync:backup=1"),
    ({"backup": 1}, "sync:backup=1"),
    ({"mode": "easgd", "asynchronous": True, "elastic": 0.5}, EASGD(0.5, asynchronous=True)),
    ({"mode": "local-sgd", "local_steps": 4, "outer": "nesterov:lr=0.5,momentum=0.25"},
     LocalSGD(4, outer=OuterNesterov(0.5, 0.25))),
    ({"mode": "local-sgd", "outer": "nesterov", "outer_lr": 0.5},
     LocalSGD(outer=OuterNesterov(0.5))),
    ({"mode": "allreduce", "overlap": False, "shard": "optimizer"},
     AllReduce(overlap=False, shard="optimizer")),
    ({"mode": "gossip", "topology": "star", "asynchronous": True, "push_sum": False},
     Gossip("star", "pairs")),
    *(({"mode": "gossip", it.replace("-", "_"): True, "asynchronous": False}, Gossip(variant=it))
      for it in ("push-sum", "gradient-tracking", "by-host")),
])  # fmt: skip
def test_files_of_before_modes_had_knobs_are_read(values, mode):
    now = TrainConfig(mode=mode)
    text = "\n".join(f"{name} = {json.dumps(it)}" for name, it in values.items() if it is not None)
    assert from_toml(text) == now
    assert TrainConfig(**as_spelled_now(values)) == now


@each(("text", "line"), [
    ('mode = "sync"\nstaleness = 3', "it is now --mode ssp:staleness=..."),
    ("local_steps = 4", "it is now --mode local-sgd:local-steps=..."),
    ('mode = "ssp"\npush_sum = true', "it is now --mode gossip:variant=push-sum"),
    ('mode = "ssp:staleness=2"\nstaleness = 3', "unknown key 'staleness'"),
    ('mode = "gossip"\nby_host = true\npush_sum = true', "push_sum and by_host are variants"),
    ('mode = "gossip"\npush_sum = "false"', "push-sum must be true or false, got 'false'"),
    ('mode = "gossip"\nasynchronous = true\npush_sum = true', "asynchronous and push_sum are "),
])  # fmt: skip
def test_former_knobs_that_no_mode_takes(text, line):
    with pytest.raises(ConfigError, match=line):
        from_toml(text, source="run.toml")


def test_a_difference_is_not_scaled_whatever_a_file_says():
    text = 'mode = "async"\ncodec = "random-k"\ncodec_reply = "random-k"\ncodec_scaled = true'
    assert from_toml(text).codec_reply == RandomK()


@each(("text", "line"), [
    ('codec = "sign"\ncodec_density = 0.1', "it is now --codec top-k:density=..."),
    ("codec_density = 0.1", "it is now --codec top-k:density=..."),
    ('codec = "top-k"\ncodec_density = 7', "run.toml: top-k: density must be at most 1, got 7"),
    ('codec = "top-k:density=0.1"\ncodec_density = 0.2', "unknown key 'codec_density'"),
])  # fmt: skip
def test_former_knobs_that_no_codec_takes(text, line):
    with pytest.raises(ConfigError, match=line):
        from_toml(text, source="run.toml")


def test_a_former_knob_is_named_as_it_is_now():
    with pytest.raises(ConfigError, match=r"^there is no knob codec_bucket: it is now codec='"):
        TrainConfig(codec="sign", codec_bucket=8)
    with pytest.raises(ConfigError, match=r"^there is no knob staleness: it is now mode='ssp:st"):
        TrainConfig(staleness=3)


# Rows of other packages.

PACKAGE = """
from psrt.codec.table import CodecRow

class Half(CodecRow):
    name, code, summary = "half", 99, "a codec of somebody else"
    home = "psrt.codec.casts:Float16"
    times = ((1, 1), (1, 1))
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Return what installs a package with these entry points, and gives the codecs of psrt."""

    def install(points, name="psrt.codecs"):
        info = tmp_path / "elsewhere-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Name: elsewhere\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{name}]\n{points}\n")
        (tmp_path / "elsewhere.py").write_text(PACKAGE)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "elsewhere", raising=False)
        return Rows("codec", name, CodecRow, [type(row) for row in CODECS.values()])

    return install


def test_a_row_of_another_package_is_a_row(elsewhere):
    codecs = elsewhere("half = elsewhere:Half")
    assert codecs.read("half").summary == "a codec of somebody else"
    assert list(codecs) == [*CODECS, "half"]
    assert "half" in codecs.where(lambda row: row.code > 20)


@each(("points", "line"), [
    ("half = nowhere:Half", "codec half cannot be loaded from nowhere:Half: No module named"),
    ("sign = elsewhere:Half", "elsewhere:Half cannot be codec sign: it is not a CodecRow"),
    ("none = elsewhere:PACKAGE", "codec none cannot be loaded from"),
])  # fmt: skip
def test_a_package_whose_row_is_none(elsewhere, points, line):
    codecs = elsewhere(points)
    with pytest.raises(ConfigError, match=line):
        list(codecs)


def test_a_row_without_an_entry_point_is_refused():
    @dataclass(frozen=True)
    class Mine(CodecRow):
        name, code, times = "mine", 98, ((1, 1), (1, 1))

    with pytest.raises(ConfigError, match=r"declares it under the entry point psrt.codecs"):
        TrainConfig(codec=Mine())


def test_a_row_is_checked_however_it_is_made():
    for make in (lambda: TopK(2), lambda: replace(TopK(), density=2)):
        with pytest.raises(ConfigError, match=r"^top-k: density must be at most 1, got 2$"):
            make()
