"""Every mode between hosts: it trains, keeps its contract, and repeats where it promises to.

Cut models, shards one behind the other, and the tests of the communicator.
"""

import hashlib
import json
from typing import Any, NamedTuple

import numpy as np
import pytest

from psrt.cli.simulate import main as simulate
from psrt.config.modes import MODES
from psrt.history import Kind, read_history
from psrt.history.check.run import check_run
from psrt.history.reading import read_header
from psrt.report.files import MODEL, SUMMARY
from support.hosts import VENDORS
from support.launching import ROOT

JOB = ["--dataset", "synthetic:600x20x4", "--hidden", "16", "--batch-size", "16", "--steps", "25"]


#: What `auto` takes depends on the hosts, and with it the order of a sum.
NAMED = ["--servers", "0", "--allreduce", "ring"]


#: Of modes with knobs under which the same command may end in other bits. No cycle of three ranks.
KNOBS = {
    "backup": "sync:backup=1",
    "asynchronous": "easgd:asynchronous=true",
    "pairs": "gossip:variant=pairs,topology=star",
}


class Case(NamedTuple):
    """A way to train."""

    flags: list[Any]
    #: Whether the same command ends in the same bits, see docs/guarantees.md.
    repeats: bool


def cases():
    """Every mode of the registry by its row, with servers and without where it may have both."""
    found = {}
    for mode in MODES.values():
        flags, repeats = ["--mode", mode.name], not mode.is_stale
        if mode.may_have_servers:
            found[mode.name] = Case(flags, repeats)
        if mode.sums:
            found[f"{mode.name} without servers"] = Case(flags + NAMED, repeats)
        if mode.mixes:
            found[mode.name] = Case([*flags, "--servers", 0], repeats)
    for name, text in KNOBS.items():
        found[name] = Case(["--mode", text, *(["--servers", 0] if name == "pairs" else [])], False)
    return found


CASES = cases()


def flags_of(case, ranks, *more):
    """Return the flags: as many servers as hosts but one, where there are any."""
    servers = [] if "--servers" in case.flags else ["--servers", len(ranks) - 1]
    return [*JOB, *case.flags, *servers, *more]


@pytest.fixture(scope="session")
def on_one_host(train):
    """Return what trains with the same ranks on one host, once."""
    runs = {}

    def trained(name, vendor, ranks):
        key = name, sum(ranks)
        if key not in runs:
            folder = f"one-host/{name}-{sum(ranks)}".replace(" ", "-")
            runs[key] = train(folder, vendor, (sum(ranks),), *flags_of(CASES[name], ranks))
        return runs[key]

    return trained


def model_sha256(run):
    return hashlib.sha256((run / MODEL).read_bytes()).hexdigest()


#: Those that are in `make test-cluster` of every change: servers and sums, under either MPI.
MAIN = [("sync", "openmpi"), ("allreduce without servers", "mpich")]
#: Each mode under either MPI, on one layout under one and on the other under the other.
ONCE = [
    pytest.param(
        *(name, vendor, ("two", "three")[(i + j) % 2]),
        marks=[pytest.mark.exhaustive] * ((name, vendor) not in MAIN),
    )
    for i, name in enumerate(CASES)
    for j, vendor in enumerate(VENDORS)
]


@pytest.mark.parametrize(("name", "vendor", "layout"), ONCE, indirect=["vendor", "layout"])
def test_a_mode(train, on_one_host, capsys, vendor, layout, name):
    case = CASES[name]
    spread = [] if "--servers" in case.flags else ["--placement", "spread"]
    folder = f"{vendor}-{len(layout)}/{name}".replace(" ", "-")
    run = train(folder, vendor, layout, *flags_of(case, layout, *spread))
    outcome = check_run(run)
    assert outcome.ok, outcome.lines()
    assert len(set(read_header(run).hosts)) == len(layout)
    if case.repeats:
        assert model_sha256(run) == model_sha256(on_one_host(name, vendor, layout))
    assert simulate(["--replay", str(run)]) == 0
    assert "the same parameters to the bit" in capsys.readouterr().out


