"""psrt watch: what is shown of a run under way, and how it ends; by a clock of the tests' own."""

from __future__ import annotations

import io
import json
import os

import pytest

from psrt.__main__ import main
from psrt.views.runs.folder import read_run
from psrt.views.runs.state import state_of
from psrt.views.runs.watch import GONE, OVER, Lines, Panel, Surroundings, watch
from support.run_folders import record, summary, write_run

PROGRESS = {
    "clock": 25, "seconds": 5.5, "loss": 0.125, "slowest": 2, "slowest_step_s": 0.5,
    "median_step_s": 0.002, "written": 1.0,
}  # fmt: skip
ROSTER = [
    {"rank": 0, "role": "server 0", "host": "here", "pid": 10},
    {"rank": 1, "role": "worker 0", "host": "here", "pid": 11},
    {"rank": 2, "role": "worker 1", "host": "there", "pid": 12},
]


class World:
    """A machine on which one thing happens during each sleep."""

    def __init__(self, *happens, host="here"):
        self.time, self.alive, self.sleeps = 100.0, {10, 11}, 0
        self._happens, self._host = list(happens), host

    def sleep(self, seconds):
        self.time += seconds
        self.sleeps += 1
        assert self.sleeps < 50, "it watches for ever"
        if self._happens:
            self._happens.pop(0)()

    def around(self):
        return Surroundings(
            now=lambda: self.time, today=lambda: self.time, sleep=self.sleep,
            host=lambda: self._host, is_there=lambda pid: pid in self.alive,
        )  # fmt: skip


def watched(path, world, *, written=None):
    said = []
    for name in path.iterdir():  # written long ago by no clock of ours
        os.utime(name, (written or world.time, written or world.time))
    lines = Lines(said.append)
    status = watch(path, lines, around=world.around(), interval_s=2.0, silent_s=30.0)
    return status, said


def ends(path):
    return lambda: (path / "summary.json").write_text(json.dumps(whole_summary()))


def whole_summary():
    return summary(memory=None, frame_bytes=0, bytes_received=1 << 20)


def test_a_line_for_each_change_until_the_summary_is_there(tmp_path):
    run = write_run(tmp_path / "run", 1, roster=ROSTER)

    def goes_on():
        write_run(run, 2, progress=PROGRESS, roster=ROSTER)

    status, said = watched(run, World(goes_on, lambda: None, ends(run)))
    assert status == OVER
    assert said[:2] == [
        "epoch 1 of 4  step 10 of 40 (25 %)  time 0:02  left 0:06  loss 1  accuracy 50.0 %  "
        "samples/s 500  staleness 1.5  waiting 25 %",
        "epoch 2 of 4  step 25 of 40 (62 %)  time 0:06  left 0:03  loss 0.125  accuracy 75.0 %  "
        "samples/s 500  staleness 1.5  waiting 25 %  slowest worker 2, 500 ms per step, median "
        "2 ms",
    ]
    assert len(said) == 3  # and the table, once
    assert said[2].startswith(
        "mode       ssp (staleness 2), 1 server, 3 workers\naccuracy   93.75 %"
    )


