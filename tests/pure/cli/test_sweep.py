"""psrt launch --sweep: which jobs a file means, and that they run one after the other."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from psrt.cli.flags import parse_train
from psrt.cli.sweep import members, sweep
from psrt.config import resolve, to_toml
from psrt.core.errors import ConfigError
from psrt.job.attempt import Ended
from psrt.report.files import SUMMARY
from support.cases import each

GRID = """\
out = "all"
[base]
epochs = 2
hidden = [8, 4]
[grid]
mode = ["sync", "ssp:staleness=2"]
seed = [1, 2]
"""
NAMES = ["mode=sync,seed=1", "mode=sync,seed=2"]
NAMES += [f"mode=ssp:staleness=2,seed={it}" for it in (1, 2)]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "s.toml").write_text(text)
        return "s.toml"

    return write


def test_a_grid_is_every_choice_each_in_a_folder_named_by_it(file):
    found = members(file(GRID), ["train", "--lr", "0.5"])
    assert [it.name for it in found] == NAMES
    assert [str(it.folder) for it in found] == [f"all/{it}" for it in NAMES]
    for it, mode, seed in zip(found, ("sync", "sync", "ssp", "ssp"), (1, 2, 1, 2), strict=True):
        config = parse_train(it.words[1:])
        assert (config.scheme.name, config.seed) == (mode, seed)
        assert (config.lr, config.epochs, config.hidden) == (0.5, 2, (8, 4))
        assert (config.out, config.overwrite) == (str(it.folder), True)


def test_tables_of_runs_are_combined_with_the_grid_and_a_script_gets_words(file):
    text = "[[run]]\nname = 'a/b'\nfast = true\n[[run]]\nfast = false\n[grid]\nlr = [0.1]\n"
    found = members(file(text), ["mine.py", "x"])
    assert [" ".join(it.words) for it in found] == [
        "mine.py x --name=a/b --fast --lr=0.1 --out runs/s/name=a_b,fast=true,lr=0.1",
        "mine.py x --no-fast --lr=0.1 --out runs/s/fast=false,lr=0.1",
    ]


@each(
    "case",
    [
        ("[grid", "s.toml: not TOML: "),
        ("lr = 1", "s.toml: unknown key 'lr'; expected out, "),
        ("[base]\nlr = 1", "s.toml has no runs: write a "),
        ("[grid]\nlr = 0.1", "s.toml: grid: lr is 0.1, expected a list of values"),
        ("[grid]\nlr = []", "s.toml: grid: lr is [], expected a list of values"),
        ("[grid]\nlr = [1, 1]", "s.toml: two runs lr=1"),
        ("[grid]\nout = ['a']", "s.toml: grid: 'out' cannot be a knob of one run"),
        ("[grid]\n'a b' = [1]", "s.toml: grid: 'a b' cannot be a knob of one run"),
        ("[[run]]\nlr = 1\n[grid]\nlr = [2]", "s.toml: lr is both in "),
        ("[[run]]\n[run.mode]\nname = 'ssp'", "s.toml: run: mode is a table, expected a value"),
        ("[grid]\nbatch_size = [1]", "--batch-size is given twice: s.toml says it for each run"),
        ("out = 3\n[grid]\nlr = [1]", "s.toml: out is 3, expected the name of a folder"),
        ("run = 3", "s.toml: run is no list of tables"),
        (f"[grid]\nseed = {[*range(101)]}\nlr = {[*range(1, 101)]}", "s.toml: more than 10000"),
    ],
)
def test_what_is_no_sweep_is_refused_in_a_line(file, case):
    text, said = case
    with pytest.raises(ConfigError) as raised:
        members(file(text), ["train", "--batch-size", "4"])
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_the_file_of_the_page_is_the_one_in_apps():
    root = Path(__file__).parents[3]
    text = (root / "apps/rates.toml").read_text()
    assert f"```text\n{text}```\n" in (root / "docs/launch.md").read_text()
    assert len(members(str(root / "apps/rates.toml"), ["train"])) == 4


def checked(words):
    return resolve(parse_train(words[1:]), ranks=3)


def test_one_that_fails_does_not_keep_the_next_from_starting(file, capsys):
    started, told = [], []
    ends = iter([0, 3, 0, 1])

    def run(words):
        started.append(words)
        return Ended(next(ends), None, 2.0)

    found = members(file(GRID), ["train"])
    found[0].folder.mkdir(parents=True)  # the third writes nothing, as a script without --out
    (found[0].folder / SUMMARY).write_text("{}")
    assert sweep(found, checked, run, told.append).status == 3
    assert started == [it.words for it in found]
    assert told[1] == f"psrt launch: run 2 of 4: {NAMES[1]}\n"
    without = f"done, but without all/{NAMES[2]}/summary.json, so a restart runs it again,"
    how = ("done", "failed with status 3", without, "failed with status 1")
    lines = [f"{name}  {it} after 2 s" for name, it in zip(NAMES, how, strict=True)]
    assert capsys.readouterr().out.split("\n")[1:-1] == lines


def test_a_signal_ends_the_sweep(file, capsys):
    ended = sweep(
        members(file(GRID), ["train"]),
        checked,
        lambda words: Ended(1, signal.SIGINT, 2.0),
        lambda text: None,
    )
    assert (ended.status, ended.asked) == (130, signal.SIGINT)
    assert capsys.readouterr().out.count("not started") == 3


def test_all_are_checked_before_the_first_starts(file):
    found = members(file(GRID.replace("2]", "'x']")), ["train"])
    with pytest.raises(ConfigError, match=r"^mode=sync,seed=x: seed must be .*, got 'x'$"):
        sweep(found, checked, pytest.fail, pytest.fail)


def test_what_is_done_is_left_out_unless_it_was_another_run(file, tmp_path):
    started = []

    def done_before(flags):
        config = resolve(parse_train(flags), ranks=3)
        folder = tmp_path / "all" / NAMES[0]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(to_toml(config))
        (folder / "summary.json").write_text("{}")

    def run(words):
        started.append(words[-2].rpartition("/")[2])
        return Ended(0, None, 1.0)

    done_before(["--mode", "sync", "--seed", "1", "--epochs", "2", "--hidden", "8,4"])
    sweep(members(file(GRID), ["train"]), checked, run, lambda text: None)
    assert started == NAMES[1:]
    found = members(file(GRID.replace("epochs = 2", "epochs = 3")), ["train"])
    said = rf"^{NAMES[0]}: it is done, with epochs 2, not 3: choose another out$"
    with pytest.raises(ConfigError, match=said):
        sweep(found, checked, run, lambda text: None)
