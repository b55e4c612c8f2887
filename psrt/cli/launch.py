"""``psrt launch``: starts ranks by the launcher that belongs to the MPI of this Python."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psrt
from psrt.cli.flags import FlagParser, config_of, train_parser, values_of
from psrt.cli.printing import refuse, say
from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of
from psrt.config.names import AUTO
from psrt.config.overriding import to_text
from psrt.config.resolve import mode_of, resolve, servers_of
from psrt.core.errors import ConfigError
from psrt.core.vendors import has_room, settings
from psrt.faults.parent import PARENT, Parent
from psrt.job.attempt import Ended, attempt
from psrt.launch import launched
from psrt.launch.environment import KNOBS, pmi_for
from psrt.launch.gpus import gpu_of, gpus
from psrt.launch.hostfile import Host, read_hostfile
from psrt.launch.library import Library, loaded_library, mpirun_of
from psrt.launch.lines import BINDINGS, THREADS, Line, Start, mpirun_line, srun_line
from psrt.launch.own_line import may_spread
from psrt.launch.rank import GPUS, SLOTS
from psrt.launch.reach import OTHER_WAYS
from psrt.launch.rendezvous import rendezvous
from psrt.launch.segments import sweep
from psrt.rows.knobs import dashed
from psrt.rows.suggest import did_you_mean

if TYPE_CHECKING:
    from psrt.job.elastic import Size

#: Commands of psrt that run on ranks, and those that start only one part of such a job.
_ON_RANKS = ("train", "bench", "doctor")
_PARTS = ("server", "worker")
#: Commands of psrt that run in one process.
_WITHOUT_RANKS = (
    *("simulate", "plan", "check", "checkpoints", "report", "show", "explain"),
    *("trace", "compare", "export", "predict", "watch", "completion"),
)
#: Runs a script or module as ``__main__``, and ends the job with its status if it fails.
_RUNNER = ("-m", "psrt.launch.rank")
#: The flag of train that lets the other ranks continue when one dies.
_SURVIVE = "--survive"
#: Flags that make train print its help.
_HELP = {"-h", "--help", "--help-all"}
#: Its flags that name files, which may exist on other hosts only.
_FILES = ("config", "resume", "replay")
#: Seconds that `srun --mpi=list` may take.
_SRUN_S = 30
#: Fewest bytes that a rank needs, for Python, numpy and MPI.
_RANK_BYTES = 16 << 20
#: Most ranks that a job can have.
_MOST = 1_000_000

_DESCRIPTION = """\
Start ranks with the launcher of the MPI library that this Python uses: mpirun, or srun inside a
Slurm allocation. Prints the command line on stderr, and runs it.

  psrt launch -n 4 train --mode ssp --servers 1
  psrt launch -n 4 my_training.py --lr 0.1
  psrt launch -n 4 -m my_package.training
  psrt launch --hostfile my-hosts train
  psrt launch -n 4 --sweep rates.toml train --epochs 5
  psrt launch --restarts 3 -- mpirun -n 4 python -m psrt train --out runs/long \\
    --checkpoint-every 50 --resume auto

COMMAND is train, bench or doctor of psrt, a Python script, or -m and a module. All words after it
belong to it. Scripts find torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ….

A hostfile has a line for each host: host, host:slots or host slots=N. Hosts are filled in that
order. They need ssh without a password, and this Python and the current folder at the same paths.

