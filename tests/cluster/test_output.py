"""``--out`` on a folder that is on the first host only: what the others recorded comes there."""

import pytest

from psrt.cli.simulate import main as simulate
from psrt.errors import ConfigError
from psrt.history.check.run import check_run
from psrt.report.files import MODEL

RANKS = (2, 2, 1)
JOB = [
    "--mode",
    "async",
    "--servers",
    2,
    "--placement",
    "spread",
    "--dataset",
    "synthetic:600x20x4",
]
JOB += ["--hidden", "16", "--batch-size", "16", "--steps", "25"]
#: In a folder that every host has of its own.
OUT = "/tmp/runs/own"


@pytest.fixture
def recorded(hosts, vendor):
    """Return what trains into a host's own folder, which is empty again afterwards."""

    def run(*flags, job=JOB):
        words = ("-m", "psrt", "train", *job, "--out", OUT, "--record", *flags)
        return hosts.mpirun(vendor, RANKS, *words)

    yield run
    for name in hosts.names:
        hosts.run(name, "rm", "-rf", "/tmp/runs")


def test_a_folder_of_the_first_host_gets_all_of_the_history(hosts, recorded, capsys):
    for name in hosts.names[1:]:  # a folder of the same name is not the same folder
        hosts.run(name, "mkdir", "-p", f"{OUT}/history")
    done = recorded()
    assert done.status == 0, done.stderr
    assert "history: that of node02, node03 comes to /tmp/runs/own/history" in done.stdout
    run = hosts.own(hosts.names[0], OUT)
    files = [f"rank-{rank:05d}.npy" for rank in range(sum(RANKS))]
    assert sorted(path.name for path in (run / "history").iterdir()) == ["header.json", *files]
    outcome = check_run(run)
    assert outcome.ok, outcome.lines()
    assert simulate(["--replay", str(run)]) == 0
    assert "the same parameters to the bit" in capsys.readouterr().out
    for name in hosts.names[1:]:
        left = hosts.run(name, "find", "/tmp/runs", "-type", "f").stdout
        assert left == ""


def test_without_gathering_the_hosts_that_lack_it_are_named(hosts, recorded):
    done = recorded("--no-gather")
    assert done.status == 2
    (line,) = done.errors
    assert "--no-gather needs an --out that every rank can write to" in line
    assert "on node02, node03 (rank 2, 3, 4)" in line
    assert "step" not in done.stdout
    assert not hosts.own(hosts.names[0], OUT).exists()


def test_a_history_that_did_not_come_is_of_an_unfinished_run(hosts, recorded):
    done = recorded("--lr", "1e6")
    assert done.status != 0  # 3, unless a connection that breaks is noticed before
    with pytest.raises(ConfigError, match="unfinished run: 5 of 5 files without an end"):
        check_run(hosts.own(hosts.names[0], OUT))
    for name in hosts.names[1:]:
        assert list(hosts.own(name, "/tmp/runs").parent.glob("tmp*")) == []


def test_what_nobody_records_needs_no_folder_elsewhere(hosts, vendor):
    done = hosts.mpirun(vendor, RANKS, "-m", "psrt", "train", *JOB, "--out", "/tmp/plain")
    assert done.status == 0, done.stderr
    assert (hosts.own(hosts.names[0], "/tmp/plain") / MODEL).exists()
    for name in hosts.names[1:]:
        assert not hosts.own(name, "/tmp/plain").exists()
    hosts.run(hosts.names[0], "rm", "-r", "/tmp/plain")
