"""A run over MPI whose rank is killed goes on from its newest checkpoint to the same bits."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from support.launching import ROOT, TIMEOUT_S

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


def summary(launch):
    found = json.loads((launch.folder / "run" / "summary.json").read_text())
    return {name: found[name] for name in SAME}


@pytest.mark.parametrize(
    ("mode", "servers"),
    [("sync", 1), pytest.param("allreduce", 0, marks=pytest.mark.exhaustive)],
)
def test_a_run_that_is_killed_goes_on_to_the_same_bits(launch, mode, servers):
    (launch.folder / "job.py").write_text(JOB)
    for falls_at in (9, 17):
        assert launch.ranks(3, "job.py", mode, servers, falls_at).status != 0
        saved = sorted(it.name for it in (launch.folder / "run" / "checkpoints").iterdir())
        # What was under way when the rank died may be there in part.
        assert f"{falls_at - 1:08d}" in saved or f"{falls_at - 5:08d}" in saved
    assert launch.ranks(3, "job.py", mode, servers, -1).status == 0
    killed = summary(launch)
    assert not list((launch.folder / "run" / "checkpoints").glob("*.part"))
    (launch.folder / "run").rename(launch.folder / "killed")
    assert launch.ranks(3, "job.py", mode, servers, -1).status == 0
    assert summary(launch) == killed


@pytest.mark.parametrize(
    ("mode", "servers", "falls_at"),
    [
        ("async", 1, 17),
        pytest.param("ssp", 2, 17, marks=pytest.mark.exhaustive),
        pytest.param("easgd", 2, 37, marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_without_rounds_that_is_killed_goes_on(launch, mode, servers, falls_at):
    job = JOB.replace("timeout_s=10,", "timeout_s=10, asynchronous=True,")
    (launch.folder / "job.py").write_text(job if mode == "easgd" else JOB)
    assert launch.ranks(servers + 2, "job.py", mode, servers, falls_at).status != 0
    newest = max(it.name for it in (launch.folder / "run" / "checkpoints").glob("0*[0-9]"))
    done = launch.ranks(servers + 2, "job.py", mode, servers, -1)
    assert done.status == 0, done.stderr
    last = max((launch.folder / "run" / "checkpoints").glob("0*[0-9]"))
    manifest = json.loads((last / "manifest.json").read_text())
    assert (manifest["attempt"], manifest["parent"]) == (1, newest)
    assert last.name > newest
    found = json.loads((launch.folder / "run" / "summary.json").read_text())
    samples = found["samples"]
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


@pytest.mark.parametrize(
    "falls", [(40,), pytest.param((4, 100), marks=pytest.mark.exhaustive)], ids=["once", "twice"]
)
def test_averages_in_pairs_go_on_and_have_one_history(launch, falls):
    (launch.folder / "job.py").write_text(IN_PAIRS)
    for falls_at in falls:
        assert launch.ranks(4, "job.py", "gossip", 0, falls_at).status != 0
        newest = max(it.name for it in (launch.folder / "run" / "checkpoints").glob("0*[0-9]"))
        assert int(newest) >= falls_at
    done = launch.ranks(4, "job.py", "gossip", 0, -1)
    assert done.status == 0, done.stderr
    last = max((launch.folder / "run" / "checkpoints").glob("0*[0-9]"))
    manifest = json.loads((last / "manifest.json").read_text())
    assert (manifest["attempt"], manifest["parent"]) == (len(falls), newest)
    assert summary(launch)["samples"] == 30 * 1437
    checked = launch.psrt("check", "run")
    assert checked.status == 0, checked.stdout + checked.stderr
    assert not list((launch.folder / "run" / "checkpoints").glob("*.part"))


def test_the_command_line_goes_on_and_says_what_is_there(launch):
    flags = ["--mode", "serial", "--hidden", "4", "--out", "run", "--checkpoint-every", "30"]
    assert launch.python("-m", "psrt", "train", *flags, "--epochs", "1").status == 0
    assert launch.python("-m", "psrt", "train", "--resume", "run", "--epochs", "2").status == 0
    done = launch.python("-m", "psrt", "checkpoints", "run")
    assert [line.split("  ")[1].split(",")[0] for line in done.stdout.splitlines()] == [
        "step 90",
        "step 60",
    ]
    refused = launch.python("-m", "psrt", "train", "--resume", "run", "--lr", "0.3")
    assert refused.status == 2
    assert refused.errors == [
        "psrt: error: --resume run would not go on with that run: lr 0.3 instead of 0.1"
    ]


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
TRAIN = "train --mode sync --hidden 32 --steps 4000 --checkpoint-every 100 --resume auto --out run"


@pytest.mark.parametrize(
    "is_own",
    [False, pytest.param(True, marks=pytest.mark.exhaustive)],
    ids=["ours", "own line"],
)
def test_launch_starts_a_job_again_that_was_killed(launch, is_own):
    (launch.folder / "sitecustomize.py").write_text(FALLS)
    before = f"--env PYTHONPATH={launch.folder} --restarts 2 -n 3"
    if is_own:
        line = [*launch.mpirun, "-n", 3, sys.executable, "-m", "psrt", *TRAIN.split()]
        words = ["--restarts", 2, "--", *line]
    else:
        words = [*before.split(), *TRAIN.split()]
    done = launch.python("-m", "psrt", "launch", *words, PYTHONPATH=f"{launch.folder}:{ROOT}")
    assert done.status == 0, done.stderr
    assert "restart 1 of 2 in 1 s" in done.stderr
    assert "going on from step" in done.stdout
    # The rank is named, since it reaches its parent.
    (line,) = done.errors
    assert "(rank 1, " in line


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["sync", "async", "ssp", "easgd", "gossip"])
def test_a_job_that_is_asked_to_end_saves_itself_first(launch, mode):
    flags = f"--mode {mode} --hidden 32 --seed 3"
    flags += " --topology star" if mode == "gossip" else " --servers 1"
    if mode in ("easgd", "gossip"):
        flags += " --asynchronous"
    more = "--steps 10000000 --checkpoint-every 0.2s --resume auto --out run"
    words = f"-m psrt launch --restarts 1 -n 3 train {flags} {more}"
    process = launch.start(*words.split())
    checkpoints = launch.folder / "run" / "checkpoints"
    while not any(it.name.isdigit() for it in checkpoints.glob("*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 8, errors
    (line,) = [it for it in errors.splitlines() if it.startswith("psrt: error:")]
    step = int(re.fullmatch(r".*stopped as asked; --resume goes on from step (\d+), .*", line)[1])
    assert int(max(it.name for it in checkpoints.iterdir())) == step
    # Workers that are at steps of their own are some before it, some after it.
    last = summary(launch)["steps"] + 200
    assert launch.train(3, "--resume", "run", "--steps", last).status == 0
    stopped = summary(launch)
    (launch.folder / "run").rename(launch.folder / "stopped")
    assert launch.train(3, *flags.split(), "--steps", last, "--out", "run").status == 0
    same = (
        SAME if mode == "sync" else ("steps", "samples", "updates")[: 2 if mode == "gossip" else 3]
    )
    found = summary(launch)
    assert {name: stopped[name] for name in same} == {name: found[name] for name in same}


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