The exit status is that of the job. It is 5 if a rank's process died while psrt watched it, and
128 + n if signal n ended the job. If a rank of a script dies by signal n, it is that of mpirun,
which is n with MPICH."""


def launch_parser() -> FlagParser:
    """Return the parser of the flags before the command."""
    parser = FlagParser(
        prog="psrt launch",
        usage="psrt launch [-n N] [--hostfile FILE] [flags] COMMAND ...",
        description=_DESCRIPTION,
    )
    parser.synonyms = {
        **dict.fromkeys(("n", "np", "nproc", "nproc-per-node", "ntasks"), "ranks"),
        **dict.fromkeys(("machinefile", "f", "hosts"), "hostfile"),
        **dict.fromkeys(("x", "genv", "export"), "env"),
        **dict.fromkeys(("iface", "network"), "interface"),
    }
    knobs = map(dashed, knobs_of(TrainConfig))
    parser.notes = dict.fromkeys(knobs, "it is a flag of psrt train: write it after train")
    add = parser.add_argument
    add(
        "-n",
        "--ranks",
        metavar="N",
        help="number of ranks (default: the slots of the hostfile, the tasks of the Slurm job, or "
        "the cores of this machine, with --gpus its GPUs)",
    )
    add(
        "--workers",
        metavar="W",
        help="with train, instead of -n: number of workers; psrt adds the servers of the mode, and "
        "with --parallel a rank for each part of the model",
    )
    add("--hostfile", metavar="FILE", help="start the ranks on the hosts in this file")
    add(
        "--launcher",
        choices=("mpirun", "srun"),
        help="program that starts the ranks (default: srun inside a Slurm allocation, else mpirun)",
    )
    add(
        "--interface",
        metavar="NAME",
        help="use this network between hosts, such as eth1; with Open MPI also 10.0.0.0/16",
    )
    add(
        "--bind-to",
        choices=tuple(BINDINGS),
        help="bind each rank to a core, NUMA domain or socket (default: none; srun: the site's)",
    )
    add(
        "--gpus",
        action="store_true",
        help="give each rank of a script one GPU of its host, as its first and only one",
    )
    add(
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="set a variable for all ranks, or pass this process's value to other hosts; may be "
        "repeated",
    )
    add(
        "--flags",
        metavar="TEXT",
        default="",
        help="pass flags to mpirun or srun, such as --flags='--mca plm_ssh_args \"-p 2222\"'",
    )
    add(
        "--knobs",
        metavar="TEXT",
        action="append",
        help="flags of train, such as --knobs '--mode ssp --servers 1', which replace knobs of the "
        "config that a script gives to psrt.run; with train they are further flags",
    )
    add(
        "--stdin",
        action="store_true",
        help="let rank 0 read this command's stdin (default: ranks have no stdin)",
    )
    add(
        "--restarts",
        metavar="N",
        help="restart the job when it dies, up to N times without a new checkpoint; needs train "
        "with --out, --checkpoint-every and --resume auto, or after -- your own command line with "
        "psrt train",
    )
    add(
        "--elastic",
        action="store_true",
        help="with --restarts and --hostfile: resume without hosts that do not answer, with fewer "
        "workers, and with more workers once they answer again",
    )
    add(
        "--min-workers",
        metavar="M",
        help="with --elastic, fewest workers to resume with (default: 1)",
    )
    add(
        "--sweep",
        metavar="FILE",
        help="run train or a script once for each choice of knobs in a TOML file, one after the "
        "other, each with an --out of its own; those that are done are left out",
    )
    add(
        "--verbose",
        action="store_true",
        help="show mpirun's own messages when ranks end; psrt prints the reason in any case",
    )
    add("--dry-run", action="store_true", help="print the line on stdout and start nothing")
    return parser


def main(argv: Sequence[str]) -> int:
    """Start ranks; return the exit status of the job.

    Raises:
        ConfigError: for invalid flags, or if there is nothing to start the ranks with.
        SystemExit: after ``--help`` was printed.
    """
    parser = launch_parser()
    own, rest = _split(parser, list(argv))
    given = parser.parse(own)
    if launched():
        raise ConfigError("psrt launch starts the ranks itself: call it without mpirun or srun")
    if not rest:
        raise ConfigError(
            f"no command given, expected one of {', '.join(_ON_RANKS)}, a Python script, or -m "
            "and a module; see psrt launch --help"
        )
    rest = _with_knobs(given, rest)
    ended = _run(given, rest) if given.sweep is None else _swept(given, rest)
    if ended is None:
        return 0
    if ended.killed is not None:
        _tell(f"psrt: error: {ended.killed}\n")
    if ended.asked is not None and ended.status:
        raise KeyboardInterrupt(ended.asked)
    return ended.status


def _run(given: argparse.Namespace, rest: list[str]) -> Ended | None:
    """Run a job to its end; None with ``--dry-run``, which only shows the line."""
    given = _with_ranks(given, rest)
    if given.restarts is not None:
        if given.stdin:
            raise ConfigError("--stdin has no effect with --restarts: input can be read only once")
        return _supervised(given, rest)
    for flag in ("elastic", "min_workers"):
        if getattr(given, flag):
            raise ConfigError(f"--{flag.replace('_', '-')} has no effect without --restarts")
    return _once(given, rest)


def _with_knobs(given: argparse.Namespace, rest: list[str]) -> list[str]:
    """Return the command with the flags of ``--knobs``; a script gets them by a variable."""
    if given.knobs is None:
        return rest
    words = _shell_words("--knobs", " ".join(given.knobs))
    try:
        asked = train_parser().parse(words)
        values = values_of(asked)
    except ConfigError as error:
        raise ConfigError(f"--knobs: {error}") from None
    if rest[0] == "train" or rest[:3] == ["-m", "psrt", "train"]:
        return [*rest, *words]
    if rest[0] in _ON_RANKS or rest[:2] == ["-m", "psrt"]:
        raise ConfigError(f"--knobs has no effect with {shlex.join(rest[:3])}, only with train")
    others = sorted({*vars(asked)} - {*knobs_of(TrainConfig), "config"})
    if others:
        raise ConfigError(f"--knobs: --{dashed(others[0])} has no effect with a script")
    given.env.append(f"{KNOBS}={to_text(values)}")
    return rest


def _shell_words(flag: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {text!r}: {str(error).lower()}") from None


def _with_ranks(given: argparse.Namespace, rest: Sequence[str]) -> argparse.Namespace:
    """Return the flags with the number of ranks, if that of workers is given."""
    if given.workers is None:
        return given
    return argparse.Namespace(**{**vars(given), "ranks": str(_ranks_of(given, rest))})


def _swept(given: argparse.Namespace, rest: list[str]) -> Ended | None:
    """Run the jobs of ``--sweep``, one after the other; see ``psrt.cli.sweep``."""
    from psrt.cli.sweep import members, sweep

    if given.stdin:
        raise ConfigError("--stdin has no effect with --sweep: input can be read only once")
    if rest[0] in _ON_RANKS[1:] or _HELP & set(rest):
        raise ConfigError(f"--sweep needs train, or a script that takes --out, got {rest[0]}")

    def check(words: list[str]) -> TrainConfig | None:
        one = _with_ranks(given, words)
        of_rank, is_ours = _of_rank(words)
        line = _line(one, of_rank, is_ours, _hosts(one))
        return _check(of_rank[2:], line.ranks, spreads=_spreads(one)) if is_ours else None

    return sweep(members(given.sweep, rest), check, lambda words: _run(given, words), _tell)


def _once(given: argparse.Namespace, rest: list[str]) -> Ended | None:
    """Run a job to its end; None with ``--dry-run``, which only shows the line."""
    words, is_ours = _of_rank(rest)
    line = _line(given, words, is_ours, _hosts(given))
    if is_ours and not _HELP & set(words):
        _check(words[2:], line.ranks, spreads=_spreads(given))
    if given.dry_run:
        say(str(line))
        return None
    _tell(f"{line}\n")
    if is_ours and words[2:3] == ["doctor"] and not _may_start(given, words[3:], line):
        return Ended(1, None, 0.0)
    parent = Parent(line.ranks, _tell, several_hosts=_spreads(given))
    began = time.time()
    ended = attempt(
        line.command,
        line.variables,
        parent,
        deaf_s=line.deaf_s,
        reads=given.stdin,
        boxed=line.boxed,
        verbose=given.verbose,
        refused=refuse,
    )
    if ended.status:
        sweep(began)
    return ended


def _may_start(given: argparse.Namespace, flags: list[str], line: Line) -> bool:
    """Return whether the doctor's ranks can probably start; print why not."""
    from psrt.cli.doctor import publish_failures
    from psrt.doctor.preflight import preflight

    by_itself = given.hostfile is None and _spreads(given)  # the launcher knows the hosts
    if by_itself or any(word in given.flags for word in OTHER_WAYS):
        return True
    found = preflight(
        _hosts(given),
        line.ranks,
        is_open_mpi=loaded_library().is_open_mpi,
        variables=line.variables,
        folder=os.getcwd(),
    )
    publish_failures(flags, found)
    return not found


