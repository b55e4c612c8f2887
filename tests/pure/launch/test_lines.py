"""The lines that start ranks: what each launcher is told, which mpirun it is, what users type."""

from dataclasses import replace

import pytest

from psrt.core.errors import ConfigError
from psrt.launch.hostfile import Host
from psrt.launch.library import Library, mpirun_of
from psrt.launch.lines import BINDINGS, Line, Start, mpirun_line, srun_line
from psrt.launch.own_line import own_line
from support.cases import each

OPEN, OLD, MPICH = Library("Open MPI v5.0.11"), Library("Open MPI v4.1.4"), Library("MPICH 5.0.2")
COMMAND = ["/env/bin/python", "-m", "psrt"]
TWO = (Host("node01", 2), Host("node02", 1))
MINE = [replace(host, user="me") for host in TWO]


def start(ranks=3, slots=4, **more):
    return Start(COMMAND, ranks, slots=slots, **more)


def mpirun(library, job, *, root=False, environment=None):
    line = mpirun_line(job, library, "/env/bin/mpirun", root=root, environment=environment or {})
    assert line.words[0] == "/env/bin/mpirun"
    assert line.words[-5:] == ["-n", str(job.ranks), *COMMAND]
    return " ".join(line.words[1:-5]), dict(line.variables)


def srun(library, job, **more):
    line = srun_line(job, library, "some", **{"cpus_per_task": None, **more})
    assert line.words[:2] == ["srun", "--mpi=some"]
    assert line.words[-5:] == ["-n", str(job.ranks), *COMMAND]
    return " ".join(line.words[2:-5]), dict(line.variables)


@each(("library", "job", "root", "words"), [
    (OPEN, start(), False, "--bind-to none"),
    (MPICH, start(), False, ""),
    (OPEN, start(5), False, "--oversubscribe --bind-to none"),
    (OPEN, start(), True, "--allow-run-as-root --bind-to none"),
    (OPEN, start(survives=True), False, "--bind-to none --with-ft ulfm"),
    (MPICH, start(hosts=MINE), False, "-hosts me@node01:2,me@node02:1"),
    (OPEN, start(flags=["--mca", "a", "b"]), False, "--bind-to none --mca a b"),
])  # fmt: skip
def test_what_mpirun_is_told(library, job, root, words):
    assert mpirun(library, job, root=root) == (words, {})


def test_what_srun_is_told():
    words = "--kill-on-bad-exit=1 --quit-on-interrupt --export=ALL"
    assert srun(MPICH, start(), cpus_per_task="2")[0] == f"{words} --cpus-per-task=2"
    assert "--overcommit" in srun(OPEN, start(5))[0]
    assert "--overcommit" not in srun(OPEN, start(4))[0]
    assert srun(OPEN, start(flags=["--mca", "a", "b"]))[0].endswith("--mca a b")


@each(("library", "job", "line"), [
    (MPICH, start(survives=True), "--survive needs Open MPI 5 or newer"),
    *((MPICH, start(interface=it), "--interface must be a name")
      for it in ("10.0.0.0/16", "10.0.0.1", "eth1;x", "")),
    *((it, Start([*COMMAND, "a", ":", "b"], 2), "cannot be given a single : as")
      for it in (OPEN, MPICH)),
    *((it, start(hosts=(MINE[0], TWO[1])), "the same user") for it in (OPEN, OLD)),
])  # fmt: skip
def test_what_a_launcher_cannot_do_is_refused(library, job, line):
    with pytest.raises(ConfigError, match=line):
        mpirun(library, job)


def test_hosts_are_named_to_open_mpi_and_the_user_to_ssh():
    for library, flags in ((OPEN, "--prtemca plm_ssh_args"), (OLD, "--mca plm_rsh_args")):
        words = mpirun(library, start(hosts=MINE))[0]
        assert words.startswith("--host node01:2,node02:1 --bind-to none ")
        assert f"{flags} -l me " in words


