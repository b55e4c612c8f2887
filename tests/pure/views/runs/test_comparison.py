"""psrt compare: knobs that differ, figures beside each other, and what is no run."""

from __future__ import annotations

import json

import pytest

from psrt.__main__ import main
from psrt.core.errors import ConfigError
from psrt.views.runs.comparison import compare
from support.run_folders import CONFIG, summary, write_run


@pytest.fixture
def runs(tmp_path):
    faster = summary(seconds=4.0, samples_per_second=1000.0, bytes_sent=100 << 20, waiting=[])
    return [
        write_run(tmp_path / "a", 4, summary=summary()),
        write_run(tmp_path / "b", 4, CONFIG.replace("=2", "=5") + "seed = 7\n", summary=faster),
        write_run(tmp_path / "c", 2),
    ]


def test_knobs_that_differ_and_figures_are_beside_each_other(runs, capsys):
    assert main(["compare", *map(str, runs), "--target", "0.75"]) == 0
    assert (
        capsys.readouterr().out
        == """\
   mode.staleness  seed    ended  workers  servers  hosts  epochs  steps     seconds      samples/s
a               2     0      yes        3        1      1       4     40         8 s            500
b               5     7      yes        3        1      1       4     40  4 s (-50%)  1,000 (+100%)
c               2     0  not yet        –        –      –       2     20  4 s (-50%)            500

   training loss  accuracy  waiting  waited for worker  dropped       bytes sent  parameters
a           0.25   93.75 %  37.50 %                  2        0            1 MiB          10
b           0.25   93.75 %        –                  –        0  100 MiB (100 ×)          10
c    0.5 (+100%)   75.00 %        –                  –        –    4 KiB (-100%)           –

   same bits
a   abababab
b   abababab
c          –

equal in all: simulated no; staleness, mean 1.50; staleness, max 3; time to 75 % 4 s
"""
    )
    assert main(["compare", *map(str, runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == ["a", "b", "c"]
    assert found["config"] == {"mode.staleness": [2, 5, 2], "seed": [0, 7, 0]}
    assert found["outcome"]["steps"] == [40, 40, 20]
    assert found["outcome"]["waiting"] == [0.375, None, None]
    assert "test loss" not in found["outcome"]  # nobody has one
    assert "no knob differs" in list(compare([runs[0], runs[2]]).lines())


def test_a_row_has_a_column_for_each_of_its_knobs(tmp_path):
    runs = [
        write_run(tmp_path / name, 4, CONFIG + f'codec = "{codec}"\n', summary=summary())
        for name, codec in (("a", "top-k:density=0.1"), ("b", "top-k:density=0.05"), ("c", "sign"))
    ]
    found = compare(runs, sort="codec.density")
    assert found.runs == ["b", "a", "c"]
    assert found.document()["config"] == {
        "codec": ["top-k", "top-k", "sign"], "codec.density": [0.05, 0.1, None],
        "codec.bucket": [None, None, 1024],
    }  # fmt: skip


def test_runs_are_in_the_order_of_a_figure_and_held_against_any(runs):
    a, b, c = map(str, runs)
    assert compare(runs, sort="seconds").runs == ["b", "c", "a"]
    assert compare(runs, sort="-waiting").runs == ["a", "b", "c"], "without it come last"
    assert compare(runs, sort="mode.staleness").runs == ["a", "c", "b"]
    found = compare([c, b, a], 0.75, sort="time to target", baseline=b)
    assert (found.runs, found.baseline) == (["c", "b", "a"], 1)
    assert [line.split()[0] for line in found.lines() if "(+100%)" in line] == ["a", "c"]
    for wrong, line in (
        ({"sort": "wating"}, "--sort wating: expected a knob such as lr, or one of ended; "),
        ({"baseline": "x"}, "--baseline x is not one of the runs to compare"),
    ):
        with pytest.raises(ConfigError, match=line):
            compare(runs, **wrong)


def test_what_histories_say_beside_knobs(tmp_path):
    names = [str(tmp_path / name) for name in ("a", "b")]
    for seed, name in enumerate(names):
        words = ["--workers", "2", "--mode", "allreduce", "--steps", "2", "--record"]
        words += ["--timing-only", "--parameters", str(6 + seed), "--seed", str(seed)]
        assert main(["simulate", *words, "--out", name]) == 0
    found = compare(names)
    assert found.config == {"seed": [0, 1]}
    assert found.otherwise == [[], ["7 parameters instead of 6"]]
    assert list(found.lines())[-1] == "b has 7 parameters instead of 6, compared with a"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["{}/a", "{}/a"], "{}/a is given twice"),
        (["{}/a", "{}/d"],
         "{}/d/summary.json: not JSON: Expecting value: line 1 column 1 (char 0)"),
        (["{}/a", "{}/b", "--target", "2"],
         "target must be a number above 0 and at most 1, got '2'"),
    ],
)  # fmt: skip
def test_what_is_no_run_is_one_line(words, line, runs, tmp_path, capsys):
    write_run(tmp_path / "d")
    (tmp_path / "d/summary.json").write_text("")
    assert main(["compare", *(word.replace("{}", str(tmp_path)) for word in words)]) == 2
    assert capsys.readouterr().err == f"psrt: error: {line.replace('{}', str(tmp_path))}\n"


