"""Lines of the user's own: what in them is whose, and which words are added."""

import pytest

from psrt.errors import ConfigError
from psrt.mpirun.own_line import own_line

FLAGS = ["--out", "run", "--resume", "auto"]


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Both vendors' launchers, in folders of their own."""
    for vendor in ("open", "mpich"):
        (tmp_path / vendor).mkdir()
        for name in ("mpirun", "prterun") if vendor == "open" else ("mpirun", "mpiexec.hydra"):
            (tmp_path / vendor / name).touch(0o755)
    return lambda vendor: str(tmp_path / vendor / "mpirun")


@pytest.mark.parametrize(
    "before",
    [
        "mpirun -n 3 python -m psrt",
        "/opt/bin/mpiexec.hydra -n 3 /opt/bin/psrt",
        "srun --mpi=pmix python -P -m psrt",
        "timeout 3600 mpirun -x PATH -n 2 python -m mpi4py -m psrt",
        "my-script psrt",
    ],
)
def test_the_flags_of_train_are_found(before):
    line = own_line([*before.split(), "train", *FLAGS])
    assert line.flags == FLAGS
    assert line.words[line.train] == "train"


def test_those_of_one_program_are_taken_where_mpirun_starts_several():
    words = f"mpirun -n 1 psrt train {' '.join(FLAGS)} : -n 2 psrt train --lr 3".split()
    assert own_line(words).flags == FLAGS


@pytest.mark.parametrize(
    "words", ["bench", "mpirun -n 2 python my.py train", "mpirun psrt bench train", "psrt"]
)
def test_a_line_that_does_not_train_is_refused(words):
    with pytest.raises(ConfigError, match="that has psrt train in it, got"):
        own_line(words.split())


def test_open_mpi_is_told_to_take_variables_along(programs):
    mpirun = programs("open")
    words = ["nice", mpirun, "-n", "2", "psrt", "train", "a b"]
    line = own_line(words).line(("HERE",))
    assert line.command == ["nice", mpirun, "-x", "HERE", "--stdin", "none", *words[2:]]
    assert "HERE" not in str(line)
    assert line.deaf_s == 0


def test_others_take_them_by_themselves(programs):
    for words in (
        [programs("mpich"), "psrt", "train"],
        ["srun", "psrt", "train"],
        ["x", "psrt", "train"],
    ):
        line = own_line(words).line(("HERE",))
        assert line.command == words
        assert (line.deaf_s > 0) == (words[0] == programs("mpich"))


@pytest.mark.parametrize(
    ("flags", "spreads", "moves"),
    [
        ("-n 2", False, False),
        ("--hostfile h", True, False),
        ("--host=a,b", True, False),
        ("--wdir /x", False, True),
        ("--chdir=/x", False, True),
    ],
)
def test_where_ranks_are(flags, spreads, moves, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    line = own_line(["mpirun", *flags.split(), "psrt", "train", "--host", "--wdir"])
    assert (line.spreads, line.moves) == (spreads, moves)
    monkeypatch.setenv("PBS_NODEFILE", "nodes")
    assert line.spreads
    assert own_line(["srun", "psrt", "train"]).spreads
