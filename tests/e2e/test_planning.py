"""``psrt plan`` for a script of one's own: what is measured where it would train, and what runs."""

import json
import shlex

import pytest

from support.cases import also
from support.launching import ROOT

#: What ranks measure, without any measurement: as Python starts, before all else.
MEASURES = """\
import sys, types

def measure_job(comm, config, problem=None, *, workers=None, say):
    from psrt.planning.known import Known, Site, Workload

    if comm.rank == 0:
        say(f"measuring {config!r} {type(problem).__name__} {workers}")
    work = Workload(comm.size, config.batch_size, ((0.5, 0.25),))
    return Known(work, Site((0,) * comm.size, (0,), (2,)), source="made up")

probe = types.ModuleType("psrt.planning.probe")
probe.measure_job = measure_job
sys.modules["psrt.planning.probe"] = probe
"""
#: Prints what ranks have measured of a command.
ASKS = """\
import sys
from psrt.cli.printing import say
from psrt.cli.process import run_command
from psrt.planning.measuring import measured_on

def main():
    words = sys.argv[1:]
    flags, script = (words, []) if words[0] == "--knobs" else ([], words)
    found = measured_on(2, flags, script, 5)
    say(f"{found.source}: {found.workload.n} {found.workload.batch_size}")
    return 0

sys.exit(run_command(main, "psrt"))
"""
#: Trains twice, each time longer than any test.
TRAINS = """\
import sys
import psrt
from beside import Problem

print("a line of the script's own")
for batch_size in (int(sys.argv[1]), 1):
    psrt.run(psrt.TrainConfig(batch_size=batch_size, steps=10**9), Problem())
"""
PROBLEM = """\
class Problem:
    def initial(self): ...
    def batches(self, worker, workers, epoch): ...
    def loss_and_grad(self, theta, batch, out): ...
    def evaluate(self, theta): ...
"""
LOOP = """\
import numpy as np, psrt
with psrt.Trainer(psrt.TrainConfig(), np.zeros(4, np.float32)) as trainer:
    pass
"""
NOTHING = (
    "psrt: error: nothing was measured: it.py never called psrt.run, or has a training loop of its "
    "own, which cannot be repeated: give --parameters N and --gradient-ms MS"
)


@pytest.fixture
def measured(launch):
    ours = launch.folder / "ours"
    ours.mkdir()
    (ours / "sitecustomize.py").write_text(MEASURES)
    (ours / "asks.py").write_text(ASKS)

    def run(*words):
        return launch.python("ours/asks.py", *words, PYTHONPATH=f"{ours}:{ROOT}")

    return run


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (("its/it.py", "7"), "TrainConfig(batch_size=7, steps=1000000000) Problem 5"),
        also(("-m", "its.it", "7"), "TrainConfig(batch_size=7, steps=1000000000) Problem 5"),
        also(
            ("--knobs", "--batch-size 7 --hidden 3"),
            "TrainConfig(hidden=(3,), batch_size=7) NoneType 5",
        ),
    ],
)
def test_ranks_measure_the_first_job_of_a_script_in_its_place(launch, measured, words, config):
    (launch.folder / "its").mkdir()
    (launch.folder / "its/it.py").write_text(TRAINS)
    (launch.folder / "its/beside.py").write_text(PROBLEM)
    if words[0] == "-m":
        (launch.folder / "beside.py").write_text(PROBLEM)
    else:  # what is in the current folder is not what psrt or a script elsewhere imports
        (launch.folder / "json.py").write_text("raise ValueError('not mine')\n")
    done = measured(*words)
    assert done.status == 0, done.stderr
    # What a script prints is not part of a plan.
    assert done.stdout.splitlines()[-1] == "made up: 2 7"
    assert "own" not in done.stdout
    assert f"measuring {config}" in done.stderr.splitlines()


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("", 2, [NOTHING]),
        also("import sys; sys.exit(3)", 3, []),
        also(LOOP, 2, [NOTHING]),
        also("raise ValueError('mine')", 1, None),
    ],
)
def test_a_script_that_cannot_be_measured_says_so_once(launch, measured, text, status, says):
    (launch.folder / "it.py").write_text(text)
    done = measured("it.py")
    assert done.status == status, done.stderr
    said = done.stderr.splitlines()[1:]  # the first is mpirun's line
    assert "ValueError: mine" in said if says is None else said == says


def test_the_model_of_the_tutorial_is_planned_and_its_best_row_runs_and_is_tried(launch):
    page = (ROOT / "docs" / "own-model.md").read_text()
    script = page.partition("```python\n# poisson.py\n")[2].partition("```")[0]
    (launch.folder / "poisson.py").write_text(script)
    flags = ("--mode", "async", "--json", "plan.json", "--try", 1, "--try-seconds", 1)
    done = launch.psrt("plan", "-n", 2, *flags, "poisson.py")
    assert done.status == 0, done.stderr
    plan = json.loads((launch.folder / "plan.json").read_text())
    assert plan["known"]["workload"]["n"] == 8
    assert plan["known"]["workload"]["batch_size"] == 50
    best = plan["rows"][0]
    assert best["command"] in done.stdout
    # It has run for the table of --try already.
    *_, last = done.stdout.splitlines()
    assert last.startswith("1  async")
    assert (launch.folder / "runs/plan/1/metrics.jsonl").exists()
    words = shlex.split(best["command"])
    done = launch.psrt(*words[words.index("launch") :])
    assert done.status == 0, done.stderr
    assert "async" in done.stdout
