"""The page about runs: its numbers are those of the files, as read by code that is not psrt's."""

import json
import shlex
import shutil

import numpy as np
import pytest

from psrt.__main__ import main
from psrt.config import TrainConfig, resolve
from psrt.core.errors import ConfigError
from psrt.views.report import events
from psrt.views.report.again import own_knobs
from psrt.views.report.folder import read_run
from psrt.views.report.page import MOST_NBYTES, page_of
from support.cases import also, each
from support.pages import RUNS, Page, of_size, of_time


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


def paged(*runs, **more):
    return Page(page_of([str(run) for run in runs], **more))


@pytest.mark.parametrize("kind", RUNS)
def test_a_page_of_a_run(made, kind):
    run = made(kind)
    page, summary, lines = paged(run), summary_of(run), lines_of(run)
    assert len(page.html.encode()) <= MOST_NBYTES
    told = dict(page.tables["outcome"][0])
    assert told["steps"] == f"{summary['steps']:,}"
    assert told["parameters"] == f"{summary['parameters']:,}"
    assert float(told["test loss"]) == pytest.approx(summary["test_loss"], rel=1e-3)
    accuracy = float(told["accuracy"].split()[0])
    assert accuracy == pytest.approx(100 * summary["test_accuracy"], abs=0.05)
    assert of_time(told["seconds"]) == pytest.approx(summary["seconds"], rel=0.01)
    assert of_size(told["bytes sent"]) == pytest.approx(summary["bytes_sent"], rel=0.01)
    if cut := summary["cut_bytes_sent"]:
        assert of_size(told["bytes between stages"]) == pytest.approx(cut, rel=0.01)
    # An axis of time names its clock.
    assert not [it for it in page.charts if it and it["x_name"] == "seconds"]
    assert ">seconds</text>" not in page.html
    by_step = page.charts[0]
    assert by_step["series"][0]["x"] == [line["step"] for line in lines]
    assert by_step["series"][0]["y"] == pytest.approx([line["loss"] for line in lines])
    assert "The history agrees with the guarantees of its mode" in page.sections["check"]


def test_the_command_has_the_knobs_of_a_row_that_others_do_not_make():
    config = resolve(TrainConfig(mode="sync", codec="random-k:density=0.5"), ranks=3)
    assert str(own_knobs(config, 3)["codec"]) == "random-k:density=0.5"


@each("mode", [
    "ssp:staleness=2", "local-sgd:local-steps=4,outer=nesterov,outer.lr=0.5,sync-delay=2",
    "allreduce:bucket-bytes=64", "gossip:variant=push-sum",
])  # fmt: skip
def test_the_command_has_the_knobs_of_a_mode_that_others_do_not_make(mode):
    config = resolve(TrainConfig(mode=mode), ranks=3)
    assert str(own_knobs(config, 3)["mode"]) == mode


@pytest.mark.parametrize("kind", ["ssp", also("gossip"), also("pipeline"), also("codec")])
def test_the_command_makes_the_same_run(made, kind, tmp_path):
    (line,) = paged(made(kind)).codes["run"]
    words = shlex.split(line)[1:]
    words[words.index("runs/again")] = str(tmp_path / "again")
    assert main(words) == 0
    again, before = summary_of(tmp_path / "again"), summary_of(made(kind))
    now = {name: before[name] for name in ("shards_why", "environment")}  # now "as asked"
    assert again | now == before


