"""The command that starts ranks: mpirun's or srun's flags for what a job asks for. Pure.

All differences between vendors, in names of flags and in defaults, are here and nowhere else.
Commands are lists of words that no shell ever sees.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from psrt.core.errors import ConfigError
from psrt.launch.hostfile import Host
from psrt.launch.library import Library

#: How Open MPI leaves its ranks without stdin. It does not forward the end of stdin (5.0.11): with
#: /dev/null a rank that reads would wait forever.
NO_INPUT = ("--stdin", "none")
#: What a rank may be bound to → Open MPI's name for it, MPICH's, and srun's.
BINDINGS = {
    "none": ("none", None, "none"),
    "core": ("core", "core", "cores"),
    "numa": ("numa", "numa", "ldoms"),
    "socket": ("package", "socket", "sockets"),
}
#: Variables with the number of threads of matrix products: one, as the ranks are the parallelism.
#: OpenBLAS and MKL obey the first one if no other is set.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Variables that Open MPI must be asked to export to other hosts; the others export all of them.
#: Those of matrix products also decide the bits: ``OPENBLAS_CORETYPE`` sets the order of sums.
_TAKEN_ALONG = re.compile(
    r"PATH|LD_LIBRARY_PATH|PYTHON.*|PSRT_.*|MPI4PY_.*|UCX_.*|FI_.*"
    r"|OPENBLAS_.*|MKL_.*|.*_NUM_THREADS|MASTER_.*|GLOO_.*|NCCL_.*|TORCH_.*"
)
#: When Open MPI's daemons notice that one of them does not answer. Its defaults are 300 s, 20 s and
#: 9, so that a lost host is noticed only after eight minutes.
_KEEPALIVE = {
    "oob_tcp_keepalive_time": "10",
    "oob_tcp_keepalive_intvl": "5",
    "oob_tcp_keepalive_probes": "3",
}
#: Daemons do not probe each other. When one finds another gone, mpirun ends all ranks, even those
#: that could continue.
_NEVER = {"oob_tcp_keepalive_time": "0"}
#: Seconds after its start in which MPICH's mpirun may lose a terminating signal: it catches the
#: signal, but has no ranks yet to forward it to. It starts ranks within 0.05 s, and they then take
#: time to start Python.
DEAF_S = 1.0
#: Streams to which each mpirun writes its messages about ranks that end.
OPEN_MPI_BOXED, MPICH_BOXED = ("stderr",), ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class Start:
    """What to start, and where."""

    #: The words of one rank's process; the program is an absolute path.
    command: Sequence[str]
    #: Number of ranks.
    ranks: int
    #: The hosts, filled in this order; empty for this host, or for those of a batch system.
    hosts: Sequence[Host] = ()
    #: Ranks that the hosts, or this one, have cores for.
    slots: int = 1
    #: The network between ranks, by its name or, with Open MPI, its addresses.
    interface: str | None = None
    #: Whether the others continue when the process of a rank dies.
    survives: bool = False
    #: Whether the others continue when a host stops responding, which the ranks detect themselves.
    outlasts: bool = False
    #: Whether rank 0 reads the launcher's stdin; otherwise no rank has stdin.
    reads: bool = False
    #: What each rank is bound to, a key of ``BINDINGS``; None leaves it to srun.
    bind: str | None = None
    #: Variables that are set for the ranks.
    variables: Mapping[str, str] = field(default_factory=dict)
    #: Names of variables that the ranks must see, whatever the launcher exports by default.
    exported: Sequence[str] = ()
    #: Names of variables that are set for this run only, and are not shown for pasting.
    unshown: Sequence[str] = ()
    #: Flags that are put before the command.
    flags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A command, and the variables that are set for it in addition to those of this process."""

    words: Sequence[str]
    variables: Mapping[str, str]
    #: The number of ranks that it starts; 0 if it is not known.
    ranks: int = 0
    #: Words that are not shown, and the index before which they come.
    unshown: Sequence[str] = ()
    unshown_at: int = 1
    #: Seconds after its start in which it may lose a terminating signal.
    deaf_s: float = 0.0
    #: Streams to which its mpirun writes its messages about ranks that end.
    boxed: Sequence[str] = ()

    @property
    def command(self) -> Sequence[str]:
        """All words."""
        return [*self.words[: self.unshown_at], *self.unshown, *self.words[self.unshown_at :]]

    def __str__(self) -> str:
        """Return it as a user would type it.

        >>> print(Line(["mpirun", "-n", "2", "a b.py"], {"OMP_NUM_THREADS": "1"}))
        OMP_NUM_THREADS=1 mpirun -n 2 'a b.py'
        """
        sets = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*sets, shlex.join(self.words)])


