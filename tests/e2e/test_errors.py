"""What bad input gets: one clear line, printed once whatever N is, status 2, nothing written."""

import gzip
import struct
import sys

import numpy as np
import pytest

from support.cases import each, some


def refused(done, *words):
    """Check that a command was refused, for the reason that these words name."""
    assert done.status == 2, (done.status, done.stderr)
    told_once(done.stderr, *words)


def told_once(stderr, *words):
    """Check that one line tells an error, the one that these words name."""
    errors = [line for line in stderr.splitlines() if "psrt: error:" in line]
    assert len(errors) == 1, stderr
    assert "Traceback" not in stderr
    for word in words:
        assert word in errors[0]


#: Flags, and words of the one line. R stands for the number of ranks, W for one less.
CASES = {
    "unknown flag": ("--moed sync", "--moed mode"),
    "flag without value": ("--lr", "lr"),
    "out of range": ("--batch-size 0", "batch-size least 1"),
    "not a number": ("--lr fast", "lr fast"),
    "nan": ("--lr nan", "lr"),
    "unknown choice": ("--optimizer sdg", "optimizer sgd"),
    "ignored knob": ("--mode async --staleness 3", "staleness async ssp"),
    "ignored rate": ("--mode sync --staleness-rate inverse", "staleness-rate"),
    "ignored momentum": ("--optimizer sgd --momentum 0.9", "momentum"),
    "more servers than ranks": ("--mode sync --servers 9", "9 ranks"),
    "no worker left": ("--mode sync --servers R", "no worker R"),
    "servers in allreduce": ("--mode allreduce --servers 1", "servers allreduce"),
    "serial on ranks": ("--mode serial", "serial R ranks"),
    "epochs and steps": ("--epochs 1 --steps 5", "epochs steps"),
    "too many backups": ("--mode sync --backup W", "backup"),
    "softsync of more": ("--mode softsync --softsync 9", "softsync 9"),
    "batch larger than data": ("--batch-size 2000", "batch-size 1437"),
    "slow is nobody": ("--inject 8:delay:1", "inject 8 worker"),
    "unknown injection": ("--inject 1:dely:1", "inject delay, jitter, tail, pause slow"),
    "injection for nobody": ("--inject 9:delay:1", "inject 9:delay:1 worker"),
    "injection past the end": ("--steps 5 --inject 0:pause:5:1", "inject step 5"),
    "ignored bucket": ("--mode allreduce --no-overlap --bucket-bytes 9", "bucket-bytes no-overlap"),
    "ignored overlap": ("--mode local-sgd --overlap", "overlap local-sgd allreduce"),
    "overlap and clipping": ("--mode allreduce --overlap --clip-norm 1", "overlap clip-norm"),
    "checks of servers": ("--mode sync --check-every 5", "check-every local-sgd allreduce"),
    "unknown all-reduce": ("--mode allreduce --allreduce rnig", "allreduce ring"),
    "ignored costs": ("--mode allreduce --allreduce ring --machine-costs a.json", "costs auto"),
    "no such costs": ("--mode allreduce --machine-costs missing.json", "costs missing.json"),
    "costs that are none": ("--mode allreduce --machine-costs bad.toml", "costs bad.toml"),
    "no such data": ("--dataset missing-folder", "missing-folder"),
    "no such config": ("--config missing.toml", "missing.toml"),
    "stray word": ("sync", "sync"),
    "more shards than parameters": (
        "--mode sync --servers 2 --shards-per-server 2 --dataset tiny.npz --hidden none "
        "--loss squared --batch-size 1",
        "2 parameters",
    ),
    "unknown key of a file": ("--config key.toml", "learning_rate key.toml"),
    "config that is no TOML": ("--config bad.toml", "bad.toml line 1"),
    "out that is a file": ("--out taken", "taken"),
    "out that cannot be made": ("--out taken/run", "taken/run"),
    "damaged idx header": ("--dataset idx-1 --batch-size 1", "magic"),
    "damaged idx images": ("--dataset idx-2 --batch-size 1", "train-images"),
    "damaged idx archive": ("--dataset idx-3 --batch-size 1", "gz"),
    "missing idx file": ("--dataset idx-4 --batch-size 1", "t10k-labels"),
    "npz of objects": ("--dataset 1.npz --batch-size 1", "x_train"),
    "npz with nan": ("--dataset 2.npz --batch-size 1", "x_train"),
    "npz with too few labels": ("--dataset 3.npz --batch-size 1", "y_train"),
    "npz of two widths": ("--dataset 4.npz --batch-size 1", "x_test"),
    "npz without an array": ("--dataset 5.npz --batch-size 1", "x_test"),
}
#: Arrays of a data set that are not as they must be: of 1.npz and so on.
BROKEN = [
    {"x_train": np.array([{}] * 4, object)},
    {"x_train": np.full((4, 2), np.nan, np.float32)},
    {"y_train": np.zeros(3, np.int64)},
    {"x_test": np.zeros((2, 5), np.float32)},
    {"x_test": None},
]


