"""Flags of train, show and bench: the knobs, their checks, and one line for every mistake."""

from __future__ import annotations

import re
from argparse import Namespace

import pytest

from psrt.cli import show
from psrt.cli.bench import main as bench
from psrt.cli.bench import run as written
from psrt.cli.flags import parse_train
from psrt.config import TrainConfig, from_toml, resolve
from psrt.config.knobs import knobs_of
from psrt.core.errors import ConfigError
from psrt.rows.knobs import dashed
from psrt.rows.values import SWITCH
from support.cases import each


def refusal(*argv):
    with pytest.raises(ConfigError) as caught:
        parse_train(argv)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_kind_of_flag():
    argv = (
        "--mode ssp:staleness=2 --lr 1e-2 --hidden 32,16 --overwrite --no-shared-memory "
        "--out=runs/a --epochs 2 --batch-size +8 "
        "--inject 1:slow:2:5,*:tail:0.1:2 --inject 0:delay:1"
    )
    assert parse_train(argv.split()) == TrainConfig(
        mode="ssp:staleness=2", lr=0.01, hidden=(32, 16), overwrite=True, shared_memory=False,
        out="runs/a", epochs=2.0, batch_size=8,
        inject=("1:slow:2:5", "*:tail:0.1:2", "0:delay:1"),
    )  # fmt: skip


@pytest.mark.parametrize(("argv", "message"), [
    (["--local-step", "3"],
     "unknown flag --local-step (did you mean --mode local-sgd:local-steps=...?)"),
    (["--epohs", "1"], "unknown flag --epohs (did you mean --epochs?)"),
    (["--lerning_rate", "1"], "unknown flag --lerning_rate (did you mean --lr?)"),
    (["--workers", "2"], "unknown flag --workers (psrt launch --workers W train starts W workers, "
     "and their servers)"),
    (["--restarts", "3"], "unknown flag --restarts (it is a flag of psrt launch, before train)"),
    (["--lr"], "--lr: expected one argument"),
    (["--lr", "fast"], "lr must be a finite number, got 'fast'"),
    (["--lr", "-0.1"], "lr must be above 0, got -0.1"),
    (["--batch-size", "1_0"], "batch-size must be a whole number, got '1_0'"),
    (["--batch-size", "٣"], "batch-size must be a whole number, got '٣'"),
    (["--batch-size", "9" * 25], f"batch-size must fit into 64 bits, got '{'9' * 25}'"),
    (["--hidden", "8,,8"], "hidden must be whole numbers of at least 1, like 128,64 (or none), got "
     "'8,,8'"),
    (["--out", ""], "out must not be empty, got ''"),
    (["--overwrite=yes"], "--overwrite/--no-overwrite: ignored explicit argument 'yes'"),
])  # fmt: skip
def test_what_will_not_do(argv, message):
    assert refusal(*argv) == message


def write(folder, text):
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@each("name", ["config", *(dashed(name) for name in knobs_of(TrainConfig))])
def test_two_dashes_are_no_value(name):
    said = refusal(f"--{name}=--")
    assert said.startswith(name)
    assert "'--'" in said


def test_flags_override_the_file(tmp_path):
    path = write(tmp_path, 'mode = "ssp:staleness=5"\nlr = 0.5\noverwrite = true')
    config = parse_train(["--lr", "0.25", "--config", path, "--no-overwrite"])
    assert config == TrainConfig(mode="ssp:staleness=5", lr=0.25, overwrite=False)


def test_one_length_overrides_the_other(tmp_path):
    path = write(tmp_path, "epochs = 3")
    assert parse_train(["--config", path, "--steps", "7"]) == TrainConfig(steps=7)
    assert parse_train(["--config", path, "--epochs", "7"]) == TrainConfig(epochs=7)
    assert refusal("--steps", "7", "--epochs", "3") == "give --epochs or --steps, not both"


def test_a_file_that_cannot_be_read(tmp_path):
    gone = str(tmp_path / "gone.toml")
    assert refusal("--config", gone) == f"{gone}: cannot be read: No such file or directory"
    assert refusal("--config", str(tmp_path)) == f"{tmp_path}: cannot be read: Is a directory"
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert refusal("--config", str(binary)) == f"{binary}: not a TOML file in UTF-8"
    path = write(tmp_path, "lr = 0")
    assert refusal("--config", path) == f"{path}: lr must be above 0, got 0"