def _supervised(given: argparse.Namespace, rest: list[str]) -> Ended | None:
    """Run a job until it is done, restarting it when it dies; None with ``--dry-run``."""
    from psrt.cli.restarts import Supervised, whole  # need numpy

    hosts = _hosts(given)
    job = Supervised(given, rest, hosts, whole(given.restarts, "--restarts"))

    def line_of(there: Sequence[Host] | None, size: Size | None) -> Line:
        if job.own is not None:
            return job.own.line((PARENT,))
        more = [] if size is None else ["--batch-size", str(size.batch_size)]
        words, is_ours = _of_rank([*rest, *more])
        ranks = None if size is None else size.ranks
        return _line(given, words, is_ours, hosts if there is None else there, ranks)

    if given.dry_run:
        say(str(line_of(None, None)))
        return None
    return job.run(line_of, _tell)


def _spreads(given: argparse.Namespace) -> bool:
    """Return whether ranks may be on other hosts, as far as this process knows."""
    return given.hostfile is not None or may_spread(given.flags.split())


def _hosts(given: argparse.Namespace) -> tuple[Host, ...]:
    try:
        return () if given.hostfile is None else read_hostfile(given.hostfile)
    except ConfigError as error:
        raise ConfigError(f"--hostfile {error}") from None


def _tell(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, end="", flush=True)