def write_files(folder):
    """Write the files that the cases name."""
    (folder / "key.toml").write_text('mode = "sync"\nlearning_rate = 0.1\n')
    (folder / "bad.toml").write_text("mode = sync\n")
    (folder / "taken").write_text("mine")
    one = {
        f"{name}_{part}": np.zeros((n, 1), np.float32)
        for part, n in (("train", 8), ("test", 2))
        for name in "xy"
    }
    np.savez(folder / "tiny.npz", **one)
    idx_folder(folder / "idx-1", magic=1234)
    idx_folder(folder / "idx-2", images=3)
    idx_folder(folder / "idx-3", zipped=True)
    idx_folder(folder / "idx-4")
    (folder / "idx-4/t10k-labels-idx1-ubyte").unlink()
    for number, broken in enumerate(BROKEN, 1):
        arrays = {
            "x_train": np.zeros((4, 2), np.float32),
            "y_train": np.zeros(4, np.int64),
            "x_test": np.zeros((2, 2), np.float32),
            "y_test": np.zeros(2, np.int64),
        } | broken
        present = {name: array for name, array in arrays.items() if array is not None}
        np.savez(folder / f"{number}.npz", **present)


def idx_folder(folder, *, magic=2051, images=4, claimed=4, zipped=False):
    """Write a folder of MNIST-style files, whole or not."""
    folder.mkdir()
    pictures = struct.pack(">IIII", magic, claimed, 2, 2) + bytes(images * 4)
    labels = struct.pack(">II", 2049, 4) + bytes(4)
    for part in ("train", "t10k"):
        for kind, data in (("images-idx3", pictures), ("labels-idx1", labels)):
            name = f"{part}-{kind}-ubyte"
            if zipped:
                (folder / (name + ".gz")).write_bytes(gzip.compress(data)[:-9])
            else:
                (folder / name).write_bytes(data)


