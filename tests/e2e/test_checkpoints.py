"""A run over MPI whose rank is killed goes on from its newest checkpoint to the same bits."""

import json
import re
import signal
import sys

import pytest

from support.cases import also
from support.launching import ROOT, TIMEOUT_S, wait_for

EXHAUSTIVE = pytest.mark.exhaustive
JOB = """
import os, signal, sys
import psrt
from psrt.runtime.worker import Worker

mode, servers, falls_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
step = Worker._step


async def falls(self, batch, progress):
    if self.number == 1 and self.clock == falls_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return await step(self, batch, progress)


Worker._step = falls
config = psrt.TrainConfig(
    mode=mode, servers=servers or None, hidden=(12,), epochs=4, optimizer="adam", timeout_s=10,
    out="run", checkpoint_every=4, resume="auto",
)
psrt.run(config)
"""


#: Figures that do not depend on how often the run was killed.
SAME = ("parameters_sha256", "steps", "samples", "updates", "test_accuracy")


def read(launch, out="run"):
    return json.loads((launch.folder / out / "summary.json").read_text())


def summary(launch, out="run"):
    return {name: read(launch, out)[name] for name in SAME}


def saved(launch):
    """Return the names of the checkpoints that are there, the newest last."""
    return sorted(it.name for it in (launch.folder / "run" / "checkpoints").glob("0*[0-9]"))


def manifest(launch):
    """Return the attempt and the parent of the newest checkpoint."""
    newest = launch.folder / "run" / "checkpoints" / saved(launch)[-1]
    found = json.loads((newest / "manifest.json").read_text())
    return found["attempt"], found["parent"]


#: A rank of the first attempt kills itself once there is a checkpoint.
FALLS = """
import os, pathlib, signal, threading, time
def falls():
    while not any(pathlib.Path('run/checkpoints').glob('0*0')):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK')) == '1':
    if not pathlib.Path('run/checkpoints').exists():
        threading.Thread(target=falls, daemon=True).start()
"""


TRAIN = "train --mode sync --hidden 32 --steps 600 --checkpoint-every 30 --resume auto --out run"


@pytest.mark.parametrize(
    ("mode", "is_own"),
    [("sync", False), also("sync", True), also("allreduce --allreduce ring", False)],
)
def test_launch_starts_a_job_again_that_was_killed(launch, mode, is_own):
    """By its own line or by that of mpirun, to the bits that it has undisturbed."""
    (launch.folder / "sitecustomize.py").write_text(FALLS)
    train = TRAIN.replace("sync", mode)
    before = f"--env PYTHONPATH={launch.folder} --restarts 2 -n 3"
    if is_own:
        line = [*launch.mpirun, "-n", 3, sys.executable, "-m", "psrt", *train.split()]
        words = ["--restarts", 2, "--", *line]
    else:
        words = [*before.split(), *train.split()]
    done = launch.python("-m", "psrt", "launch", *words, PYTHONPATH=f"{launch.folder}:{ROOT}")
    assert done.status == 0, done.stderr
    assert "restart 1 of 2 in 1 s" in done.stderr
    assert "resuming from step" in done.stdout
    # The rank is named, since it reaches its parent.
    (line,) = done.errors
    assert "(rank 1, " in line
    assert not list((launch.folder / "run" / "checkpoints").glob("*.part"))
    words = train.partition(" --checkpoint")[0].split()[1:]
    workers = 2 if mode == "sync" else 3
    done = launch.psrt("simulate", *words, "--workers", workers, "--out", "virtual")
    assert done.status == 0, done.stderr
    same = ("parameters_sha256", "steps", "samples", "test_accuracy")
    assert [summary(launch)[it] for it in same] == [summary(launch, "virtual")[it] for it in same]


@EXHAUSTIVE
@pytest.mark.parametrize(
    ("mode", "servers", "falls_at"),
    [
        *(("async", 1, 17), ("ssp", 2, 17), ("easgd:asynchronous=true", 2, 37)),
        ("gossip:variant=pairs", 0, 60),
    ],
)
def test_a_run_without_rounds_that_is_killed_goes_on(launch, mode, servers, falls_at):
    (launch.folder / "job.py").write_text(JOB)
    assert launch.ranks(servers + 2, "job.py", mode, servers, falls_at).status != 0
    newest = saved(launch)[-1]
    done = launch.ranks(servers + 2, "job.py", mode, servers, -1)
    assert done.status == 0, done.stderr
    assert manifest(launch) == (1, newest)
    assert saved(launch)[-1] > newest
    samples = summary(launch)["samples"]
    (launch.folder / "run").rename(launch.folder / "killed")
    assert launch.ranks(servers + 2, "job.py", mode, servers, -1).status == 0
    assert summary(launch)["samples"] == samples
    assert not list((launch.folder / "killed" / "checkpoints").glob("*.part"))


def test_the_command_line_goes_on_and_says_what_is_there(launch):
    flags = ["--mode", "serial", "--hidden", "4", "--out", "run", "--checkpoint-every", "30"]
    commands = {
        "first": ["train", *flags, "--epochs", "1"],
        "second": ["train", "--resume", "run", "--epochs", "2"],
        "listed": ["checkpoints", "run"],
        "refused": ["train", "--resume", "run", "--lr", "0.3"],
    }
    first, second, listed, refused = launch.one_after_another(0, commands)
    assert (first.status, second.status) == (0, 0), second.stderr
    steps = [line.split("  ")[1].split(",")[0] for line in listed.stdout.splitlines()]
    assert steps == ["step 90", "step 60"]
    assert refused.status == 2
    assert refused.errors == [
        "psrt: error: --resume run would not continue that run: lr 0.3 instead of 0.1"
    ]


@EXHAUSTIVE
@pytest.mark.parametrize(
    "mode",
    ["sync", "async", "ssp", "easgd:asynchronous=true", "gossip:variant=pairs,topology=star"],
)
def test_a_job_that_is_asked_to_end_saves_itself_first(launch, mode):
    flags = f"--mode {mode} --hidden 32 --seed 3"
    flags += "" if "gossip" in mode else " --servers 1"
    more = "--steps 10000000 --checkpoint-every 0.2s --resume auto --out run"
    words = f"-m psrt launch --restarts 1 -n 3 train {flags} {more}"
    process = launch.start(*words.split())
    wait_for(lambda: saved(launch), process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 8, errors
    (line,) = [it for it in errors.splitlines() if it.startswith("psrt: error:")]
    step = int(re.fullmatch(r".*stopped as asked; --resume continues from step (\d+), .*", line)[1])
    assert int(saved(launch)[-1]) == step
    # Workers that are at steps of their own are some before it, some after it.
    last = summary(launch)["steps"] + 200
    assert launch.train(3, "--resume", "run", "--steps", last).status == 0
    stopped = summary(launch)
    (launch.folder / "run").rename(launch.folder / "stopped")
    assert launch.train(3, *flags.split(), "--steps", last, "--out", "run").status == 0
    same = SAME
    if mode != "sync":
        same = ("steps", "samples", *(() if "gossip" in mode else ("updates",)))
    found = summary(launch)
    assert {name: stopped[name] for name in same} == {name: found[name] for name in same}
