"""``psrt bench allreduce`` as a user starts it: what it prints, writes and refuses."""

import json

import pytest

from psrt.collective.analysis.machine import MachineCosts

TINY = ("--sizes", "1K,4K", "--rounds", "1")


def bench(launch, ranks, *flags):
    return launch.ranks(ranks, "-m", "psrt", "bench", "allreduce", *flags)


def test_tables_figures_and_costs(launch):
    kept = ("--fit", "costs.json", "--force")  # the machine may be busy
    done = bench(launch, 3, *TINY, "--hosts", "1,2", "--json", "all.json", *kept)
    assert done.status == 0, done.stderr
    assert "measures 2 sizes of vectors on 2 sets of ranks, for up to 240 s; --quick" in done.stdout
    for title in (
        "costs of this machine",
        "all-reduce",
        "small calls, in two patterns",
        "all candidates",
    ):
        assert done.stdout.count(f"\n{title}\n") == 1
    written = json.loads((launch.folder / "all.json").read_text())
    layouts = {(row["ranks"], row["hosts"], row["bytes"]) for row in written["all-reduce"]}
    assert layouts == {(2, hosts, nbytes) for hosts in (1, 2) for nbytes in (1024, 4096)}
    assert {row["algorithm"] for row in written["all-reduce"]} >= {"MPI.Allreduce", "auto", "node"}
    costs = MachineCosts.from_json((launch.folder / "costs.json").read_text())
    assert {(name, hosts) for name, hosts, _, _ in costs.measured} == {("mpi", (2,))}
    again = bench(launch, 2, *TINY, "--hosts", "1", "--machine-costs", "costs.json")
    assert again.status == 0, again.stderr
    assert "costs of this machine" not in again.stdout
    assert "auto: " in again.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--sizes 1X", "--sizes 1X"),
        ("--sizes 1K:", "--sizes"),
        ("--sizes 1M:1K", "--sizes end before"),
        ("--sizes 10", "--sizes float32"),
        ("--sizes 2G", "--sizes 1G"),
        ("--ranks 4", "--ranks 2 3 4"),
        ("--ranks 1,2", "--ranks 2 1,2"),
        ("--ranks two", "--ranks two"),
        ("--ranks 3 --hosts 2", "3 ranks evenly 2 hosts"),
        ("--machine-costs missing.json", "missing.json"),
        ("--machine-costs broken.json", "broken.json JSON"),
        ("--fit missing/costs.json", "write missing/costs.json"),
        ("--json .", "write ."),
    ],
)
def test_refused(launch, flags, words):
    (launch.folder / "broken.json").write_text("costs")
    done = bench(launch, 3, *flags.split())
    assert done.status == 2, done.stderr
    (error,) = done.errors
    assert "Traceback" not in done.stderr
    for word in words.split():
        assert word in error
