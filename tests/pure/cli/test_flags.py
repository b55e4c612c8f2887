"""Flags: the same knobs as the TOML, the same checks, and one line for every mistake."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from psrt.cli.flags import parse_train, train_parser
from psrt.config import TrainConfig
from psrt.config.knobs import dashed, knobs_of
from psrt.config.values import SWITCH
from psrt.errors import ConfigError
from support.launching import TIMEOUT_S


def refusal(*argv):
    with pytest.raises(ConfigError) as caught:
        parse_train(argv)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_flags_are_all_defaults():
    assert parse_train([]) == TrainConfig()


def test_every_kind_of_flag():
    argv = (
        "--mode ssp --staleness 2 --lr 1e-2 --hidden 32,16 --overwrite --no-shared-memory "
        "--out=runs/a --epochs 2 --batch-size +8 "
        "--inject 1:slow:2:5,*:tail:0.1:2 --inject 0:delay:1"
    )
    assert parse_train(argv.split()) == TrainConfig(
        mode="ssp", staleness=2, lr=0.01, hidden=(32, 16), overwrite=True, shared_memory=False,
        out="runs/a", epochs=2.0, batch_size=8,
        inject=("1:slow:2:5", "*:tail:0.1:2", "0:delay:1"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "widths"), [("", ()), ("none", ()), ("7", (7,)), ("7, 3", (7, 3))]
)
def test_hidden(text, widths):
    assert parse_train(["--hidden", text]).hidden == widths


def test_the_last_of_two_flags_counts():
    assert parse_train(["--lr", "1", "--lr", "2"]).lr == 2.0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--stalenes", "3"], "unknown flag --stalenes (did you mean --staleness?)"),
        (["--batch_size=3"], "unknown flag --batch_size (did you mean --batch-size?)"),
        (["--stale", "3"], "unknown flag --stale (did you mean --staleness?)"),
        (["--learning-rate", "1"], "unknown flag --learning-rate (did you mean --lr?)"),
        (["--lerning_rate", "1"], "unknown flag --lerning_rate (did you mean --lr?)"),
        (["--jitter", "1"], "unknown flag --jitter (did you mean --inject?)"),
        (
            ["--workers", "2"],
            "unknown flag --workers (psrt launch -n N starts N ranks, servers and workers)",
        ),
        (["--restarts", "3"], "unknown flag --restarts (psrt launch takes it, before train)"),
        (["--crystal"], "unknown flag --crystal; psrt train --help-all lists all of them"),
        (["-x"], "unknown flag -x; psrt train --help-all lists all of them"),
        (["fast"], "unexpected argument 'fast'"),
        (["--lr"], "--lr: expected one argument"),
        (["--lr", "--seed", "3"], "--lr: expected one argument"),
        (["--lr", "fast"], "lr must be a finite number, got 'fast'"),
        (["--lr", "nan"], "lr must be a finite number, got 'nan'"),
        (["--lr", "-0.1"], "lr must be above 0, got -0.1"),
        (["--batch-size", "0"], "batch-size must be at least 1, got 0"),
        (["--batch-size", "1_0"], "batch-size must be a whole number, got '1_0'"),
        (["--batch-size", "٣"], "batch-size must be a whole number, got '٣'"),
        (["--batch-size", ""], "batch-size must be a whole number, got ''"),
        (["--batch-size", "9" * 25], f"batch-size must fit into 64 bits, got '{'9' * 25}'"),
        (
            ["--shards-per-server", "9" * 20],
            f"shards-per-server must fit into 64 bits, got '{'9' * 20}'",
        ),
        (
            ["--hidden", "8,,8"],
            "hidden must be whole numbers of at least 1, like 128,64 (or none), got '8,,8'",
        ),
        (
            ["--inject", "1:delay:1", "--inject", "1:dalay:1"],
            "inject must be WORKER:KIND:NUMBERS, KIND delay, jitter, tail, pause or slow "
            "(did you mean delay?), like 1:delay:0.005, got '1:delay:1,1:dalay:1'",
        ),
        (["--out", ""], "out must not be empty, got ''"),
        (["--overwrite=yes"], "--overwrite/--no-overwrite: ignored explicit argument 'yes'"),
        (
            ["--mode", "asinc"],
            "mode must be one of serial, sync, async, ssp, softsync, local-sgd, easgd, allreduce, "
            "gossip, got 'asinc' (did you mean async?)",
        ),
        (
            ["--mode", "async", "--staleness", "3"],
            "--staleness 3 has no effect with --mode async; it belongs to --mode ssp",
        ),
    ],
)
def test_what_will_not_do(argv, message):
    assert refusal(*argv) == message


def write(folder, text):
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ["config", *(dashed(name) for name in knobs_of(TrainConfig))])
def test_two_dashes_are_no_value(name):
    said = refusal(f"--{name}=--")
    assert said.startswith(name)
    assert "'--'" in said


def test_flags_override_the_file(tmp_path):
    path = write(tmp_path, 'mode = "ssp"\nstaleness = 5\nlr = 0.5\noverwrite = true')
    config = parse_train(["--lr", "0.25", "--config", path, "--no-overwrite"])
    assert config == TrainConfig(mode="ssp", staleness=5, lr=0.25, overwrite=False)


def test_one_length_overrides_the_other(tmp_path):
    path = write(tmp_path, "epochs = 3")
    assert parse_train(["--config", path, "--steps", "7"]) == TrainConfig(steps=7)
    assert parse_train(["--config", path, "--epochs", "7"]) == TrainConfig(epochs=7)
    assert refusal("--steps", "7", "--epochs", "3") == "give --epochs or --steps, not both"


def test_a_mode_given_as_flag_must_fit_the_file(tmp_path):
    path = write(tmp_path, 'mode = "ssp"\nstaleness = 5')
    assert refusal("--config", path, "--mode", "async").startswith("--staleness 5 has no effect")


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
    headings = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert headings[-7:] == [
        "mode", "models cut across ranks", "staleness-aware learning rate", "compression",
        "optimizer", "data and model", "run",
    ]  # fmt: skip
    words = " ".join(text.split())
    assert "(mode ssp; default: 3)" in words
    assert "default: sgd 0.1, momentum 0.05" in words


def flags_of(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        parse_train(["--help", *words])
    assert caught.value.code == 0
    return set(re.findall(r"^  --([\w-]+)[ ,\n]", capsys.readouterr().out, re.MULTILINE))


def test_help_shows_the_usual_flags(capsys):
    """And no list in it, or in that of all, has more names than a line has room for."""
    shown = flags_of(capsys) - {"help-all", "config", "quiet", "verbose"}
    usual = {it.replace("_", "-") for it, knob in knobs_of(TrainConfig).items() if knob.usual}
    assert shown == usual
    assert 12 <= len(usual) <= 20
    for line in train_parser().format_help().replace("\n" + " " * 24, " ").splitlines():
        assert all(it.count(",") < 9 for it in re.split("[;(]", line) if "default" not in it), line


@pytest.mark.parametrize(
    ("topic", "some", "none"),
    [
        ("compression", {"codec", "codec-density", "error-feedback"}, {"lr", "staleness"}),
        ("ssp", {"mode", "staleness", "staleness-rate"}, {"backup", "softsync", "topology"}),
        ("lr", {"lr", "outer-lr"}, {"mode", "codec"}),
        ("top-k", {"codec", "codec-density"}, {"codec-levels", "lr"}),
        ("weight_decay", {"weight-decay"}, {"lr"}),
    ],
)
def test_help_on_a_topic(topic, some, none, capsys):
    shown = flags_of(capsys, topic)
    assert some <= shown
    assert not none & shown


def test_help_on_nothing_that_is_known():
    assert "no topic 'kodec' (did you mean codec?)" in refusal("--help", "kodec")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--hidden 128 64", "unexpected argument '64' (did you mean --hidden 128,64?)"),
        ("--inject 1:slow:3 2:slow:4", "(did you mean --inject 1:slow:3,2:slow:4?)"),
        ("--lr 1 2", "unexpected argument '2'"),
        ("--parallel pipeline=2", "(did you mean pipeline:2?), got 'pipeline=2'"),
        ("--codec fp16", "got 'fp16' (did you mean float16?)"),
        ("--codec-reply bf16 --codec top-k", "got 'bf16' (did you mean bfloat16?)"),
        ("--mode fedavg", "got 'fedavg' (did you mean local-sgd?)"),
    ],
)
def test_what_a_user_of_other_tools_types(words, hint):
    assert refusal(*words.split()).endswith(hint)


def test_the_usage_names_the_command():
    assert train_parser("psrt worker").format_help().startswith("usage: psrt worker [--config")


def test_neither_numpy_nor_mpi_is_imported():
    code = (
        "import sys, psrt.cli.flags, psrt.cli.show, psrt.__main__\n"
        "assert psrt.__main__.main(['train', '--help']) == 0\n"
        "assert psrt.__main__.main(['help', 'train', 'ssp']) == 0\n"
        "assert psrt.__main__.main(['show']) == 0\n"
        "print(*{'numpy', 'mpi4py', 'psrt.cli.train'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "\n")


def test_what_comes_after_two_dashes_is_not_taken_for_a_flag():
    for words in (["--", "--quiet"], ["--quiet", "--", "--epochs=3"]):
        with pytest.raises(ConfigError, match=f"'{words[-1]}': after -- nothing is a flag"):
            train_parser().parse(words)
    with pytest.raises(ConfigError, match="did you mean --quiet"):
        train_parser().parse(["--quite", "--"])