def _split(parser: FlagParser, argv: list[str]) -> tuple[list[str], list[str]]:
    """Split the words into the launcher's flags and the command, which begins at a non-flag."""
    at = 0
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "--"):
        # argparse would read -np as -n p.
        if not re.match(r"--|-n[^a-z]|-[nh]$", argv[at]):
            hint = parser._hint(argv[at]).replace("--ranks", "-n")
            raise ConfigError(f"unknown flag {argv[at]}{hint}")
        action = parser._option_string_actions.get(argv[at])
        at += 2 if action is not None and action.nargs != 0 else 1
        if argv[at - 2] == "--knobs":  # argparse would take the text for a flag of its own
            argv[at - 2 : at] = ["=".join(argv[at - 2 : at])]
            at -= 1
    return argv[:at], argv[at + 1 :] if argv[at : at + 1] == ["--"] else argv[at:]


def _of_rank(rest: list[str]) -> tuple[list[str], bool]:
    """Return the words after Python in a rank's process, and whether they call psrt itself."""
    name = rest[0]
    if name == "-m":
        if len(rest) == 1:
            raise ConfigError("-m needs the name of a module")
        return rest, rest[1] == "psrt"
    if name in _ON_RANKS:
        return ["-m", "psrt", *rest], True
    if name in _PARTS:
        raise ConfigError(f"psrt launch starts servers and workers together: use train, not {name}")
    if re.fullmatch(r"python[\d.]*", Path(name).name):
        raise ConfigError(f"psrt launch starts Python itself: leave out {name}")
    if not Path(name).is_file():
        raise ConfigError(_no_script(name, rest[1:]))
    return rest, False


def _no_script(name: str, rest: Sequence[str]) -> str:
    if name == "psrt":
        return "psrt launch starts psrt itself: leave out the second psrt"
    if name in _WITHOUT_RANKS:
        return f"psrt {name} needs no ranks: {shlex.join(['psrt', name, *rest])}"
    guess = did_you_mean(name, (*_ON_RANKS, *_WITHOUT_RANKS))
    return f"no script {name}{guess}; psrt's own commands on ranks are {', '.join(_ON_RANKS)}"