def test_charts_of_a_run_with_servers(made):
    run = made("ssp")
    page, summary, lines = paged(run), summary_of(run), lines_of(run)
    chart = page.chart("step", "τ, in versions")
    assert chart["series"][0]["y"] == pytest.approx([line["staleness_mean"] for line in lines])
    chart = page.chart("seconds since training began", "%")
    evaluated = [line for line in lines if line["accuracy"] is not None]
    assert chart["series"][0]["x"] == pytest.approx([it["evaluated_seconds"] for it in evaluated])
    assert chart["series"][0]["y"] == pytest.approx([100 * it["accuracy"] for it in evaluated])
    measured = [line for line in lines if line["waiting_share"] is not None]
    for unit, column, times in (
        ("% of the workers' time", "waiting_share", 100),
        ("samples/s", "samples_per_second", 1),
    ):
        series = page.chart("seconds since training began", unit)["series"][0]
        assert series["x"] == pytest.approx([it["measured_seconds"] for it in measured])
        assert series["y"] == pytest.approx([times * it[column] for it in measured])
    total = sum(summary["staleness"]["histogram"])
    assert f"Staleness τ of {total:,} gradients" in page.sections["staleness"]
    assert "Waits between workers" in page.sections["waiting"]
    # What it does not have is not there, or said.
    assert not {"consensus", "pipeline"} & {*page.sections}
    assert "No checkpoints" in page.sections["checkpoints"]
    figures = read_run(str(run)).events
    assert {
        worker: {str(tau): count for tau, count in enumerate(counts.tolist()) if count}
        for worker, counts in figures.histogram.items()
    } == dict(enumerate(it["histogram"] for it in summary["staleness"]["by_worker"]))
    count = enumerate(summary["staleness"]["histogram"])
    assert figures.tau.sum() == sum(tau * times for tau, times in count)


def test_bytes_of_a_codec_and_checkpoints(made):
    page, summary = paged(made("codec")), summary_of(made("codec"))
    assert of_size(page.value("bytes", "frames")) == pytest.approx(summary["frame_bytes"], rel=0.01)
    whole = of_size(page.value("bytes", "vectors that they encode"))
    assert whole == pytest.approx(summary["framed_bytes"], rel=0.01)
    assert "top-k" in page.sections["bytes"]
    names = sorted((it.name for it in (made("codec") / "checkpoints").iterdir()), reverse=True)
    (table,) = page.tables["checkpoints"]
    assert [row[:2] for row in table[1:]] == [[name, str(int(name))] for name in names]


def test_bubbles_of_a_pipeline(made):
    """Busy stages as measured in the history and by the simulator itself; GPipe's closed form."""
    run = made("pipeline")
    page, summary = paged(run), summary_of(run)
    m = summary["model_cut"]["micro_batches"]
    bubble = page.value("pipeline", "bubble, if all stages were equally slow")
    assert float(bubble.split()[0]) == pytest.approx(100 * 2 / (3 * m + 2), abs=0.05)
    figures = read_run(str(run)).events
    busy = (figures.computed / figures.spanned).reshape(2, 2).mean(axis=0)
    told = json.loads((run / "simulation.json").read_text())["stages"]
    # Of the simulator's time some is before the first micro-batch and behind the last.
    assert busy == pytest.approx(told, rel=0.05)


@pytest.mark.parametrize("kind", RUNS)
def test_waiting_in_a_history_is_that_of_the_summary(made, kind, monkeypatch):
    monkeypatch.setattr(events, "_BLOCK", 37)  # far fewer than there are
    run = read_run(str(made(kind)))
    told = [worker["seconds"] for worker in summary_of(made(kind))["waiting"]]
    assert run.events.waited.sum(axis=1) == pytest.approx(told, rel=1e-3, abs=1e-9)
    # What is waited for in a part of the run is no longer than that part.
    part = (run.events.ended - run.events.began) / run.events.waited.shape[1]
    assert run.events.waited.max() <= part * (1 + 1e-6)


def test_several_runs_side_by_side(made):
    runs = [made(kind) for kind in ("ssp", "gossip", "codec")]
    page = paged(*runs)
    head, *rows = page.tables["outcome"][0]
    assert [cell.strip() for cell in head[1:]] == [*map(str, runs)]
    table = {row[0]: row[1:] for row in rows}
    assert table["mode"] == ["ssp (staleness 2)", "gossip (ring)", "sync"]
    assert [len(it["series"]) for it in page.charts[:2]] == [3, 3]
    assert [it["style"] for it in page.charts[0]["series"]] == [0, 1, 2]
    differs = {row[0]: row[1:] for row in page.tables["differences"][0]}
    assert differs["mode"] == ["ssp:staleness=2", "gossip:order=combine-then-adapt", "sync"]
    assert differs["codec"] == ["–", "–", "top-k"]
    assert "dataset" not in differs
    assert "seed" not in differs
    for names, message in (
        ([runs[0]] * 2, "is given twice"),
        (runs * 8, "at most 21 runs, got 24"),
    ):
        with pytest.raises(ConfigError, match=message):
            paged(*names)