CUT = [
    *("--dataset", "synthetic:600x20x4", "--hidden", "16,12,9", "--batch-size", "15"),
    *("--micro-batches", 4, "--steps", 25, "--optimizer", "momentum"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        ((2, 1, 1), ["--parallel", "pipeline:4", "--pipeline-schedule", "zero-bubble"]),
        ((2, 2), ["--parallel", "pipeline:2,tensor:2", "--recompute"]),
        ((2, 2), ["--parallel", "pipeline:2", "--allreduce", "ring"]),
    ],
    ids=str,
)
def test_the_bits_are_those_of_one_host(hosts, bits, vendor, ranks, flags):
    def train(name, ranks):
        out = hosts.folder / name
        done = hosts.mpirun(vendor, ranks, "-m", "psrt", "train", *CUT, *flags, "--out", out)
        assert done.status == 0, done.stderr
        return out

    name = "-".join([vendor, "cut", *map(str, ranks), flags[1].replace(":", "").replace(",", "-")])
    run = train(name, ranks)
    alone = train(f"{name}-alone", (sum(ranks),))
    assert bits(run) == bits(alone)
    one, other = (json.loads((it / SUMMARY).read_text()) for it in (run, alone))
    assert one["hosts"] == len(ranks)
    assert one["cut_bytes_sent"] == one["cut_bytes_received"]
    if "tensor" not in flags[1]:  # sums take other ways between hosts
        assert one["cut_bytes_sent"] == other["cut_bytes_sent"]


@pytest.mark.exhaustive
def test_a_learner_on_each_host(train, bits, capsys, vendor):
    flags = [*JOB, "--servers", 1, "--mode"]
    mode = "local-sgd:local-steps=3,learner-ranks="
    run = train(f"{vendor}-learners", vendor, (3, 2, 2), *flags, f"{mode}host")
    alone = train(f"{vendor}-learners-alone", vendor, (7,), *flags, f"{mode}2")
    assert bits(run) == bits(alone)
    assert json.loads((run / SUMMARY).read_text())["allreduce"] == "node"
    outcome = check_run(run)
    assert outcome.ok, outcome.lines()
    assert simulate(["--replay", str(run)]) == 0
    assert "the same parameters to the bit" in capsys.readouterr().out


#: 1.2 MB of parameters: eight shards are longer than what may be unanswered at a time.
STREAMED = [
    "--mode", "sync", "--dataset", "synthetic:600x64x4", "--hidden", "512,512",
    "--batch-size", "16", "--steps", "8", "--servers", "1",
]  # fmt: skip


@pytest.mark.exhaustive
def test_the_first_shards_are_answered_before_the_last_are_there(train, bits, vendor):
    run = train(f"{vendor}-stream-8", vendor, (1, 1, 1), *STREAMED, "--shards-per-server", 8)
    outcome = check_run(run)
    assert outcome.ok, outcome.lines()
    shards = read_history(run).shards
    events = np.concatenate([shard[shard["kind"] != Kind.FINAL] for shard in shards])
    for clock in range(8):
        came = events[(events["kind"] == Kind.RECEIVE) & (events["clock"] == clock)]
        replies = events[(events["kind"] == Kind.REPLY) & (events["clock"] == clock + 1)]
        assert (len(came), len(replies)) == (16, 16)
        assert replies["time"].min() < came["time"].max()
    whole = train(f"{vendor}-stream-1", vendor, (1, 1, 1), *STREAMED, "--shards-per-server", 1)
    assert bits(run) == bits(whole)


#: The tests of the communicator that every rank runs.
FILES = sorted((ROOT / "tests/parallel").glob("test_communicator_*.py"))


@pytest.mark.exhaustive
# Which hosts a rank is on is psrt's, and what carries messages between them the library's.
@pytest.mark.parametrize(
    ("vendor", "layout"), [("openmpi", "two"), ("mpich", "three")], indirect=True
)
def test_the_tests_of_the_communicator(hosts, vendor, layout):
    words = ["-m", "pytest", "-x", "-s", "--color=no", "--with-mpi", *FILES]
    done = hosts.mpirun(vendor, layout, *words, cwd=ROOT, timeout_s=300)
    assert done.status == 0, done.stdout + done.stderr