def _line(
    given: argparse.Namespace,
    words: list[str],
    is_ours: bool,
    hosts: Sequence[Host],
    ranks: int | None = None,
) -> Line:
    """Return the line that starts the ranks; ``ranks`` overrides their number."""
    library = loaded_library()
    survives = is_ours and words[2:3] == ["train"] and _survives(words[3:])
    if survives and given.launcher == "srun":
        raise ConfigError(f"{_SURVIVE} needs --launcher mpirun: srun ends all ranks when one dies")
    pmi = None if survives else _pmi(given, library)
    slots = sum(host.slots for host in hosts) or _tasks() or _cores()
    variables, exported = _variables(given.env)
    if not any({**os.environ, **variables}.get(name) for name in THREADS):
        variables[THREADS[0]] = "1"
    if "HOME" not in os.environ:  # as under cron; Open MPI does not start without it
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:  # a user without a name, as in a container
            home = "/"  # where no other user can leave a file for MPI to read
        variables.setdefault("HOME", home)
    # The folder of a run may belong to anybody, so psrt imports nothing from it. The modules of a
    # user's script are next to it: what runs it adds that folder.
    python = [sys.executable, "-P"]
    if not library.safe:  # psrt is used from its folder, without being installed
        path = [str(Path(psrt.__file__).parents[1]), os.environ.get("PYTHONPATH")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if not is_ours:
        environment = {**os.environ, **variables}
        if (
            not _spreads(given) and has_room()
        ):  # psrt itself would set it later than a script may start MPI
            name = "OMPI_MCA_btl" if library.is_open_mpi else "UCX_TLS"
            sets = settings(environment, tcp=False)
            variables.update({name: sets[name]} if name in sets else {})
        spreads, interface = _spreads(given), given.interface
        variables |= rendezvous(environment, hosts, spreads=spreads, interface=interface)
        variables |= {SLOTS: ",".join(str(it.slots) for it in hosts)} if hosts else {}
        python += [*_RUNNER, *([GPUS] if given.gpus else ())]
    flags = _shell_words("--flags", given.flags)
    if given.gpus:
        slots = _check_gpus(given, is_ours, slots)
    ranks = ranks or (slots if given.ranks is None else _number(given.ranks))
    _check_folders(is_open_mpi=library.is_open_mpi)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if pmi is None and not _spreads(given) and ranks * _RANK_BYTES > memory:
        most = memory // _RANK_BYTES
        raise ConfigError(f"-n {ranks}: this host has memory for at most {most} ranks")
    is_training = is_ours and words[2:3] == ["train"] and not _HELP & set(words)
    start = Start(
        command=[*python, *words],
        ranks=ranks,
        hosts=hosts,
        slots=slots,
        interface=given.interface,
        reads=given.stdin,
        bind=given.bind_to,
        survives=survives,
        outlasts=bool(hosts) and is_training and _outlasts(words[3:], ranks),
        variables=variables,
        exported=exported,
        unshown=(PARENT,),
        flags=flags,
    )
    if pmi is not None:
        return srun_line(start, library, pmi, cpus_per_task=os.environ.get("SLURM_CPUS_PER_TASK"))
    return mpirun_line(
        start, library, mpirun_of(library), root=os.geteuid() == 0, environment=os.environ
    )


def _check_gpus(given: argparse.Namespace, is_ours: bool, slots: int) -> int:
    """Check that this host has a GPU for each rank; return the default number of ranks.

    Other hosts, and those of a batch system, are checked by their ranks.
    """
    if is_ours:
        raise ConfigError("--gpus has no effect with psrt's own commands, which compute on CPUs")
    if _spreads(given):
        return slots
    there = len(gpus(os.environ))
    ranks = max(1, there) if given.ranks is None else _number(given.ranks)
    gpu_of(os.environ, 0, ranks, is_bound=False)
    return there


def _check_folders(*, is_open_mpi: bool) -> None:
    """Check the folders that ranks on this host inherit from this process.

    Raises:
        ConfigError: if mpirun would fail because of one of them.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"the current folder cannot be used: {error.strerror}") from None
    temporary = os.environ.get("TMPDIR")
    if not is_open_mpi or not temporary or not os.path.exists(temporary):
        return
    from psrt.doctor.host import refuses

    if why := refuses(temporary, 1):
        raise ConfigError(f"TMPDIR={temporary}: mpirun cannot make a folder there: {why}")


def _survives(flags: Sequence[str]) -> bool:
    """Return whether the other ranks continue when one dies, as far as this process knows.

    The flags may say so, the file of ``--config``, or the run that is resumed. Errors in them are
    left to the ranks.
    """
    if _HELP & set(flags):
        return False
    try:
        asked = values_of(train_parser().parse(flags))
        if "survive" in asked or "resume" not in asked:
            return bool(asked.get("survive"))
        from psrt.job.resuming import survived  # needs numpy

        run = asked.get("out") if asked["resume"] == AUTO else asked["resume"]
        return run is not None and survived(run)
    except ConfigError:
        return False


def _check(words: Sequence[str], ranks: int, *, spreads: bool) -> TrainConfig | None:
    """Check a command of psrt before ranks are started, as far as possible in this process.

    Returns:
        The config of ``train``, resolved, if this process can know it.

    Raises:
        ConfigError: if it is not valid for that number of ranks.
        SystemExit: after help was printed.
    """
    command, *flags = words
    if command == "train":
        given = train_parser().parse(flags)
        if not (spreads and any(hasattr(given, it) for it in _FILES)):
            return resolve(config_of(given), ranks=ranks)
    elif command in _ON_RANKS:
        module = importlib.import_module(f"psrt.cli.{command}")
        getattr(module, f"{command}_parser")().parse(flags)
    return None


def _ranks_of(given: argparse.Namespace, rest: Sequence[str]) -> int:
    """Return the number of ranks that train needs for a number of workers.

    Raises:
        ConfigError: if it cannot be known.
    """
    if rest[0] != "train":
        raise ConfigError(f"--workers has no effect with {rest[0]}, only with train: use -n N")
    if given.ranks is not None:
        raise ConfigError(f"--workers {given.workers} and -n {given.ranks}: give only one of them")
    workers = _number(given.workers, "--workers must be a number of workers")
    config = config_of(train_parser().parse(rest[1:]))
    axes, servers = config.axes, config.servers
    if servers is None:
        servers = servers_of(mode_of(config, workers + 1), axes, workers * axes.cells)
    return servers + workers * axes.cells


def _outlasts(flags: Sequence[str], ranks: int) -> bool:
    """Return whether the others continue when a host stops responding, as far as is known here."""
    try:
        config = resolve(config_of(train_parser().parse(flags)), ranks=ranks)
    except ConfigError:  # the ranks report it
        return False
    goes_on = config.scheme.is_stale or config.scheme.mixes or bool(config.survive)
    return goes_on and config.replay is None and config.parallel is None


def _pmi(given: argparse.Namespace, library: Library) -> str | None:
    """Return the PMI that srun should use with the ranks; None if mpirun starts them.

    Raises:
        ConfigError: if srun is asked for and cannot start them.
    """
    inside = "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None
    if given.launcher == "mpirun" or (given.launcher is None and not inside):
        return None
    if not inside:
        raise ConfigError("--launcher srun needs a Slurm allocation: get one with salloc or sbatch")
    if given.hostfile is not None:
        raise ConfigError(
            "srun uses the hosts of its job: leave --hostfile out, or use --launcher mpirun"
        )
    try:
        listed = subprocess.run(
            ["srun", "--mpi=list"], capture_output=True, text=True, timeout=_SRUN_S
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"srun --mpi=list did not end within {_SRUN_S} s") from None
    needed = pmi_for(library.text)
    if needed in re.split(r"[\s,]+", listed.stdout + listed.stderr):
        return needed
    if given.launcher is not None:
        raise ConfigError(f"this Slurm has no PMI for {library.text}: use --launcher mpirun")
    return None


def _variables(given: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that ``--env`` sets, and the names of all variables in it."""
    sets, names = {}, []
    for word in given:
        name, equals, value = word.partition("=")
        if not name.isidentifier() or not name.isascii():
            raise ConfigError(f"--env {word!r}: expected NAME or NAME=VALUE")
        if equals:
            sets[name] = value
        elif name not in os.environ:
            raise ConfigError(f"--env {name}: this variable is not set here; use {name}=VALUE")
        names.append(name)
    return sets, names


def _number(text: str, what: str = "-n must be a number of ranks") -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST):
        raise ConfigError(f"{what} from 1 to {_MOST}, got {text!r}")
    return int(text)


def _tasks() -> int | None:
    """Return the number of tasks of the Slurm job; None outside a job, or if it is not set."""
    tasks = os.environ.get("SLURM_NTASKS", "")
    return int(tasks) if "SLURM_JOB_ID" in os.environ and tasks.isdecimal() else None


def _cores() -> int:
    """Return the number of cores that this process may use; threads of one core count once."""
    found = set()
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        found.add(topology.read_text() if topology.exists() else str(cpu))
    return len(found)
