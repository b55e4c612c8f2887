"""What comes of a plan's best rows when they are trained: speeds and losses beside predictions."""

import json
import math
import shlex
import subprocess
import sys

import pytest

from psrt.config import TrainConfig, to_toml
from psrt.planning import trying
from support.plans import made_plan


@pytest.fixture
def tries(monkeypatch, tmp_path):
    """Try rows of a plan, of which runs write what is given, and return the lines that are said."""
    monkeypatch.chdir(tmp_path)

    def tried(runs, *, seconds=40.0):
        plan, started = made_plan(), []

        def command(ranks, knobs):
            started.append(knobs)
            return f"start {ranks} {knobs['out']}"

        def ran(line, log, timeout_s):
            status, lines, text = runs[len(started) - 1]
            folder = tmp_path / line.split()[2]
            log.write(text)
            assert timeout_s == 2 * seconds + 30
            if lines is not None:
                folder.mkdir(exist_ok=True)
                (folder / "config.toml").write_text(to_toml(TrainConfig()))
                (folder / "metrics.jsonl").write_text("".join(map(line_of, lines)))
            if status == LATE:
                raise subprocess.TimeoutExpired(line, timeout_s)
            return status

        monkeypatch.setattr(trying, "ran", ran)
        said, rows = [], plan.rows[: len(runs)]
        trying.try_best(rows, command, seconds=seconds, say=said.append)
        return plan, started, said

    return tried


def line_of(at):
    seconds, samples, loss = at
    usual = {"epoch": 0, "step": 1, "accuracy": None, "test_loss": None}
    found = {**usual, "seconds": seconds, "samples": samples, "loss": loss}
    return json.dumps({**found, "evaluated_seconds": None}) + "\n"


#: The status of a run that is ended because it takes too long.
LATE = 143
#: A slow start, and then 40,000 and 10,000 samples per second.
QUICK = [(1.0, 100, 4.0), *((float(it), 40_000 * it, 4.0 / it) for it in range(2, 11))]
SLOW = [(1.0, 100, 3.0), *((float(it), 10_000 * it, 3.0 / it) for it in range(2, 21))]


def test_rows_run_by_their_commands_and_come_beside_what_was_predicted(tries):
    plan, started, said = tries([(0, QUICK, ""), (LATE, SLOW, "")])
    for row, knobs in zip(plan.rows, started, strict=False):
        steps = int(knobs["steps"])
        assert math.isclose(steps * row.prediction.step_s, 40.0, rel_tol=0.01)
        assert 40 <= steps / int(knobs["log-every"]) < 41
        assert knobs.items() >= {**row.knobs, "out": f"runs/plan/{row.number}"}.items()
    heads, _, first, second = (it.split("  ") for it in said[-1].strip().splitlines())
    heads, first, second = ([it.strip() for it in cells if it] for cells in (heads, first, second))
    assert heads[-5:] == ["trained", *(f"loss at {it} s" for it in ("5", "10", "15", "20"))]
    # The first tenth of the time is no part of a speed: from 1 s on, and from 2 s on.
    rates = [(400_000 - 100) / 9, 10_000]
    for cells, row, rate in zip((first, second), plan.rows, rates, strict=False):
        assert cells[0] == str(row.number)
        predicted = row.prediction.samples_per_s
        expected = [f"{predicted:.4g}", f"{rate:.4g}", f"{predicted / rate - 1:+.1%}"]
        assert cells[-8:-5] == expected
    # A run that has ended keeps the loss that it ended with.
    assert first[-5:] == ["10 s", "0.8", "0.4", "0.4", "0.4"]
    assert second[-5:] == ["20 s", "0.6", "0.3", "0.2", "0.15"]


def test_a_row_that_fails_says_why_and_others_go_on(tries):
    failing = (3, None, "psrt: x\npsrt: error: --lr is odd\nlater\n")
    died = (5, SLOW, "psrt: error: rank 1 has died\n")
    _, started, said = tries([failing, (0, QUICK, ""), (0, [], ""), died])
    assert len(started) == 4
    assert said[-2].startswith("row 4 failed: status 5: psrt: error: rank 1 has died")
    why = "row 1 failed: status 3: psrt: error: --lr is odd (runs/plan/1.log has all of it)"
    assert said[1] == why
    assert "row 3 failed: it ended before its first line" in said[-4]
    assert [it.split()[0] for it in said[-1].strip().splitlines()[2:]] == ["2"]


def test_a_run_without_losses_has_a_speed_and_one_that_failed_nothing_of_an_earlier_try(tries):
    _, _, said = tries([(0, [(at, samples, None) for at, samples, _ in QUICK], "")])
    cells = said[-1].strip().splitlines()[-1].split()
    assert cells[-4:] == ["-"] * 4
    _, _, said = tries([(1, None, "no")])
    assert said[1:] == ["row 1 failed: status 1: no (runs/plan/1.log has all of it)"]
    _, _, said = tries([(0, [(0.1, 10, 1.0), (0.9, 90, 1.0)], "")])
    assert "too short" in said[-1]


def test_a_line_that_takes_too_long_is_ended():
    sleeps = shlex.join([sys.executable, "-c", "import time; time.sleep(99)"])
    with pytest.raises(subprocess.TimeoutExpired):
        trying.ran(sleeps, timeout_s=0.01)
    assert trying.ran(shlex.join([sys.executable, "-c", "raise SystemExit(3)"])) == 3