def test_help_tells_every_flag_once_under_its_group(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_train(["--help-all"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for name, knob in knobs_of(TrainConfig).items():
        flag = "--" + name.replace("_", "-")
        assert len(re.findall(rf"^  {flag}[ ,]", text, re.MULTILINE)) == 1, flag
        negative = re.search(rf"--no-{flag[2:]}(?![-\w])", text)
        assert (negative is not None) == (knob.kind is SWITCH), flag
    words = " ".join(text.split())
    assert "staleness=N a worker starts a step only when every worker" in words
    assert "adam running mean over the root of the running mean square; --lr 0.002" in words


def flags_of(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        parse_train(["--help", *words])
    assert caught.value.code == 0
    return set(re.findall(r"^  --([\w-]+)[ ,\n]", capsys.readouterr().out, re.MULTILINE))


def test_help_shows_the_usual_flags(capsys):
    shown = flags_of(capsys) - {"help-all", "config", "quiet", "verbose"}
    usual = {it.replace("_", "-") for it, knob in knobs_of(TrainConfig).items() if knob.usual}
    assert shown == usual
    assert 12 <= len(usual) <= 20


@each(("topic", "some", "none"), [
    ("compression", {"codec", "error-feedback"}, {"lr", "staleness"}),
    ("lr", {"lr"}, {"mode", "codec"}),
    ("top-k", {"codec"}, {"lr"}),
])  # fmt: skip
def test_help_on_a_topic(topic, some, none, capsys):
    shown = flags_of(capsys, topic)
    assert some <= shown
    assert not none & shown
    assert "no topic 'kodec' (did you mean codec?)" in refusal("--help", "kodec")


@each(("word", "topic"), [
    ("backups", "backup"), ("wd", "weight-decay"), ("ddp", "allreduce"), ("zero", "shard"),
    ("num-servers", "servers"),
])  # fmt: skip
def test_help_answers_words_of_other_tools_by_topics_of_its_own(word, topic, capsys):
    assert f"no topic '{word}' (did you mean {topic}?)" in refusal("--help", word)
    flags_of(capsys, topic)


@each("topic", ["push-sum", "sequential", "adapt-then-combine"])
def test_help_on_what_a_knob_of_a_row_chooses(topic, capsys):
    with pytest.raises(SystemExit):
        parse_train(["--help", topic])
    assert topic in capsys.readouterr().out


def test_help_on_a_knob_of_some_rows(capsys):
    with pytest.raises(SystemExit):
        parse_train(["--help", "local-steps"])
    text = capsys.readouterr().out
    assert re.findall(r"^  ([\w-]+) +workers train alone", text, re.MULTILINE) == [
        "local-sgd", "easgd",
    ]  # fmt: skip


@pytest.mark.parametrize(("words", "hint"), [
    ("--hidden 128 64", "unexpected argument '64' (did you mean --hidden 128,64?)"),
    ("--inject 1:slow:3 2:slow:4", "(did you mean --inject 1:slow:3,2:slow:4?)"),
    ("--parallel pipeline=2", "(did you mean pipeline:2?), got 'pipeline=2'"),
    ("--codec-reply bf16 --codec top-k", "got 'bf16' (did you mean bfloat16?)"),
])  # fmt: skip
def test_what_a_user_of_other_tools_types(words, hint):
    assert refusal(*words.split()).endswith(hint)


def test_what_comes_after_two_dashes_is_not_taken_for_a_flag():
    for words in ("-- --quiet", "--quiet -- --epochs=3"):
        assert "': flags go before --" in refusal(*words.split())


# What psrt show makes of them.


def test_what_show_prints_is_the_resolved_config_and_one_again(capsys, tmp_path):
    assert show.main(["--mode", "ssp", "--servers", "2", "--ranks", "5"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# on 5 ranks: ssp (staleness 3)\n# mode\n")
    assert from_toml(text) == resolve(TrainConfig(mode="ssp", servers=2), ranks=5)
    path = tmp_path / "run.toml"
    path.write_text(text)
    show.main(["--config", str(path), "--ranks", "5"])
    assert capsys.readouterr().out == text


@each(("knobs", "ranks"), [
    ({}, 1),
    ({"mode": "allreduce"}, 1),
    ({"mode": "sync:backup=2"}, 4),
    ({"mode": "softsync:k=3"}, 4),
    ({"mode": "allreduce", "inject": ("2:delay:1", "*:delay:1", "1:delay:1")}, 3),
    ({"mode": "ssp", "servers": 2, "inject": ("2:delay:1",)}, 5),
])  # fmt: skip
def test_as_few_ranks_as_will_do(knobs, ranks):
    config = TrainConfig(**knobs)
    assert show.fewest_ranks(config) == ranks
    resolve(config, ranks=ranks)
    if ranks > 1:
        with pytest.raises(ConfigError):
            resolve(config, ranks=ranks - 1)


@each(("argv", "message"), [
    ("--ranks two", "ranks must be a whole number, got 'two'"),
    ("--parallel pipeline:4 --hidden 32,16", "3 layers cannot be split into 4 parts"),
    ("--parallel tensor:100 --hidden 32,16", "100 tensor slices of layer 0"),
    ("--mode local-sgd:fragments=4", "4 fragments are more than the number of layers, 3"),
])  # fmt: skip
def test_what_show_refuses(argv, message, capsys):
    with pytest.raises(ConfigError) as caught:
        show.main(argv.split())
    assert message in str(caught.value)
    assert capsys.readouterr().out == ""


# Those of psrt bench.


@pytest.mark.parametrize(("words", "told"), [
    ("codec --sizes 1K", "--sizes is for bench allreduce, not for bench codec"),
    ("codec --elements 0", "elements must be at least 1, got 0"),
    ("allreduce --fit a.json --machine-costs b.json", "give only one"),
    ("allreduce --force", "--force has no effect without --fit"),
    ("allreduce", "launch -n 4 bench allreduce"),
    ("allrduce", "codec, got 'allrduce' (did you mean allreduce?)"),
])  # fmt: skip
def test_what_bench_refuses_before_mpi_is_there(words, told, monkeypatch):
    monkeypatch.setattr("psrt.cli.bench.launched", lambda: False)
    with pytest.raises(ConfigError) as caught:
        bench(words.split())
    assert told in str(caught.value)


def test_a_file_that_cannot_be_written_is_found_before_anything_is_measured(tmp_path):
    def failing(*_):
        raise ConfigError("measured first")

    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("figures of yesterday")
    for name in ("missing/all.json", "folder", "a" * 300, "file/all.json"):
        path = str(tmp_path / name)
        with pytest.raises(ConfigError, match="cannot write"):
            written(Namespace(json=path), None, failing, (None, path))
    path = str(tmp_path / "file")
    with pytest.raises(ConfigError, match="measured first"):
        written(Namespace(json=path), None, failing, (path,))
    assert (tmp_path / "file").read_text() == "figures of yesterday"
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file"}
    with pytest.raises(ConfigError, match=r"--fit and --json would both write a\.json"):
        bench(["allreduce", "--fit", "./a.json", "--json", "a.json"])