def contents(folder):
    """Return what all files of a folder hold."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def words_of(text, ranks):
    return text.replace("R", str(ranks)).replace("W", str(ranks - 1)).split()


@pytest.fixture(scope="module", params=[3, pytest.param(8, marks=pytest.mark.exhaustive)])
def parts(request, tmp_path_factory, launch_in):
    """The number of ranks, and by case what they wrote to stderr."""
    launch, ranks = launch_in(tmp_path_factory.mktemp("cases")), request.param
    write_files(launch.folder)
    before = contents(launch.folder)
    commands = {
        case: ["train", "--out", "run", *words_of(flags, ranks)]
        for case, (flags, _) in CASES.items()
    }
    done = launch.one_after_another(ranks, commands)
    assert [it.status for it in done] == [2] * len(done)
    assert contents(launch.folder) == before
    return ranks, {case: it.stderr for case, it in zip(commands, done, strict=True)}


@each("case", CASES)
def test_refused_once_whatever_the_number_of_ranks(parts, case):
    ranks, told = parts
    told_once(told[case], *words_of(CASES[case][1], ranks))


@pytest.mark.parametrize(
    "case", some(["no worker left", "unknown flag", "slow is nobody"], one_in=3)
)
def test_the_launcher_hands_the_status_on(launch, case):
    flags, words = (words_of(text, 3) for text in CASES[case])
    refused(launch.train(3, *flags, "--out", "run"), *words)
    assert not (launch.folder / "run").exists()


@pytest.mark.parametrize(
    "case", ["unknown flag", "out of range", "ignored knob", "epochs and steps", "no such data"]
)
def test_refused_without_a_launcher(launch, case):
    flags, words = (words_of(text, 1) for text in CASES[case])
    refused(launch.psrt("train", *flags, "--out", "run"), *words)
    assert not (launch.folder / "run").exists()


@pytest.mark.parametrize(
    ("words", "word"), [([], "train"), (["tarin"], "train"), (["--steps", "3"], "--steps")]
)
def test_no_such_command(launch, words, word):
    refused(launch.psrt(*words), word)
    refused(launch.ranks(3, "-m", "psrt", *words), word)


def test_a_server_mode_needs_more_than_one_rank(launch):
    refused(launch.train(1, "--mode", "async"), "1 rank", "psrt launch -n")
    done = launch.psrt("train", "--mode", "async")
    refused(done, "a server and a worker, one rank each", "psrt launch -n 4 train --mode async")


def test_other_flags_for_servers_than_for_workers(launch):
    done = launch.mpmd((1, ["server", "--epochs", "1"]), (2, ["worker", "--epochs", "2"]))
    refused(done, "rank 1", "other flags")


def test_a_used_folder_is_kept_unless_it_may_be_overwritten(launch):
    flags = ["--epochs", "1", "--hidden", "8", "--out", "run"]
    assert launch.train(2, *flags).status == 0
    before = {p.name: p.read_bytes() for p in (launch.folder / "run").iterdir()}
    refused(launch.train(2, *flags, "--seed", "5"), "run", "--overwrite")
    assert {p.name: p.read_bytes() for p in (launch.folder / "run").iterdir()} == before
    assert launch.train(2, *flags, "--seed", "5", "--overwrite").status == 0


def test_servers_only(launch):
    refused(launch.mpmd((2, ["server", "--mode", "sync"])), "no worker")


def test_a_name_of_two_lines_makes_one(launch):
    done = launch.psrt("train", "--dataset", "a\nb")
    refused(done, "a\\nb")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--config", "/dev/full"],
        ["train", "--hidden", "100000000", "--dataset", "synthetic:40x100000x2", "--quiet"],
        ["simulate", "--mode", "async", "--servers", "99999999", "--quiet"],
    ],
)
def test_more_than_there_is_memory_for(launch, words):
    done = launch.python("-c", WITH_LITTLE_MEMORY, *words)
    assert done.status in (1, 2), done.stderr
    assert len(done.errors) == len(done.stderr.splitlines()) == 1, done.stderr


#: Starts psrt with an address space of 4 GB, so that what asks for more gets none at once.
WITH_LITTLE_MEMORY = """
import resource, sys
from psrt.__main__ import main

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
sys.exit(main(sys.argv[1:]))
"""


SCRIPT = """
import psrt

class Problem:
    pass

try:
    psrt.run(psrt.TrainConfig(mode="sync", servers={servers}), {problem})
finally:
    print("cleaned up", flush=True)
"""


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


def test_too_little_memory_to_share_is_one_line(launch):
    words = ("-m", "psrt", "launch", "-n", 2, "train", "--hidden", "8000,8000", "--epochs", 1)
    limited = ("sh", "-c", 'ulimit -v 1500000; exec "$@"', "sh")
    done = launch.command(*limited, sys.executable, *words)
    assert done.status == 1
    assert "Traceback" not in done.stderr
    (line,) = done.errors
    assert "out of memory" in line
    assert "--no-shared-memory" in line
