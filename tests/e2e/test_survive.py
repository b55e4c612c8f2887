"""Workers that fall silent where nobody needs them, or die under --survive: the others train on."""

import json
import os
import signal
from contextlib import suppress

import pytest

from psrt.faults.processes import state_of
from support.cases import also
from support.launching import TIMEOUT_S, wait_for

EXHAUSTIVE = pytest.mark.exhaustive


def read(launch, name):
    return json.loads((launch.folder / "run" / name).read_text())


#: Workers stop themselves in a step, or die under --survive.
JOB = """
import os, pathlib, signal, sys, time
import numpy as np
import psrt
from psrt.core.errors import MissingWorkersError
from psrt.mpi.start import world

mode, servers, survives, what = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "dies", sys.argv[5:]
steps = dict(map(int, it.split(":")) for it in sys.argv[4].split(",") if it)
workers = world().size - servers


class Problem:
    made, worker = 0, -1

    def initial(self):
        return np.zeros(70_000, np.float32)  # more than a block

    def batches(self, worker, workers, epoch):
        if epoch == 0:
            Problem.worker = worker
        with open(f"dealt-{Problem.worker}", "a") as file:
            print(epoch, worker, workers, file=file)
        more = 3 if "uneven" in what and Problem.worker == 1 else 1
        return [np.ones(2)] * (more * (120 // workers) if survives else 200)

    def loss_and_grad(self, theta, batch, out):
        Problem.made += 1
        if Problem.made == 1:  # else one may be done before another has begun
            pathlib.Path(f"worker-{self.worker}-begins").touch()
            while not all(pathlib.Path(f"worker-{it}-begins").exists() for it in range(workers)):
                time.sleep(0.001)
        if Problem.made == steps.get(self.worker):
            os.kill(os.getpid(), signal.SIGKILL if survives else signal.SIGSTOP)
        out[:] = 0.001
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


config = psrt.TrainConfig(
    # Of four in pairs, all that ask then ask the last one first.
    seed=2, mode=mode, servers=servers, epochs=4 if survives else 2, lr=0.1, out="run", record=True,
    timeout_s=20 if survives else 3, survive=survives or None, log_every=7 if survives else None,
    shared_memory="messages" not in what,
    shards_per_server=2 if "shards" in what else None,
    placement=next((it for it in ("spread", "last") if it in what), None),
)
try:
    run = psrt.run(config, Problem())
except MissingWorkersError as error:
    if "catches" not in what:
        raise
    run = error.run
    time.sleep(1.5)  # longer than those have that a job's end ends
if run is not None:
    print("kept", run.theta.size, [it.worker for it in run.summary.missing], flush=True)
if "again" in what:
    psrt.run(config, Problem())
"""


@pytest.fixture
def silent(launch):
    (launch.folder / "job.py").write_text(JOB)

    def run(ranks, mode, servers, *what):
        last = f"{ranks - servers - 1}:150"
        done = launch.ranks(ranks, "job.py", mode, servers, "stops", last, *what)
        for member in read(launch, "roster.json"):  # MPICH's mpirun does not wait for its ranks
            wait_for(lambda pid=member["pid"]: state_of(pid) in "XZ")
        return done

    return run


@pytest.mark.parametrize(
    ("ranks", "mode", "servers", "what"),
    [
        (3, "async", 1, ()),
        also(4, "softsync", 2, ()),
        also(4, "gossip", 0, ()),
        also(5, "async", 2, ("spread",)),
        also(4, "softsync", 2, ("messages",)),
        also(3, "ssp", 1, ("shards",)),
        also(4, "local-sgd:local-steps=5,quorum=1,sync-delay=2,grace=auto", 1, ("shards",)),
        also(4, "easgd:asynchronous=true", 1, ()),
        also(4, "gossip", 0, ("messages",)),
        (4, "gossip:variant=pairs", 0, ("messages",)),
    ],
)
def test_the_others_train_on_and_the_run_has_results(launch, silent, ranks, mode, servers, what):
    done = silent(ranks, mode, servers, *what)
    assert done.status == 4, done.stderr
    assert "Traceback" not in done.stderr
    worker = ranks - servers - 1
    (victim,) = (it for it in read(launch, "roster.json") if it["role"] == f"worker {worker}")
    name = f"worker {worker} (rank {victim['rank']}, {victim['host']}, pid {victim['pid']})"
    (notice,) = [line for line in done.stderr.splitlines() if "the others continue" in line]
    assert f"within 3 s (--timeout-s): {name} is stopped by a signal" in notice
    (line,) = done.errors
    assert line == f"psrt: error: the run continued without {name}, which stopped responding"
    summary = read(launch, "summary.json")
    (missing,) = summary["missing"]
    assert 0 < missing.pop("clock") <= 150
    assert missing == {"worker": worker, **{it: victim[it] for it in ("rank", "host", "pid")}}
    assert summary["steps"] == 400
    assert summary["samples"] == 400 * 2 * (summary["workers"] - 1)
    assert (launch.folder / "run" / "model.safetensors").exists()

    commands = {"check": ["check", "run"], "replay": ["simulate", "--replay", "run"]}
    checked, replayed = launch.one_after_another(0, commands)
    assert checked.status == 0, checked.stdout + checked.stderr
    assert replayed.status == 2
    (line,) = replayed.errors
    assert f"worker {worker} went missing in it, which a replay cannot repeat" in line


