"""The lines that start ranks: what each launcher needs to be told, and nothing else."""

from dataclasses import replace

import pytest

from psrt.errors import ConfigError
from psrt.mpirun.hostfile import Host
from psrt.mpirun.library import Library
from psrt.mpirun.lines import BINDINGS, Line, Start, mpirun_line, srun_line

OPEN, OLD, MPICH = Library("Open MPI v5.0.11"), Library("Open MPI v4.1.4"), Library("MPICH 5.0.2")
COMMAND = ["/env/bin/python", "-m", "psrt"]
TWO = (Host("node01", 2), Host("node02", 1))


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


def test_on_this_host_nothing_is_needed_but_no_binding():
    assert mpirun(OPEN, start()) == ("--bind-to none", {})
    assert mpirun(MPICH, start()) == ("", {})


def test_more_ranks_than_slots():
    assert mpirun(OPEN, start(5))[0] == "--oversubscribe --bind-to none"
    assert mpirun(MPICH, start(5))[0] == ""
    assert "--overcommit" in srun(OPEN, start(5))[0]
    assert "--overcommit" not in srun(OPEN, start(4))[0]


def test_root_is_a_case_of_open_mpi_alone():
    assert mpirun(OPEN, start(), root=True)[0] == "--allow-run-as-root --bind-to none"
    assert mpirun(MPICH, start(), root=True)[0] == ""


def test_others_go_on_when_a_rank_dies_where_the_launcher_can_let_them():
    assert mpirun(OPEN, start(survives=True))[0] == "--bind-to none --with-ft ulfm"
    for library in (OLD, MPICH):
        with pytest.raises(ConfigError, match="--survive needs Open MPI 5 or newer"):
            mpirun(library, start(survives=True))


def test_hosts_are_named_to_either():
    assert mpirun(MPICH, start(hosts=TWO))[0] == "-hosts node01:2,node02:1"
    words = mpirun(OPEN, start(hosts=TWO))[0]
    assert words.startswith("--host node01:2,node02:1 --bind-to none ")


def test_as_another_user():
    mine = [replace(host, user="me") for host in TWO]
    assert mpirun(MPICH, start(hosts=mine))[0] == "-hosts me@node01:2,me@node02:1"
    for library, flags in ((OPEN, "--prtemca plm_ssh_args"), (OLD, "--mca plm_rsh_args")):
        words = mpirun(library, start(hosts=mine))[0]
        assert "--host node01:2,node02:1 " in words
        assert f"{flags} -l me " in words
        with pytest.raises(ConfigError, match="as one user"):
            mpirun(library, start(hosts=(mine[0], TWO[1])))


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
    here = {"PATH": "a", "HOME": "b", "PYTHONPATH": "c", "SECRET": "d", **of_products}
    job = {"variables": {"OMP_NUM_THREADS": "1"}, "exported": ["MINE"]}
    words, variables = mpirun(OPEN, start(hosts=TWO, **job), environment=here)
    taken = ["MINE", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE"]
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


@pytest.mark.parametrize("interface", ["10.0.0.0/16", "10.0.0.1", "eth1;x", ""])
def test_mpich_takes_an_interface_by_its_name_only(interface):
    with pytest.raises(ConfigError, match="--interface must be a name"):
        mpirun(MPICH, start(interface=interface))


def test_every_binding_has_a_word_for_each():
    for name in BINDINGS:
        assert "--bind-to" in mpirun(OPEN, start(bind=name))[0]
        assert ("-bind-to" in mpirun(MPICH, start(bind=name))[0]) == (name != "none")
        assert "--cpu-bind=" in srun(OPEN, start(bind=name))[0]
    assert "--cpu-bind" not in srun(OPEN, start())[0]


@pytest.mark.parametrize("library", [OPEN, MPICH])
def test_a_colon_among_the_words_would_begin_another_program(library):
    job = Start([*COMMAND, "a", ":", "b"], 2)
    with pytest.raises(ConfigError, match="a single : cannot be given"):
        mpirun_line(job, library, "/env/bin/mpirun", root=False, environment={})


def test_flags_of_the_user_come_before_the_number_of_ranks():
    for launcher in (mpirun, srun):
        assert launcher(OPEN, start(flags=["--mca", "a", "b"]))[0].endswith("--mca a b")


def test_a_task_that_fails_ends_the_step():
    words = srun(MPICH, start(), cpus_per_task="2")[0]
    assert words == "--kill-on-bad-exit=1 --quit-on-interrupt --export=ALL --cpus-per-task=2"


def test_a_line_can_be_pasted():
    line = Line(["mpirun", "-x", "A", "a b", "$HOME;"], {"A": "1 2"})
    assert str(line) == "A='1 2' mpirun -x A 'a b' '$HOME;'"