def leave_unfinished(path, events):
    """Write events as a run leaves them that is killed: there is no END, and no number of them."""
    described = {"descr": events.dtype.descr, "fortran_order": False, "shape": (0,)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, described)
        events.tofile(file)


def test_a_run_under_way_is_shown_as_far_as_it_is(copied):
    run = copied("ssp")
    (run / "summary.json").unlink()
    (run / "progress.json").write_text('{"clock": 170, "seconds": 2.5, "loss": 0.5}')
    path = run / "history" / "events.npy"
    leave_unfinished(path, np.load(path)[:-7])
    page = paged(run)
    assert "at step 170 after 2.5 s" in page.value("outcome", "state")
    assert "Not checked: " in page.sections["check"]
    assert "Staleness τ of" in page.sections["staleness"]
    assert len(page.charts[0]["series"][0]["x"]) == len(lines_of(run))


def test_a_run_that_died_says_who_when_and_how_to_go_on(copied, made):
    run = copied("codec")
    (run / "summary.json").unlink()
    end = {"text": "worker 1 was killed by SIGKILL", "status": 5, "ended": "2026-05-04T03:02:01Z"}
    (run / "end.json").write_text(json.dumps(end))
    page = paged(run)
    state = page.value("outcome", "state")
    for said in end.values():
        assert str(said) in state
    assert "still running" not in state
    newest = max(int(it.name) for it in (run / "checkpoints").iterdir())
    resume = page.value("outcome", "to resume")
    assert f"--resume {run}" in resume
    assert resume.endswith(f"from step {newest}")
    # One that was stopped has a summary, of what it came to.
    shutil.copy(made("codec") / "summary.json", run)
    shutil.rmtree(run / "checkpoints")
    page = paged(run)
    assert page.value("outcome", "state") == state
    assert "no checkpoint" in page.value("outcome", "to resume")


def test_a_violation_is_told_and_a_history_of_any_size_is_checked_only_if_asked(
    copied, monkeypatch
):
    run = copied("ssp")
    (run / "summary.json").write_text(json.dumps(summary_of(run) | {"updates": 1}))
    told = paged(run).sections["check"]
    assert "violated: summary" in told
    assert "agrees with the guarantees" not in told
    monkeypatch.setattr("psrt.views.report.verdict.MOST_NBYTES", 100)
    assert "Not checked: the history has" in paged(run).sections["check"]
    assert paged(run, check=True).sections["check"] == told


@pytest.mark.parametrize(("count", "runs"), [(1_500, 2), also(4_000, 21)])
def test_a_page_stays_small(made, tmp_path, count, runs):
    """Of many records, of which one is far off."""
    (line,) = lines_of(made("ssp"))[-1:]
    names = []
    for number in range(runs):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        names.append(str(folder))
        shutil.copy(made("ssp") / "config.toml", folder)
        noise = np.random.default_rng(number).random(count)
        noise[count // 3] = 1e6
        with open(folder / "metrics.jsonl", "w") as file:
            for step, loss in enumerate(noise.tolist()):
                drawn = {"step": step, "seconds": step / 7, "loss": loss, "test_loss": loss}
                file.write(json.dumps(line | drawn) + "\n")
    page = paged(*names)
    assert len(page.html.encode()) <= MOST_NBYTES
    for chart in page.charts[:2]:
        for series in chart["series"]:
            assert max(series["y"]) == 1e6
            assert series["x"][0] == 0
    assert page.charts[0]["series"][0]["x"][-1] == count - 1
