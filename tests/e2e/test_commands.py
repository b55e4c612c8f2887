"""psrt explain, doctor and bench as a user starts them: what they print, write and refuse."""

import json

import pytest

from psrt.collective.analysis.machine import MachineCosts

EXHAUSTIVE = pytest.mark.exhaustive


def test_explain_a_worked_example(launch):
    (launch.folder / "it.csv").write_text("A,17,11,1,9\nB,5,13,23,14\nC,3,6,10,8\nD,12,7,2,12\n")
    (launch.folder / "bad.csv").write_text("A,1,x\n")
    flags = ["explain", "ring", "--order", "A,B,D,C", "--values", "it.csv", "--svg", "a.svg"]
    commands = {"said": flags, "json": [*flags, "--json"]}
    commands |= {name: ["explain", "ring", "--values", name] for name in ("bad.csv", "none.csv")}
    said, figures, *bad = launch.one_after_another(0, commands)
    assert said.status == 0
    assert "all ranks end with (37, 37, 36, 43)" in said.stdout
    assert (launch.folder / "a.svg").read_text().startswith("<svg ")
    assert json.loads(figures.stdout)["totals"]["messages"] == 24
    for name, word, done in zip(("bad", "none"), ("'x'", "cannot be read"), bad, strict=True):
        assert (done.status, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith(f"psrt: error: {name}.csv")
        assert word in done.stderr


def test_the_doctor_alone(launch):
    refused = {
        "--timeout-s 0": "error: --timeout-s must be above 0",
        "--json nowhere/x": "cannot write nowhere/x",
        "now": "unexpected argument",
    }
    commands = {
        "alone": ["doctor", "--out", "runs/x"],
        **{words: ["doctor", *words.split()] for words in refused},
        "run": ["train", "--steps", "1", "--out", "runs/y"],
        "held": ["doctor", "--out", "runs/y"],
    }
    alone, *bad, run, held = launch.one_after_another(0, commands)
    assert (alone.status, run.status, held.status) == (0, 0, 0), alone.stderr
    assert "1 rank on one host; psrt train would use them as serial" in alone.stdout
    assert "no launcher" in alone.stdout
    assert "fails  " not in alone.stdout
    assert not (launch.folder / "runs/x").exists()
    assert "runs/y holds a run already (config.toml" in held.stdout
    for done, says in zip(bad, refused.values(), strict=True):
        assert done.status == 2
        assert says in done.errors[0]


def test_the_doctor_on_ranks(launch):
    done = launch.psrt("launch", "-n", 2, "doctor", "--json", "found.json", "--out", "x\udcff")
    assert done.status == 0, done.stderr
    assert (
        "2 ranks on one host; psrt train would use them as sync, 1 server, 1 worker" in done.stdout
    )
    assert "mpirun of" in done.stdout
    assert "seen" in done.stdout  # a folder whose name is not text
    found = json.loads((launch.folder / "found.json").read_text())
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert {rank["started"] for rank in found["ranks"]} == {2}
    assert all(set(finding) == {"severity", "what", "cure"} for finding in found["findings"])


#: Of small vectors, once.
TINY = ("bench", "allreduce", "--sizes", "1K,4K", "--rounds", "1")


@EXHAUSTIVE
def test_bench_tables_figures_and_costs(launch):
    costs = ("--fit", "costs.json", "--force")  # the machine may be busy
    commands = {
        "all": [*TINY, "--hosts", "1,2", "--json", "all.json", *costs],
        "again": [*TINY, "--hosts", "1", "--ranks", "2", "--machine-costs", "costs.json"],
    }
    done, again = launch.one_after_another(3, commands)
    assert "measuring 2 vector sizes on 2 sets of ranks, for up to 240 s; --quick" in done.stdout
    titles = ("costs of this machine", "all-reduce", "small calls, in two patterns")
    for title in (*titles, "all candidates"):
        assert done.stdout.count(f"\n{title}\n") == 1
    written = json.loads((launch.folder / "all.json").read_text())
    layouts = {(row["ranks"], row["hosts"], row["bytes"]) for row in written["all-reduce"]}
    assert layouts == {(2, hosts, nbytes) for hosts in (1, 2) for nbytes in (1024, 4096)}
    assert {row["algorithm"] for row in written["all-reduce"]} >= {"MPI.Allreduce", "auto", "node"}
    costs = MachineCosts.from_json((launch.folder / "costs.json").read_text())
    assert {(name, hosts) for name, hosts, _, _ in costs.measured} == {("mpi", (2,))}
    assert again.status == 0, again.stderr
    assert "costs of this machine" not in again.stdout
    assert "auto: " in again.stdout


@EXHAUSTIVE
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--sizes 1M:1K", "--sizes end before"),
        ("--ranks 1,2", "--ranks 2 1,2"),
        ("--ranks 3 --hosts 2", "3 ranks evenly 2 hosts"),
        ("--machine-costs broken.json", "broken.json JSON"),
        ("--fit missing/costs.json", "write missing/costs.json"),
    ],
)
def test_bench_refuses(launch, flags, words):
    (launch.folder / "broken.json").write_text("costs")
    done = launch.ranks(3, "-m", "psrt", "bench", "allreduce", *flags.split())
    assert done.status == 2, done.stderr
    (error,) = done.errors
    assert all(word in error for word in words.split()), error
