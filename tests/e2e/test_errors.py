"""What bad input gets: one clear line, printed once whatever N is, status 2, nothing written.

What each line says is tested where it is made; here it is seen to come through, one of each kind.
"""

import sys
import tomllib

import numpy as np
import pytest

from support.cases import also, each


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
#: Flags, and words of the one line. R stands for the number of ranks, W for one less.
CASES = {
    "unknown flag": ("--moed sync", "--moed mode"),
    "flag without value": ("--lr", "lr"),
    "out of range": ("--batch-size 0", "batch-size least 1"),
    "not a number": ("--lr fast", "lr fast"),
    "unknown choice": ("--optimizer sdg", "optimizer sgd"),
    "ignored knob": ("--mode async --staleness 3", "staleness async ssp"),
    "more servers than ranks": ("--mode sync --servers 9", "9 ranks"),
    "no worker left": ("--mode sync --servers R", "no worker R"),
    "serial on ranks": ("--mode serial", "serial R ranks"),
    "epochs and steps": ("--epochs 1 --steps 5", "epochs steps"),
    "too many backups": ("--mode sync --backup W", "backup"),
    "batch larger than data": ("--batch-size 2000", "batch-size 1437"),
    "injection for nobody": ("--inject 9:delay:1", "inject 9:delay:1 worker"),
    "no such costs": ("--mode allreduce --machine-costs missing.json", "costs missing.json"),
    "costs that are none": ("--mode allreduce --machine-costs bad.toml", "costs bad.toml"),
    "no such data": ("--dataset missing-folder", "missing-folder"),
    "no such config": ("--config missing.toml", "missing.toml"),
    "stray word": ("sync", "sync"),
    "no flag but a word that is no text": (NOT_TEXT, "x"),
    "a folder that is no text": (f"--out {NOT_TEXT}", "out"),
    "more shards than parameters": (
        "--mode sync --servers 2 --shards-per-server 2 --dataset tiny.npz --hidden none "
        "--loss squared --batch-size 1",
        "2 parameters",
    ),
    "unknown key of a file": ("--config key.toml", "learning_rate key.toml"),
    "config that is no TOML": ("--config bad.toml", "bad.toml line 1"),
    "out that is a file": ("--out taken", "taken"),
    "out that cannot be made": ("--out taken/run", "taken/run"),
    "damaged idx archive": ("--dataset idx --batch-size 1", "gz"),
    "npz without an array": ("--dataset half.npz --batch-size 1", "x_test"),
}


def write_files(folder):
    """Write the files that the cases name."""
    (folder / "key.toml").write_text('mode = "sync"\nlearning_rate = 0.1\n')
    (folder / "bad.toml").write_text("mode = sync\n")
    (folder / "taken").write_text("mine")
    parts = {
        f"{name}_{part}": np.zeros((n, 1), np.float32)
        for part, n in (("train", 8), ("test", 2))
        for name in "xy"
    }
    np.savez(folder / "tiny.npz", **parts)
    np.savez(folder / "half.npz", **{it: parts[it] for it in ("x_train", "y_train", "y_test")})
    (folder / "idx").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / "idx" / f"{name}-ubyte.gz").write_bytes(b"\x1f\x8b none")


def contents(folder):
    """Return what all files of a folder hold."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def words_of(text, ranks):
    return text.replace("R", str(ranks)).replace("W", str(ranks - 1)).split()


@pytest.fixture(scope="module", params=[3, also(8)])
def parts(request, tmp_path_factory, launch_in):
    """The number of ranks, and by case what came of it."""
    launch, ranks = launch_in(tmp_path_factory.mktemp("cases")), request.param
    write_files(launch.folder)
    before = contents(launch.folder)
    commands = {
        case: ["train", "--out", "run", *words_of(flags, ranks)]
        for case, (flags, _) in CASES.items()
    }
    done = launch.one_after_another(ranks, commands)
    assert contents(launch.folder) == before
    return ranks, dict(zip(commands, done, strict=True))


@each("case", CASES)
def test_refused_once_whatever_the_number_of_ranks(parts, case):
    ranks, done = parts
    refused(done[case], *words_of(CASES[case][1], ranks))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("words", "word"), [([], "train"), (["tarin"], "train"), (["--steps", "3"], "--steps")]
)
def test_no_such_command(launch, words, word):
    refused(launch.ranks(3, "-m", "psrt", *words), word)


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
def test_the_launcher_hands_the_status_on(launch):
    refused(launch.train(3, "--mode", "sync", "--servers", "3", "--out", "run"), "no worker")
    refused(launch.train(1, "--mode", "async"), "1 rank", "psrt launch -n")
    assert not (launch.folder / "run").exists()


@pytest.mark.exhaustive
def test_what_the_parts_of_one_job_must_agree_on(launch):
    done = launch.mpmd((1, ["server", "--epochs", "1"]), (2, ["worker", "--epochs", "2"]))
    refused(done, "rank 1", "other flags")
    refused(launch.mpmd((2, ["server", "--mode", "sync"])), "no worker")


def test_a_used_folder_is_kept_unless_it_may_be_overwritten(launch):
    flags = ["train", "--mode", "allreduce", "--steps", "2", "--hidden", "8", "--out"]
    commands = {
        "first": [*flags, "kept"],
        "again": [*flags, "kept", "--seed", "5"],
        "another": [*flags, "over"],
        "over": [*flags, "over", "--seed", "5", "--overwrite"],
    }
    first, again, another, over = launch.one_after_another(2, commands)
    refused(again, "kept", "--overwrite")
    assert (first.status, another.status, over.status) == (0, 0, 0), over.stderr
    for name, seed in (("kept", 0), ("over", 5)):
        assert tomllib.loads((launch.folder / name / "config.toml").read_text())["seed"] == seed


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


SCRIPT = """
import psrt

class Problem:
    pass

try:
    psrt.run(psrt.TrainConfig(mode="sync", servers={servers}), {problem})
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("servers", "problem", "by", "words"),
    [
        (9, "None", (), "9 3 ranks"),
        (1, "Problem", ("-m", "mpi4py"), "class Problem"),  # as psrt launch does
        (1, "Problem()", (), "no initial"),
    ],
)
def test_a_script_s_error_before_training_is_one_line(launch, servers, problem, by, words):
    text = SCRIPT.format(servers=servers, problem=problem)
    done = launch.ranks(3, *by, "-c", text)
    assert done.status == 2
    assert "Traceback" not in done.stderr
    (line,) = done.errors
    assert line.startswith("psrt: error: ")
    assert done.stdout.count("cleaned up") == 3
    assert all(word in done.stderr for word in words.split())


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
