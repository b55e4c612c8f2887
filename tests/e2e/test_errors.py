"""What bad input gets: one clear line, printed once whatever N is, status 2, nothing written.

What each line says is tested where it is made; here it is seen to come through, one of each kind.
"""

import sys
import tomllib

import numpy as np
import pytest

from support.cases import also


def refused(done, *words):
    """Check that a command was refused, in one line, for the reason that these words name."""
    assert done.status == 2, (done.status, done.stderr)
    errors = [line for line in done.stderr.splitlines() if "psrt: error:" in line]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in errors[0]


#: As Python shows an argument that is not text in its locale: ``--out ä`` under ``LC_ALL=C``, too.
NOT_TEXT = "x\udcff"
#: Flags, and words of the one line. R stands for the number of ranks.
CASES = {
    "unknown flag": ("--moed sync", "--moed mode"),
    "out of range": ("--batch-size 0", "batch-size least 1"),
    "ignored knob": ("--mode async:staleness=3", "staleness async ssp"),
    "more servers than ranks": ("--mode sync --servers 9", "9 ranks"),
    "serial on ranks": ("--mode serial", "serial R ranks"),
    "batch larger than data": ("--batch-size 2000", "batch-size 1437"),
    "injection for nobody": ("--inject 9:delay:1", "inject 9:delay:1 worker"),
    "costs that are none": ("--mode allreduce --machine-costs bad.toml", "costs bad.toml"),
    "no such data": ("--dataset missing-folder", "missing-folder"),
    "no such config": ("--config missing.toml", "missing.toml"),
    "a folder that is no text": (f"--out {NOT_TEXT}", "out"),
    "more shards than parameters": (
        "--mode sync --servers 2 --shards-per-server 2 --dataset tiny.npz --hidden none "
        "--loss squared --batch-size 1",
        "2 parameters",
    ),
    "config that is no TOML": ("--config bad.toml", "bad.toml line 1"),
    "out that is a file": ("--out taken", "taken"),
    "damaged idx archive": ("--dataset idx --batch-size 1", "gz"),
}


#: Of folders that are used, one that is kept and one that may be overwritten.
USED = {
    "first": "kept",
    "again": "kept --seed 5",
    "another": "over",
    "over": "over --seed 5 --overwrite",
}


@pytest.mark.parametrize("ranks", [3, also(8)])
def test_refused_once_whatever_the_number_of_ranks(launch, ranks):
    """So is a used folder, unless it may be overwritten."""
    (launch.folder / "bad.toml").write_text("mode = sync\n")
    (launch.folder / "taken").write_text("mine")
    parts = {
        f"{name}_{part}": np.zeros((n, 1), np.float32)
        for part, n in (("train", 8), ("test", 2))
        for name in "xy"
    }
    np.savez(launch.folder / "tiny.npz", **parts)
    (launch.folder / "idx").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (launch.folder / "idx" / f"{name}-ubyte.gz").write_bytes(b"\x1f\x8b none")

    def contents():
        files = {it for it in launch.folder.rglob("*") if it.is_file()}
        return {it: it.read_bytes() for it in files if it.parent.name not in ("kept", "over")}

    before = contents()
    commands = {
        case: ["train", "--out", "run", *flags.replace("R", str(ranks)).split()]
        for case, (flags, _) in CASES.items()
    }
    flags = ["train", "--mode", "allreduce", "--steps", "2", "--hidden", "8", "--out"]
    commands |= {name: [*flags, *words.split()] for name, words in USED.items()}
    *done, first, again, another, over = launch.one_after_another(ranks, commands)
    assert contents() == before
    for it, (_, words) in zip(done, CASES.values(), strict=True):
        refused(it, *words.replace("R", str(ranks)).split())
    refused(again, "kept", "--overwrite")
    assert (first.status, another.status, over.status) == (0, 0, 0), over.stderr
    for name, seed in (("kept", 0), ("over", 5)):
        assert tomllib.loads((launch.folder / name / "config.toml").read_text())["seed"] == seed


def test_refused_without_a_launcher(launch):
    told = {
        "--mode async": ["a server and a worker, one rank each", "psrt launch -n 4 "],
        "--lr fast": ["lr", "fast"],
        "--dataset missing-folder": ["missing-folder"],
        NOT_TEXT: ["x"],
    }
    commands = {flags: ["train", "--out", "run", *flags.split()] for flags in told}
    told |= {"two lines": ["a\\nb"], "none": ["train"], "such": ["train"]}
    commands |= {"two lines": ["train", "--dataset", "a\nb"], "none": [], "such": ["tarin"]}
    for done, words in zip(launch.one_after_another(0, commands), told.values(), strict=True):
        refused(done, *words)
        assert len(done.stderr.splitlines()) == 1
    assert not (launch.folder / "run").exists()


@pytest.mark.exhaustive
def test_what_the_parts_of_one_job_must_agree_on(launch):
    done = launch.mpmd((1, ["server", "--epochs", "1"]), (2, ["worker", "--epochs", "2"]))
    refused(done, "rank 1", "other flags")
    refused(launch.mpmd((2, ["server", "--mode", "sync"])), "no worker")


#: Starts psrt with an address space of 4 GB, so that what asks for more gets none at once.
WITH_LITTLE_MEMORY = """
import resource, sys
from psrt.__main__ import main

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--hidden", "100000000", "--dataset", "synthetic:40x100000x2", "--quiet"],
        also(["train", "--config", "/dev/full"]),
        also(["simulate", "--mode", "async", "--servers", "99999999", "--quiet"]),
    ],
)
def test_more_than_there_is_memory_for(launch, words):
    done = launch.python("-c", WITH_LITTLE_MEMORY, *words)
    assert done.status in (1, 2), done.stderr
    assert len(done.errors) == len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.exhaustive
def test_too_little_memory_to_share_is_one_line(launch):
    words = ("-m", "psrt", "launch", "-n", 2, "train", "--hidden", "8000,8000", "--epochs", 1)
    limited = ("sh", "-c", 'ulimit -v 1500000; exec "$@"', "sh")
    done = launch.command(*limited, sys.executable, *words)
    assert done.status == 1
    assert "Traceback" not in done.stderr
    (line,) = done.errors
    assert "out of memory" in line
    assert "--no-shared-memory" in line