@pytest.mark.parametrize(("library", "flag"), [(OPEN, "--prtemca"), (OLD, "--mca")])
def test_a_lost_host_is_noticed_within_half_a_minute(library, flag):
    words = mpirun(library, start(hosts=TWO))[0]
    for name in ("time 10", "intvl 5", "probes 3"):
        assert f"{flag} oob_tcp_keepalive_{name}" in words
    assert "keepalive" not in mpirun(library, start())[0]
    # Where the others go on without it that would end them.
    outlasts = mpirun(library, start(hosts=TWO, outlasts=True))[0]
    assert f"{flag} oob_tcp_keepalive_time 0" in outlasts
    assert outlasts.count("keepalive") == 1
    own = ["--prtemca", "oob_tcp_keepalive_time", "90"]
    assert mpirun(library, start(hosts=TWO, flags=own))[0].count("keepalive") == 1


def test_what_is_set_for_one_run_is_not_in_the_line_that_is_shown():
    line = mpirun_line(
        start(hosts=TWO, unshown=("OURS",)), OPEN, "/env/bin/mpirun", root=False, environment={}
    )
    assert "OURS" not in str(line)
    assert line.command == ["/env/bin/mpirun", "-x", "OURS", "--stdin", "none", *line.words[1:]]
    for library, hosts in ((OPEN, ()), (MPICH, TWO)):  # which hand all variables on
        job = start(hosts=hosts, unshown=("OURS",), reads=True)
        line = mpirun_line(job, library, "/env/bin/mpirun", root=False, environment={})
        assert line.command == line.words


def test_what_open_mpi_is_told_to_take_to_other_hosts():
    of_products = {"MKL_NUM_THREADS": "2", "OPENBLAS_CORETYPE": "Haswell"}
    of_torch = {"MASTER_ADDR": "e", "MASTER_PORT": "f", "NCCL_DEBUG": "g"}
    here = {"PATH": "a", "HOME": "b", "PYTHONPATH": "c", "SECRET": "d", **of_products, **of_torch}
    job = {"variables": {"OMP_NUM_THREADS": "1"}, "exported": ["MINE"]}
    words, variables = mpirun(OPEN, start(hosts=TWO, **job), environment=here)
    taken = ["MASTER_ADDR", "MASTER_PORT", "MINE", "MKL_NUM_THREADS", "NCCL_DEBUG"]
    taken += ["OMP_NUM_THREADS", "OPENBLAS_CORETYPE"]
    taken += ["PATH", "PYTHONPATH"]
    assert words.endswith("".join(f" -x {name}" for name in taken))
    assert variables == {"OMP_NUM_THREADS": "1"}
    assert "-x" not in mpirun(OPEN, start(**job), environment=here)[0]


def test_an_interface():
    words, variables = mpirun(OPEN, start(interface="10.0.0.0/16"))
    assert "--mca btl_tcp_if_include 10.0.0.0/16 --prtemca prte_if_include 10.0.0.0/16" in words
    assert variables == {}
    assert "--mca oob_tcp_if_include eth1" in mpirun(OLD, start(interface="eth1"))[0]
    words, variables = mpirun(MPICH, start(interface="eth1"))
    assert words == "-iface eth1"
    assert variables == {"UCX_NET_DEVICES": "eth1", "FI_TCP_IFACE": "eth1"}
    assert srun(OPEN, start(interface="eth1"))[1] == {"OMPI_MCA_btl_tcp_if_include": "eth1"}
    assert srun(MPICH, start(interface="eth1"))[1] == variables


def test_every_binding_has_a_word_for_each():
    for name in BINDINGS:
        assert "--bind-to" in mpirun(OPEN, start(bind=name))[0]
        assert ("-bind-to" in mpirun(MPICH, start(bind=name))[0]) == (name != "none")
        assert "--cpu-bind=" in srun(OPEN, start(bind=name))[0]
    assert "--cpu-bind" not in srun(OPEN, start())[0]


