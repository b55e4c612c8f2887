"""psrt show: the resolved config as TOML that a run takes."""

from __future__ import annotations

import doctest

import pytest

from psrt.cli import show
from psrt.config import TrainConfig, from_toml, resolve
from psrt.errors import ConfigError


def test_what_it_prints_is_the_resolved_config(capsys):
    assert show.main(["--mode", "ssp", "--servers", "2", "--ranks", "5"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# on 5 ranks\n# mode\n")
    assert from_toml(text) == resolve(TrainConfig(mode="ssp", servers=2), ranks=5)


def test_what_it_prints_is_a_config_again(capsys, tmp_path):
    show.main(["--mode", "local-sgd", "--outer-lr", "1", "--optimizer", "adam", "--seed", "3"])
    text = capsys.readouterr().out
    path = tmp_path / "run.toml"
    path.write_text(text)
    show.main(["--config", str(path)])
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("knobs", "ranks"),
    [
        ({}, 1),
        ({"mode": "allreduce"}, 1),
        ({"mode": "sync"}, 2),
        ({"servers": 3}, 4),
        ({"backup": 2}, 4),
        ({"mode": "softsync", "softsync": 3}, 4),
        ({"mode": "local-sgd", "servers": 2}, 3),
        ({"mode": "allreduce", "inject": ("4:delay:1",)}, 5),
        ({"mode": "allreduce", "inject": ("2:delay:1", "*:delay:1", "1:delay:1")}, 3),
        ({"mode": "ssp", "servers": 2, "inject": ("2:delay:1",)}, 5),
    ],
)
def test_as_few_ranks_as_will_do(knobs, ranks):
    config = TrainConfig(**knobs)
    assert show.fewest_ranks(config) == ranks
    resolve(config, ranks=ranks)
    if ranks > 1:
        with pytest.raises(ConfigError):
            resolve(config, ranks=ranks - 1)


def test_what_is_averaged_at_once(capsys):
    flags = ["--mode", "local-sgd", "--fragments", "2", "--sync-delay", "3"]
    show.main(flags)
    text = capsys.readouterr().out
    assert text.startswith(
        "# on 1 rank\n# averages: 2 fragments, each every 8 steps, 67.3 KiB in all, 35 KiB at "
        "once; taken 3 steps later\n# mode\n"
    )
    show.main([*flags, "--dataset", "elsewhere"])
    assert capsys.readouterr().out.startswith("# on 1 rank\n# mode\n")
    with pytest.raises(ConfigError, match="--fragments 4 is more than the model has layers, 3"):
        show.main(["--mode", "local-sgd", "--fragments", "4"])


def test_examples_in_docstrings():
    assert doctest.testmod(show) == (0, 1)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ranks", "0"], "ranks must be at least 1, got 0"),
        (["--ranks", "two"], "ranks must be a whole number, got 'two'"),
        (["--rank", "2"], "unknown flag --rank (did you mean --ranks?)"),
        (["--workers", "2"], "unknown flag --workers (did you mean --ranks?)"),
        (["--servers", "4", "--ranks", "2"], "--servers 4 are more than the 2 ranks of the job"),
    ],
)
def test_what_will_not_do(argv, message, capsys):
    with pytest.raises(ConfigError) as caught:
        show.main(argv)
    assert str(caught.value) == message
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("pipeline:4", "3 layers cannot be cut into 4 parts"),
        ("tensor:100", "100 tensor slices of layer 0"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_as_in_training(axes, message):
    with pytest.raises(ConfigError, match=message):
        show.main(["--parallel", axes, "--hidden", "32,16"])