def seeds(tmp_path):
    """Two configurations, of which the first has three seeds."""
    found = []
    for mode, seed, accuracy in (("2", 1, 0.5), ("2", 2, 0.6), ("9", 1, 0.7), ("2", 3, 0.7)):
        config = CONFIG.replace("=2", f"={mode}") + f"seed = {seed}\n"
        figures = summary(test_accuracy=accuracy, parameters_sha256=f"{mode}{seed}" * 32)
        found.append(write_run(tmp_path / f"{mode},seed={seed}", 4, config, summary=figures))
    return found


def test_runs_that_differ_in_their_seed_are_one_line_with_mean_and_deviation(tmp_path, capsys):
    runs = seeds(tmp_path)
    found = compare(runs, rank="accuracy", baseline=runs[1])
    assert (found.runs, found.baseline, found.seeds) == (["9,seed=1", "2"], 1, [(1,), (1, 2, 3)])
    assert found.config == {"mode.staleness": [9, 2], "seed": [1, (1, 2, 3)]}
    assert found.outcome["accuracy"] == [0.7, pytest.approx(0.6)]
    assert found.deviation == {"accuracy": [None, pytest.approx(0.1)]}  # of a sample: n − 1
    assert found.outcome["same bits"] == ["91" * 32, None]
    text = "\n".join(found.lines())
    assert "60.00 % ± 10.00 %" in text
    assert "mean ± standard deviation over 3 seeds: 2" in text
    assert main(["compare", *map(str, runs), "--each", "--rank", "accuracy", "--json"]) == 0
    each = json.loads(capsys.readouterr().out)
    assert each["runs"] == ["9,seed=1", "2,seed=3", "2,seed=2", "2,seed=1"]
    assert each["deviation"] == {}
    # Seeds alone are what is compared where nothing else differs.
    assert compare(runs[:2]).runs == ["2,seed=1", "2,seed=2"]


def test_two_runs_of_one_seed_are_no_sample(tmp_path):
    first = seeds(tmp_path)
    again = write_run(tmp_path / "again", 4, CONFIG + "seed = 1\n", summary=summary())
    assert compare([*first, again]).seeds == [(1, 2, 3), (1,), (1,)]


def test_the_best_is_first_by_what_is_better_of_a_figure(tmp_path):
    runs = seeds(tmp_path)
    assert compare(runs, 0.75, rank="time to target", each=True).runs[0] == "2,seed=1"
    assert compare(runs, rank="training loss", each=True).runs[0] == "2,seed=1"
    for wrong, line in (
        ({"rank": "workers"}, "--rank workers: expected one of seconds; "),
        ({"rank": "accuracy", "sort": "lr"}, "give --sort or --rank, not both"),
    ):
        with pytest.raises(ConfigError, match=line):
            compare(runs, **wrong)