def mpirun_line(
    start: Start, library: Library, mpirun: str, *, root: bool, environment: Mapping[str, str]
) -> Line:
    """Return the line that starts ranks by an mpirun.

    Args:
        start: what is started.
        library: the MPI that the ranks load.
        mpirun: its launcher, by an absolute path.
        root: whether the user is root; Open MPI then starts nothing unless a flag allows it.
        environment: the variables of this process.

    Raises:
        ConfigError: if this MPI cannot do what is asked for.
    """
    if ":" in start.command:
        raise ConfigError("ranks cannot be given a single : as an argument: mpirun would end there")
    if start.survives and (not library.is_open_mpi or library.major < 5):
        raise ConfigError(
            f"--survive needs Open MPI 5 or newer: {library.text} ends a job when a rank dies"
        )
    if library.is_open_mpi:
        flags, variables = _open_mpi(start, library, root, {**environment, **start.variables})
    else:
        flags, variables = _hydra(start, library)
    words = [mpirun, *flags, *start.flags, "-n", str(start.ranks), *start.command]
    taken = library.is_open_mpi and start.hosts
    unshown = [word for name in start.unshown for word in ("-x", name)] if taken else []
    if library.is_open_mpi and not start.reads:
        unshown += NO_INPUT
    deaf_s = 0.0 if library.is_open_mpi else DEAF_S
    variables = {**start.variables, **variables}
    boxed = OPEN_MPI_BOXED if library.is_open_mpi else MPICH_BOXED
    return Line(words, variables, start.ranks, unshown, deaf_s=deaf_s, boxed=boxed)


def _open_mpi(
    start: Start, library: Library, root: bool, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    words = ["--allow-run-as-root"] if root else []
    if start.hosts:
        words += ["--host", _hosts([replace(host, user="") for host in start.hosts])]
    if start.ranks > start.slots:
        words += ["--oversubscribe"]
    words += ["--bind-to", BINDINGS[start.bind or "none"][0]]
    if start.survives:
        words += ["--with-ft", "ulfm"]
    # Parameters of its daemons; up to version 4 one flag served all parameters.
    of_daemons = "--prtemca" if library.major >= 5 else "--mca"
    users = {host.user for host in start.hosts}
    if len(users) > 1:
        raise ConfigError(
            "Open MPI uses the same user on all hosts: leave user@ out of the hostfile, and set "
            "User for each host in ~/.ssh/config"
        )
    if any(users):
        words += [of_daemons, "plm_ssh_args" if library.major >= 5 else "plm_rsh_args"]
        words += [f"-l {users.pop()}"]
    if start.interface is not None:
        words += ["--mca", "btl_tcp_if_include", start.interface]
        name = "prte_if_include" if library.major >= 5 else "oob_tcp_if_include"
        words += [of_daemons, name, start.interface]
    if start.hosts:
        if not any("oob_tcp_keepalive" in word for word in start.flags):
            for name, value in (_NEVER if start.outlasts else _KEEPALIVE).items():
                words += [of_daemons, name, value]
        taken = {*filter(_TAKEN_ALONG.fullmatch, environment), *start.exported}
        words += [word for name in sorted(taken) for word in ("-x", name)]
    return words, {}


def _hydra(start: Start, library: Library) -> tuple[list[str], dict[str, str]]:
    words = ["-hosts", _hosts(start.hosts)] if start.hosts else []
    binding = BINDINGS[start.bind or "none"][1]
    if binding is not None:
        words += ["-bind-to", binding]
    variables = {}
    if start.interface is not None:
        variables = _network(start.interface, library)
        words += ["-iface", start.interface]
    return words, variables


def _network(interface: str, library: Library) -> dict[str, str]:
    """Return the variables that restrict MPICH's two network layers to an interface."""
    if not re.fullmatch(r"[A-Za-z0-9_.:-]+", interface) or re.fullmatch(r"[\d.]+", interface):
        raise ConfigError(
            f"--interface must be a name such as eth1 with {library.text}, got {interface!r}"
        )
    return {"UCX_NET_DEVICES": interface, "FI_TCP_IFACE": interface}


def _hosts(hosts: Sequence[Host]) -> str:
    return ",".join(f"{host.address}:{host.slots}" for host in hosts)


def srun_line(start: Start, library: Library, pmi: str, *, cpus_per_task: str | None) -> Line:
    """Return the line that starts ranks by srun, inside an allocation of Slurm.

    Args:
        start: what is started; its hosts are Slurm's.
        library: the MPI that the ranks load.
        pmi: the PMI that Slurm should use with it.
        cpus_per_task: what the job asked for, which srun does not inherit; None if it did not.

    Raises:
        ConfigError: if this MPI cannot do what is asked for.
    """
    # A task that fails must end the others, or they wait for it until the job's time limit. A
    # single Ctrl-C ends the job, as with mpirun.
    words = ["srun", f"--mpi={pmi}", "--kill-on-bad-exit=1", "--quit-on-interrupt", "--export=ALL"]
    if cpus_per_task is not None:
        words += [f"--cpus-per-task={cpus_per_task}"]
    if start.ranks > start.slots:
        words += ["--overcommit"]
    if start.bind is not None:
        words += [f"--cpu-bind={BINDINGS[start.bind][2]}"]
    variables = {}
    if start.interface is not None:
        variables = (
            {"OMPI_MCA_btl_tcp_if_include": start.interface}
            if library.is_open_mpi
            else _network(start.interface, library)
        )
    words += [*start.flags, "-n", str(start.ranks), *start.command]
    return Line(words, {**start.variables, **variables}, start.ranks)
