"""What the bench of plans takes from one, measures and makes of it, and when it refuses to."""

import itertools
import json

import plan as script
import pytest
import quiet

from psrt.core.errors import ConfigError


def row(number, mode, *found, predicted=100.0, **more):
    return {
        "number": number, "knobs": {"mode": mode, "hidden": "512,512"}, "ranks": 3,
        "found": [*found],
        "samples_per_s": predicted, "low": 90.0, "high": 110.0, "step_s": 0.01,
        "command": "there/psrt launch -n 3 train --mode sync", **more,
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, 3, 8, 40, 100])
def test_rows_are_the_best_those_of_each_mode_and_others_from_everywhere(count):
    modes = itertools.cycle(["sync", "ssp:staleness=1", "ssp:staleness=3"])
    rows = [row(number, next(modes)) for number in range(1, 61)]
    numbers = [it["number"] for it in script.picked(rows, count)]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == min(count, 60)
    assert numbers[0] == 1
    if count > 1:
        assert 2 in numbers
    if count >= 8:
        assert max(later - it for it, later in itertools.pairwise(numbers)) < 2 * 60 / (count - 2)


def test_a_run_is_measured_after_its_start_and_before_its_end(tmp_path):
    started = []

    def start(words):
        started.append(words)
        lines = [(1, 5.0), *((k, 5.0 + 0.1 * k) for k in range(2, 20)), (20, 99.0)]
        (tmp_path / "run").mkdir()
        made = ({"samples": 64 * k, "seconds": s, "epoch_end": False} for k, s in lines)
        text = "".join(json.dumps(it) + "\n" for it in made)
        (tmp_path / "run" / "metrics.jsonl").write_text(text)
        return 0, ""

    assert script.measured(start, tmp_path, row(1, "sync"), 2.0) == pytest.approx(640)
    [words] = started
    assert words[:2] == ["launch", "--knobs"]
    assert words[3:] == ["-n", "3", "train", "--mode", "sync"]
    assert words[2].split()[:4] == ["--steps", "280", "--log-every", "14"]
    (tmp_path / "run" / "metrics.jsonl").unlink()
    (tmp_path / "run").rmdir()
    script.measured(start, tmp_path, row(1, "local-sgd:local-steps=64,quorum=1"), 2.0)
    assert started[-1][2].split()[1] == "768"
    with pytest.raises(script.FailedRunError, match=r"^it is odd$"):
        script.measured(lambda words: (2, "line\nit is odd\n\n"), tmp_path, row(1, "sync"), 2.0)


def test_judgement():
    rows = [row(1, "sync", 99.0, 101.0), row(2, "ssp", 104.0), row(3, "async", 120.0)]
    said, misses = script.judged(rows)
    assert said.startswith("median error 3.8%; 2 of 3 within 10%; the plan's best has 83.3%")
    assert misses == ["67% within 10%", "the plan's best is 16.7% slower"]
    rows = [row(1, "sync", 99.0, 101.0), row(2, "ssp", failed="odd")]
    assert script.judged(rows)[1] == ["ssp failed: odd"]
    assert script.judged(rows[1:])[0] == "nothing ran"
    text = "\n".join(script.table({"rows": rows, "of": 9}))
    assert "| 1 | `sync` | 3 | 100 | 90 … 110 | 100 | 2.0% | +0.0% |" in text
    assert "| 2 | `ssp` | 3 | 100 | 90 … 110 | – | – | – |" in text
    assert "Nothing ran" in script.page([{"place": "here", "rows": rows[1:], "of": 9}], "a machine")


class Machine:
    """A clock, and what processes of this machine use: of all time, this share of one core."""

    def __init__(self, monkeypatch):
        self.now, self.others, self.own, self.product_s = 0.0, 0.0, 0.0, 1e-3
        self.busy = 0.0
        monkeypatch.setattr(quiet.Ticks, "now", self.ticks)
        monkeypatch.setattr(quiet.Quiet, "_product_s", lambda it: self.product_s)
        monkeypatch.setattr(quiet.time, "sleep", self.work)

    def work(self, seconds, own=0.0):
        self.now += seconds
        self.own += own
        self.busy += own + seconds * self.others

    def ticks(self):
        return quiet.Ticks(self.busy, self.own, self.now)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_a_quiet_machine_measures_and_a_busy_one_stops_with_one_line(machine):
    it = quiet.Quiet(0.05)

    def work():
        machine.work(10.0, own=19.0)
        return 7.0

    assert it.alone(work, "nothing", counts=True) == 7.0
    machine.others = 0.5
    busy = (
        r"busy to measure, other processes use 50% of a core, at most 5% .*: stopped after 3 runs"
    )
    with pytest.raises(ConfigError, match=busy):
        it.alone(work, "3 runs", counts=True)
    machine.others, machine.product_s = 0.0, 1.3e-3
    with pytest.raises(ConfigError, match=r"a product of matrices takes 1\.30 times"):
        it.wait("nothing")


def test_what_others_use_during_a_run_makes_it_run_again(machine):
    it, uses = quiet.Quiet(0.05), [0.5, 0.5, 0.0]

    def work():
        machine.others = uses.pop(0)
        machine.work(10.0, own=20.0)
        machine.others = 0.0
        return float(len(uses))

    assert it.alone(work, "nothing", counts=True) == 0.0
    uses[:] = [0.5] * 9
    with pytest.raises(ConfigError, match=r"use 50% of a core during each run: stopped after x"):
        it.alone(work, "x", counts=True)
    # Where processes are no children of this one, nobody can tell theirs from others.
    assert it.alone(work, "x", counts=False) == 2.0
