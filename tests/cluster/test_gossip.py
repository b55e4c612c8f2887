"""Gossip between hosts: by host as in virtual time, what links carry, and a host that is lost."""

import json
import time

import pytest

from psrt.cli.simulate import main as simulate
from psrt.history.check.run import check_run
from psrt.history.reading import read_header
from psrt.report.files import SUMMARY
from support.hosts import VENDORS
from support.launching import ROOT, TIMEOUT_S

FAULTY = ROOT / "apps" / "studies" / "faulty_job.py"
JOB = ["--dataset", "synthetic:600x20x4", "--batch-size", 16, "--steps", 25]
RANKS = (2, 1, 1)


@pytest.mark.exhaustive
def test_by_host_is_as_in_virtual_time(train, bits, vendor, tmp_path, capsys):
    flags = [*JOB, "--mode", "gossip:variant=by-host,order=adapt-then-combine"]
    run = train(f"{vendor}-by-host", vendor, RANKS, *flags)
    outcome = check_run(run)
    assert outcome.ok, outcome.lines()
    assert read_header(run).hosts == (0, 0, 2, 3)
    virtual = tmp_path / "virtual"
    words = [*flags, "--hosts", ",".join(map(str, RANKS)), "--out", virtual]
    assert simulate([str(word) for word in words]) == 0
    assert bits(run) == bits(virtual)
    assert simulate(["--replay", str(run)]) == 0
    assert "the same parameters to the bit" in capsys.readouterr().out


def sent(hosts, name):
    """Return the bytes that a host has sent so far."""
    (line,) = (
        line for line in hosts.run(name, "cat", "/proc/net/dev").stdout.splitlines()
        if line.strip().startswith("eth0:")
    )  # fmt: skip
    return int(line.partition(":")[2].split()[8])


@pytest.mark.exhaustive
def test_a_host_sends_a_vector_to_each_neighbour(hosts, train, vendor):
    """Whatever its number of ranks."""
    ranks = (1, 3, 1)
    flags = [*JOB, "--mode", "gossip:topology=star,variant=by-host"]
    flags += ["--hidden", 2000, "--no-record"]
    before = [sent(hosts, name) for name in hosts.names]
    run = train(f"{vendor}-bytes-by-host", vendor, ranks, *flags)
    grown = [sent(hosts, name) - b for name, b in zip(hosts.names, before, strict=True)]
    n = json.loads((run / SUMMARY).read_text())["parameters"]
    for host, degree in enumerate((2, 1, 1)):
        due = 25 * degree * 4 * n
        # What workers hold at the end goes to rank 0 as well, and every packet has a header.
        mean = 0 if host == 0 else ranks[host] * 4 * n
        assert due + mean <= grown[host] <= 1.2 * (due + mean), (host, due, grown)


@pytest.mark.exhaustive
def test_a_host_whose_link_is_cut_is_done_without(hosts, vendor):
    """To the end; mpirun of Open MPI notices after a while, and takes the other ranks down."""
    lines = (f"{name}:{count}\n" for name, count in zip(hosts.names, RANKS, strict=True))
    (hosts.folder / "gossip").write_text("".join(lines))
    flags = ["--mode", "gossip:variant=by-host", "--timeout-s", 5]
    words = [VENDORS[vendor] / "bin" / "psrt", "launch", "--hostfile", "gossip", FAULTY, *flags]
    process = hosts.start(hosts.names[0], *words, OMPI_MCA_mpi_yield_when_idle="1")
    trains = hosts.folder / "trains"
    try:
        while not trains.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        hosts.cut_link("node02")
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        hosts.mend_link("node02")
        trains.unlink(missing_ok=True)
    (line,) = (line for line in stderr.splitlines() if line.endswith("the others continue"))
    assert "worker 2 (rank 2, node02, pid" in line
    assert process.returncode in ((4, 5) if vendor == "openmpi" else (4,)), stderr
