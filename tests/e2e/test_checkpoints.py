"""A run over MPI whose rank is killed goes on from its newest checkpoint to the same bits."""

import json
import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

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


TRAIN = "train --mode sync --hidden 32 --steps 2000 --checkpoint-every 100 --resume auto --out run"


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
    assert "going on from step" in done.stdout
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
    [("async", 1, 17), ("ssp", 2, 17), ("easgd", 2, 37)],
)
def test_a_run_without_rounds_that_is_killed_goes_on(launch, mode, servers, falls_at):
    job = JOB.replace("timeout_s=10,", "timeout_s=10, asynchronous=True,")
    (launch.folder / "job.py").write_text(job if mode == "easgd" else JOB)
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


#: A worker of a job that averages in pairs kills itself once there is a checkpoint of that step.
IN_PAIRS = (
    JOB.replace("mode=mode,", "mode=mode, topology='ring', asynchronous=True, record=True,")
    .replace("epochs=4,", "epochs=30, log_every=16, inject=('*:delay:0.005',),")
    .replace("self.clock == falls_at", "0 < falls_at <= newest()")
    .replace(
        "Worker._step = falls", "Worker._step = falls\nnewest = lambda: max(saved(), default=0)"
    )
    .replace("mode, servers,", "saved = lambda: map(int, names())\nmode, servers,")
    .replace(
        "mode, servers,",
        "names = lambda: filter(str.isdigit, os.listdir('run/checkpoints'))\nmode, servers,",
    )
)


@EXHAUSTIVE
@pytest.mark.parametrize("falls", [(40,), (4, 100)], ids=["once", "twice"])
def test_averages_in_pairs_go_on_and_have_one_history(launch, falls):
    (launch.folder / "job.py").write_text(IN_PAIRS)
    for falls_at in falls:
        assert launch.ranks(4, "job.py", "gossip", 0, falls_at).status != 0
        newest = saved(launch)[-1]
        assert int(newest) >= falls_at
    done = launch.ranks(4, "job.py", "gossip", 0, -1)
    assert done.status == 0, done.stderr
    assert manifest(launch) == (len(falls), newest)
    assert summary(launch)["samples"] == 30 * 1437
    checked = launch.psrt("check", "run")
    assert checked.status == 0, checked.stdout + checked.stderr
    assert not list((launch.folder / "run" / "checkpoints").glob("*.part"))


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
        "psrt: error: --resume run would not go on with that run: lr 0.3 instead of 0.1"
    ]


@EXHAUSTIVE
def test_a_launcher_that_hangs_before_there_is_a_rank(launch):
    """In the place of mpirun: the first time it hangs, and leaves a process behind."""
    hangs = launch.folder / "mpirun"
    quoted = shlex.join([*launch.mpirun, "-n", "2"])
    hangs.write_text(
        f'#!/bin/sh\n[ -e again ] && exec {quoted} "$@"\n'
        "touch again\ntrap '' TERM\nsleep 97 &\nwait\nsleep 98\n"
    )
    hangs.chmod(0o755)
    line = [hangs, sys.executable, "-m", "psrt", *TRAIN.replace("sync", "allreduce").split()]
    words = ["-m", "psrt", "launch", "--restarts", 1, "--", *line]
    done = launch.python(*words, PSRT_START_TIMEOUT_S="5")
    assert done.status == 0, done.stderr
    assert re.search("the job was ended, as no rank was there within 3[5-9] s, before", done.stderr)
    found = subprocess.run(["pgrep", "-f", "^sleep 9[78]$"], capture_output=True, check=False)
    assert found.stdout == b""


@EXHAUSTIVE
@pytest.mark.parametrize("mode", ["sync", "async", "ssp", "easgd", "gossip"])
def test_a_job_that_is_asked_to_end_saves_itself_first(launch, mode):
    flags = f"--mode {mode} --hidden 32 --seed 3"
    flags += " --topology star" if mode == "gossip" else " --servers 1"
    if mode in ("easgd", "gossip"):
        flags += " --asynchronous"
    more = "--steps 10000000 --checkpoint-every 0.2s --resume auto --out run"
    words = f"-m psrt launch --restarts 1 -n 3 train {flags} {more}"
    process = launch.start(*words.split())
    wait_for(lambda: saved(launch), process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 8, errors
    (line,) = [it for it in errors.splitlines() if it.startswith("psrt: error:")]
    step = int(re.fullmatch(r".*stopped as asked; --resume goes on from step (\d+), .*", line)[1])
    assert int(saved(launch)[-1]) == step
    # Workers that are at steps of their own are some before it, some after it.
    last = summary(launch)["steps"] + 200
    assert launch.train(3, "--resume", "run", "--steps", last).status == 0
    stopped = summary(launch)
    (launch.folder / "run").rename(launch.folder / "stopped")
    assert launch.train(3, *flags.split(), "--steps", last, "--out", "run").status == 0
    same = SAME
    if mode != "sync":
        same = ("steps", "samples", *(() if mode == "gossip" else ("updates",)))
    found = summary(launch)
    assert {name: stopped[name] for name in same} == {name: found[name] for name in same}


@EXHAUSTIVE
def test_other_workers_go_on_with_what_each_had_updated(launch):
    """Over MPI a worker updates its own elements only, and knows the optimizer's state of these."""
    flags = "--mode allreduce --optimizer adam --hidden 32 --epochs 2 --checkpoint-every 20"
    done = launch.train(3, *flags.split(), "--batch-size", 8, "--out", "whole")
    assert done.status == 0, done.stderr
    where = min((launch.folder / "whole" / "checkpoints").iterdir())
    words = ["--resume", where, "--batch-size", 12, "--out", "again"]
    done = launch.train(2, *words)
    assert done.status == 0, done.stderr
    whole, again = (
        load_file(launch.folder / name / "model.safetensors") for name in ("whole", "again")
    )
    for name, array in whole.items():
        np.testing.assert_allclose(again[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