def test_a_line_can_be_pasted():
    line = Line(["mpirun", "-x", "A", "a b", "$HOME;"], {"A": "1 2"})
    assert str(line) == "A='1 2' mpirun -x A 'a b' '$HOME;'"


# Lines of the user's own.


FLAGS = ["--out", "run", "--resume", "auto"]


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Both vendors' launchers, in folders of their own."""
    for vendor in ("open", "mpich"):
        (tmp_path / vendor).mkdir()
        for name in ("mpirun", "prterun") if vendor == "open" else ("mpirun", "mpiexec.hydra"):
            (tmp_path / vendor / name).touch(0o755)
    return lambda vendor: str(tmp_path / vendor / "mpirun")


@each("before", [
    *("mpirun -n 3 python -m psrt", "/opt/bin/mpiexec.hydra -n 3 /opt/bin/psrt", "my-script psrt"),
    "srun --mpi=pmix python -P -m psrt",
    "timeout 3600 mpirun -x PATH -n 2 python -m mpi4py -m psrt",
])  # fmt: skip
def test_the_flags_of_train_are_found(before):
    line = own_line([*before.split(), "train", *FLAGS])
    assert line.flags == FLAGS
    assert line.words[line.train] == "train"


@pytest.mark.parametrize(
    "words", ["bench", "mpirun -n 2 python my.py train", "mpirun psrt bench train", "psrt"]
)
def test_a_line_that_does_not_train_is_refused(words):
    with pytest.raises(ConfigError, match="with psrt train in it, got"):
        own_line(words.split())


def test_open_mpi_is_told_to_take_variables_along(programs):
    mpirun = programs("open")
    words = ["nice", mpirun, "-n", "2", "psrt", "train", "a b"]
    line = own_line(words).line(("HERE",))
    assert line.command == ["nice", mpirun, "-x", "HERE", "--stdin", "none", *words[2:]]
    assert "HERE" not in str(line)
    assert line.deaf_s == 0


def test_others_take_them_by_themselves(programs):
    for launcher in (programs("mpich"), "srun", "x"):
        line = own_line([launcher, "psrt", "train"]).line(("HERE",))
        assert line.command == [launcher, "psrt", "train"]
        assert (line.deaf_s > 0) == (launcher == programs("mpich"))


def test_where_ranks_are(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("PBS_NODEFILE", raising=False)
    for flags, spreads, moves in (
        ("-n 2", False, False), ("--hostfile h", True, False), ("--host=a,b", True, False),
        ("--wdir /x", False, True), ("--chdir=/x", False, True),
    ):  # fmt: skip
        line = own_line(["mpirun", *flags.split(), "psrt", "train", "--host", "--wdir"])
        assert (line.spreads, line.moves) == (spreads, moves)
    assert own_line(["srun", "psrt", "train"]).spreads
    monkeypatch.setenv("PBS_NODEFILE", "nodes")
    assert own_line(["mpirun", "psrt", "train"]).spreads


# Which mpirun belongs to a library.


OPEN_TEXT, MPICH_TEXT = "Open MPI v5.0.11", "MPICH 5.0.2"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make files; nothing is on the path but bin."""

    def make(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
        return tmp_path

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return make


def test_a_system_may_have_several(made):
    root = made("usr/bin/mpirun.openmpi", "usr/bin/orterun", "usr/bin/mpiexec.hydra")
    (root / "usr/bin/mpirun.mpich").symlink_to("mpiexec.hydra")
    (root / "usr/bin/mpirun").symlink_to("mpirun.openmpi")
    for text, name in ((OPEN_TEXT, "mpirun.openmpi"), (MPICH_TEXT, "mpirun.mpich")):
        library = Library(text, str(root / "usr/lib/x86_64-linux-gnu/libmpi.so"))
        assert mpirun_of(library) == str(root / "usr/bin" / name)


# What people are told to type.