def test_a_run_that_is_over_is_shown_at_once_in_lines_without_a_terminal(tmp_path, capsys):
    world = World()
    run = write_run(tmp_path / "run", 4, summary=whole_summary())
    assert watched(run, world)[0] == OVER
    assert world.sleeps == 0
    assert main(["watch", str(run), "--interval", "0.1"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("epoch 4 of 4  step 40 of 40 (100 %)")
    assert "\x1b" not in out
    assert err == ""


def test_a_run_whose_processes_are_gone_is_not_finished(tmp_path):
    world = World()
    run = write_run(tmp_path / "run", 1, progress=PROGRESS, roster=ROSTER)
    world.alive = set()
    status, said = watched(run, world)
    assert status == GONE
    assert said[-1] == f"{run}: not finished: its processes are gone, and it has no summary"
    assert world.time == 110.0  # it may be started again until then


def test_a_run_that_ended_early_says_why(tmp_path):
    """Also one of which no process was ever here."""
    end = {"text": "worker 1 was killed", "status": 5, "ended": "2026-05-04T03:02:01+00:00"}
    run = write_run(tmp_path / "run", 1, end=end)
    status, said = watched(run, World())
    assert status == GONE
    assert said[-1] == (
        f"{run}: ended early, 2026-05-04T03:02:01+00:00, with status 5: worker 1 was killed"
    )


def test_step_and_time_left_are_the_slowest_workers_as_the_epoch_is(tmp_path):
    progress = PROGRESS | {"clock": 39, "clock_min": 20, "seconds": 5.0}
    state = state_of(read_run(write_run(tmp_path / "run", 1, progress=progress)))
    rows = dict(state.rows())
    assert rows["epoch"] == "1 of 4"
    assert rows["step"] == "20 of 40 (50 %), the furthest 39"
    assert state.left == pytest.approx(5.0)


@pytest.mark.parametrize("host", ["here", "there", "elsewhere"])
def test_ranks_that_are_left_or_cannot_be_looked_up_are_no_end(host, tmp_path):
    run = write_run(tmp_path / "run", 1, roster=ROSTER)
    world = World(*[lambda: None] * 9, ends(run), host=host)
    world.alive = {"here": {11}, "there": {12}, "elsewhere": set()}[host]
    assert watched(run, world)[0] == OVER
    assert world.sleeps == 10


def test_a_job_that_is_started_again_in_time_goes_on(tmp_path):
    run = write_run(tmp_path / "run", 1, roster=ROSTER)
    again = [row | {"pid": row["pid"] + 10} for row in ROSTER]

    def restarts():
        (run / "roster.json").write_text(json.dumps(again))
        world.alive = {20, 21}

    def dies():
        world.alive = set()

    quiet = [lambda: None] * 3
    # Gone for 6 s, twice: that is no 12 s.
    world = World(dies, *quiet[:2], restarts, dies, *quiet[:2], restarts, ends(run))
    assert watched(run, world)[0] == OVER


def test_a_run_that_writes_nothing_is_silent_and_is_watched_on(tmp_path):
    run = write_run(tmp_path / "run", 1)

    def wakes():
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record(2)) + "\n")

    world = World(*[lambda: None] * 20, wakes, ends(run))
    status, said = watched(run, world)
    assert status == OVER
    notes = [line.partition("waiting 25 %")[2] for line in said[:-1]]
    assert notes == ["", "  silent for 30 s", ""]
    assert said[2].startswith("epoch 2 of 4")
    # It counts from when files were written, not from when one began to look.
    (run / "summary.json").unlink()
    world = World(ends(run))
    status, said = watched(run, world, written=world.time - 60)
    assert said[0].endswith("silent for 60 s")


def test_a_file_that_cannot_be_read_for_a_moment_is_no_end(tmp_path):
    run = write_run(tmp_path / "run", 1)
    damages = lambda: (run / "progress.json").write_text("{")  # noqa: E731
    mends = lambda: (run / "progress.json").write_text("{}")  # noqa: E731
    status, said = watched(run, World(damages, lambda: None, mends, ends(run)))
    assert (status, len(said)) == (OVER, 2)


def test_a_terminal_is_drawn_on_by_rich(tmp_path):
    rich = pytest.importorskip("rich.console")
    run = write_run(tmp_path / "run", 2, progress=PROGRESS, summary=whole_summary())
    out = io.StringIO()
    # Wider than any name of a temporary folder, which would go on in a line of its own.
    console = rich.Console(file=out, force_terminal=True, width=1000, color_system=None)
    with Panel("run", console) as panel:
        panel.show(state_of(read_run(run)), "silent for 31 s")
        assert watch(run, panel, interval_s=1, silent_s=30) == OVER
    text = out.getvalue()
    for row in ("━", "62 %", "0:03", "0.125", "worker 2, 500 ms per step", "silent for 31 s"):
        assert row in text
    assert text.rstrip().splitlines()[-1].startswith("files")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["{}/none"], "no run at {}/none"),
        (["{}", "--interval", "0"],
         "interval must be a number of seconds from 0.05 to 86400, got '0'"),
    ],
)  # fmt: skip
def test_what_cannot_be_watched_is_one_line(words, line, tmp_path, capsys):
    assert main(["watch", *(word.replace("{}", str(tmp_path)) for word in words)]) == 2
    assert capsys.readouterr().err == f"psrt: error: {line.replace('{}', str(tmp_path))}\n"