@EXHAUSTIVE
def test_a_program_may_go_on_with_what_the_others_came_to(silent):
    done = silent(3, "async", 1, "catches")
    assert done.status == 4, done.stderr
    assert "kept 70000 [1]" in done.stdout
    assert done.errors == []


@EXHAUSTIVE
def test_psrt_launch_tells_no_other_reason(launch):
    (launch.folder / "job.py").write_text(JOB)
    done = launch.psrt("launch", "-n", 3, "job.py", "async", 1, "stops", "1:150")
    assert done.status == 4, done.stderr
    (line,) = done.errors
    assert "the run continued without worker 1 (rank 2," in line


#: A step amid an epoch, and one of its last.
AMID, LATE = 15, 39


@pytest.fixture
def open_mpi(launch):
    if not launch.is_open_mpi:
        pytest.skip("MPICH ends a job when a rank dies")


@pytest.fixture
def job(launch, open_mpi):
    (launch.folder / "job.py").write_text(JOB)

    def run(ranks, mode, servers, steps, *what, ft=("--with-ft", "ulfm")):
        dies = ",".join(f"{worker}:{step}" for worker, step in steps.items())
        return launch.ranks(ranks, "job.py", mode, servers, "dies", dies, *what, flags=ft)

    return run


@pytest.mark.parametrize(
    ("ranks", "mode", "servers", "deaths", "what"),
    [
        (4, "sync", 1, {1: AMID}, ()),
        (5, "local-sgd:learner-ranks=2,quorum=1", 1, {1: AMID}, ()),
        also(5, "async", 2, {0: AMID, 2: LATE}, ("messages",)),
        also(4, "sync", 1, {0: 1}, ("messages", "shards")),
        also(4, "sync:backup=1", 1, {2: AMID}, ()),
        also(4, "ssp", 1, {0: LATE, 1: LATE}, ("messages", "shards")),
        also(4, "softsync", 1, {2: AMID}, ()),
        also(5, "local-sgd", 2, {1: AMID, 2: AMID}, ()),
        also(5, "local-sgd:quorum=2,sync-delay=4", 1, {1: AMID}, ("messages",)),
        also(5, "local-sgd:local-steps=3,quorum=2,grace=0.01", 1, {0: LATE, 2: AMID}, ("shards",)),
        also(4, "easgd:asynchronous=true", 1, {1: AMID}, ("messages",)),
        also(4, "sync", 1, {2: AMID}, ("last",)),
        also(4, "async", 1, {1: 470}, ("uneven",)),  # when the others are done
    ],
)
def test_the_others_train_to_the_end(launch, job, ranks, mode, servers, deaths, what):
    done = job(ranks, mode, servers, deaths, *what)
    # The first rank of its learner is lost along.
    lost = sorted({*deaths, 0} if "learner" in mode else deaths)
    assert done.status == 0, done.stderr
    assert "Traceback" not in done.stderr
    pid = {it["role"]: it["pid"] for it in read(launch, "roster.json")}
    told = [line for line in done.stderr.splitlines() if "the others continue" in line]
    for worker in deaths:
        (line,) = (it for it in told if f"worker {worker} (" in it)
        assert f"pid {pid[f'worker {worker}']})" in line
    assert not done.errors
    assert f"kept 70000 {lost}" in done.stdout
    summary = read(launch, "summary.json")
    assert [it["worker"] for it in summary["missing"]] == lost
    lines = (launch.folder / "run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert summary["samples"] == last["samples"]
    assert all(summary[it] >= last[it] for it in ("bytes_sent", "bytes_received"))
    assert (summary["steps"], summary["epochs"]) >= (last["step"], last["epoch"])
    assert summary["seconds"] >= round(last["seconds"], 6)
    if "backup" not in mode:  # which leaves out clocks
        assert all(it["clock"] < max(deaths.values()) for it in summary["missing"])
    checked = launch.psrt("check", "run")
    assert checked.status == 0, checked.stdout + checked.stderr

    # All have dealt the samples of an epoch out alike, and without those who had died before.
    workers = ranks - servers
    rows = [
        line.split()
        for it in range(workers)
        for line in (launch.folder / f"dealt-{it}").read_text().splitlines()
    ]
    for epoch in map(str, range(4)):
        places = [int(place) for of, place, _ in rows if of == epoch]
        (among,) = {int(among) for of, _, among in rows if of == epoch}
        assert len(set(places)) == len(places) >= workers - len(lost)
        assert set(places) <= set(range(among))
    if mode != "async":  # there the others may have been in their last epoch
        assert among == workers - len(lost)


@EXHAUSTIVE
def test_without_what_mpi_needs_for_it_nothing_begins(launch, job):
    done = job(3, "sync", 1, {}, ft=())
    assert done.status == 2, done.stderr
    (line,) = [it for it in done.stderr.splitlines() if "psrt: error" in it]
    assert "--survive needs Open MPI under mpirun --with-ft ulfm" in line
    assert not (launch.folder / "run").exists()


@EXHAUSTIVE
def test_there_is_no_other_run_in_the_program(job):
    done = job(4, "sync", 1, {1: AMID}, "again")
    assert "kept 70000 [1]" in done.stdout
    assert "workers of an earlier run have died" in done.stderr
    assert done.status == 4


@EXHAUSTIVE
@pytest.mark.usefixtures("open_mpi")
@pytest.mark.parametrize(
    ("mode", "dies", "flags"),
    [
        ("sync", 1, ("--servers", 2)),
        ("sync:backup=1", 2, ("--no-shared-memory",)),
        ("ssp", 1, ("--servers", 1, "--shards-per-server", 2)),
        ("local-sgd", 0, ("--servers", 1)),
        ("easgd:asynchronous=true", 1, ("--servers", 1)),
        ("sync", 1, ("--checkpoint-every", "1s")),
    ],
)
def test_checkpoints_go_on_after_a_death_and_the_job_from_them(launch, mode, dies, flags):
    """With another worker in the place of the dead one, and with those who were left."""
    started = launch.start(
        "-m", "psrt", "launch", "-n", 5, "train", "--mode", mode, "--epochs", 100_000, "--survive",
        "--out", "run", "--checkpoint-every", 50, *flags,
    )  # fmt: skip
    servers = flags[flags.index("--servers") + 1] if "--servers" in flags else 1
    workers = 5 - servers

    def newest():
        names = sorted((launch.folder / "run" / "checkpoints").glob("0*[0-9]/manifest.json"))
        with suppress(OSError):  # another one has taken its place
            return json.loads(names[-1].read_text()) if names else {"absent": None}
        return newest()

    try:
        wait_for(lambda: newest()["absent"] == [])
        pid = {it["role"]: it["pid"] for it in read(launch, "roster.json")}
        os.kill(pid[f"worker {dies}"], signal.SIGKILL)
        wait_for(lambda: newest()["absent"] == [dies])
        first = newest()["step"]
        wait_for(lambda: newest()["step"] > first)  # and they go on being made
        os.kill(pid["server 0"], signal.SIGKILL)
    finally:
        _, stderr = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 5, stderr
    assert "no more checkpoints" not in stderr

    step = newest()["step"]
    assert newest()["absent"] == [dies]
    listed = launch.psrt("checkpoints", "run", "--show", "--export", "model.safetensors")
    assert f"{workers} workers (without worker {dies})" in listed.stdout
    assert f"worker-{dies}-of-{workers}" not in listed.stdout
    for ranks, out in ((5, "again"), (4, "fewer")):
        done = launch.psrt(
            "launch", "-n", ranks, "train", "--survive", "--resume", "run", "--out", out,
            "--steps", step * 2 + 500,
        )  # fmt: skip
        assert done.status == 0, done.stderr
        going_on = f"resuming from step {step}, "
        (line,) = [it for it in done.stdout.splitlines() if it.startswith(going_on)]
        assert line.endswith(f"which is without worker {dies}")
        summary = json.loads((launch.folder / out / "summary.json").read_text())
        assert summary["workers"] == ranks - servers
        assert not summary["missing"]
        assert summary["steps"] > step


@EXHAUSTIVE
@pytest.mark.usefixtures("open_mpi")
@pytest.mark.parametrize(
    ("mode", "servers", "dies"), [("sync", 2, "server 1"), ("async", 1, "server 0")]
)
def test_without_a_server_or_rank_0_nobody_goes_on(launch, mode, servers, dies):
    started = launch.start(
        "-m", "psrt", "launch", "-n", 4, "train", "--mode", mode, "--servers", servers,
        "--epochs", 2000, "--survive", "--out", "run",
    )  # fmt: skip
    metrics = launch.folder / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 3)
    roster = read(launch, "roster.json")
    os.kill(next(it["pid"] for it in roster if it["role"] == dies), signal.SIGKILL)
    _, stderr = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 5, stderr
    (line,) = [it for it in stderr.splitlines() if "psrt: error" in it]
    assert f"psrt: error: {dies} (rank" in line
