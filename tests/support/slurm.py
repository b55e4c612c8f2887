"""A Slurm of three nodes on one machine: Debian's packages on the hosts of ``support.hosts``.

The first host is also the login node and runs the controller. Nothing is installed or changed
outside the hosts: all configuration, state and logs lie in their shared folder, and all processes
end with them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import hosts
from support.hosts import VENDORS, Hosts
from support.launching import TIMEOUT_S, Done

#: Debian's packages; Slurm's plugin loads libpmix by a name that only the -dev package has.
PACKAGES = "slurmctld slurmd slurm-client munge libpmix-dev"
_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
#: Longest that Slurm may take to start, in seconds.
_START_S = 120.0
#: Ranks that a node takes; Slurm is told not to look how many cores there are.
_SLOTS = 4
#: States of a job that is over.
_ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
_IDLE = ("sinfo", "-h", "-t", "idle", "-o", "%D")
#: cred_expire: how long a job that is put back into the queue waits there, two minutes by default.
_CONF = """
ClusterName=psrt
SlurmctldHost={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
OverTimeLimit=0
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Return why there can be no Slurm on this machine, None if there can."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    if not list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")):
        missing.append("libpmix.so")
    if missing:
        return f"no {', '.join(missing)}: apt-get install {PACKAGES}"
    return hosts.why_not()


class NoSlurmError(Exception):
    """Slurm is installed, and does not start on this machine."""


@dataclass(frozen=True)
class Mpi:
    """An MPI's environment, and how Slurm and its own launcher start its ranks."""

    vendor: str
    #: What ``srun --mpi=`` takes.
    pmi: str
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", VENDORS[self.vendor])

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.folder / "bin/python"

    @property
    def mpirun(self) -> str:
        """Its launcher, which finds the nodes of a job by itself."""
        return f"{self.folder / 'bin/mpirun'} --bind-to none"


OPEN_MPI, MPICH = Mpi("openmpi", "pmix"), Mpi("mpich", "pmi2")


class Slurm:
    """Three nodes; a context manager."""

    def __init__(self) -> None:
        """Start them.

        Raises:
            NoSlurmError: with the daemons' last words.
        """
        self._hosts = Hosts(3)
        self._first = self._hosts.names[0]
        self._state = self._hosts.folder / "slurm"
        self._variables: dict[str, Any] = {"SLURM_CONF": str(self._state / "slurm.conf")}
        self._folders = itertools.count()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        munge = self._state / "munge"
        munge.mkdir(parents=True)
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        names = self._hosts.names
        nodes = "".join(f"NodeName={name} CPUs={_SLOTS} RealMemory=1000\n" for name in names)
        conf = _CONF.format(folder=self._state, first=self._first) + nodes
        (self._state / "slurm.conf").write_text(conf)
        files = {"socket": "socket", "key": "key-file", "pid": "pid-file", "log": "log-file"}
        places = [f"--{flag}={munge / name}" for name, flag in files.items()]
        # --force: it does not like /tmp above its socket.
        self._daemon(self._first, "munged", "--force", *places, f"--seed-file={munge / 'seed'}")
        self._daemon(self._first, "slurmctld")
        for name in names:
            self._daemon(name, "slurmd")
        self._await_idle()

    def _await_idle(self) -> None:
        idle = f"{len(self._hosts.names)}\n"
        try:
            wait_until(lambda: self.run(*_IDLE).stdout == idle, _START_S)
        except AssertionError:
            raise NoSlurmError(self.logs()) from None

    def started_again(self) -> list[str]:
        """Start what has crashed of Slurm's own on the nodes, and return their names.

        Debian's slurmd 22.05 was seen to die of a fault in its own memory; jobs then wait for ever.
        """
        names = [name for name in self._hosts.names if not self._has_slurmd(name)]
        if names:
            for name in names:
                self._daemon(name, "slurmd")
            self.run("scancel", "--user=root")
            self._await_idle()
        return names

    def _has_slurmd(self, name: str) -> bool:
        pid = (self._state / f"slurmd-{name}.pid").read_text().strip()
        state = self._hosts.run(name, "ps", "-o", "stat=", "-p", pid).stdout
        return bool(state.strip()) and not state.startswith("Z")

    def _daemon(self, host: str, *words: str) -> None:
        try:
            done = self._hosts.run(host, *words, cwd=self._state, **self._variables)
        except TimeoutError:
            raise NoSlurmError(f"{words[0]} does not start: {self.logs()}") from None
        if done.status:
            raise NoSlurmError(f"{words[0]}: {done.stderr} {self.logs()}")

    def logs(self) -> str:
        """Return what the daemons have complained about."""
        lines = [
            line
            for path in sorted(self._state.glob("**/*log"))
            for line in path.read_text(errors="replace").splitlines()
            if re.search(r"error|fatal", line, re.IGNORECASE)
        ]
        return " | ".join(lines[-10:]) or "no word from its daemons"

    def folder(self) -> Path:
        """Return a new folder that all nodes see."""
        folder = self._hosts.folder / f"work{next(self._folders)}"
        folder.mkdir()
        return folder

    def run(self, *words: Any, cwd: Path | None = None, **variables: str) -> Done:
        """Run a command on the login node to its end."""
        process = self.start(*words, cwd=cwd, **variables)
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except BaseException as error:
            self.cancel_all()
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise TimeoutError(f"over {TIMEOUT_S} s: {words}\n{stdout}\n{stderr}") from None
        return Done(process.returncode, stdout, stderr)

    def start(
        self, *words: Any, cwd: Path | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        """Start a command on the login node, and do not wait for its end."""
        return self._hosts.start(self._first, *words, cwd=cwd, **self._variables, **variables)

    def submit(self, *words: Any, cwd: Path, **variables: str) -> Job:
        """Submit a batch job: sbatch's flags, the script and its arguments."""
        done = self.run("sbatch", "--parsable", *words, cwd=cwd, **variables)
        assert done.status == 0, done.stderr
        return Job(self, done.stdout.strip(), cwd)

    def cancel_all(self) -> None:
        """End all jobs, and wait until all nodes are free."""
        self.run("scancel", "--user=root")
        idle = f"{len(self._hosts.names)}\n"
        wait_until(lambda: self.run(*_IDLE).stdout == idle)

    def processes(self) -> list[str]:
        """Return the commands that run on the nodes, but for the daemons'."""
        daemons = re.compile(r"(\S*/)?(munged|slurm\w+)\b|: slurmscriptd")
        listed = (self._hosts.processes(name) for name in self._hosts.names)
        return [
            words
            for words in itertools.chain(*listed)
            if not daemons.match(words) and not words.endswith("<defunct>")
        ]

    def close(self) -> None:
        """End everything."""
        self._hosts.close()

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Job:
    """A batch job; an array is one job for each of its tasks."""

    slurm: Slurm
    #: Its number.
    id: str
    folder: Path

    def _shown(self) -> list[dict[str, str]]:
        done = self.slurm.run("scontrol", "--oneliner", "show", "job", self.id)
        assert done.status == 0, done.stderr
        return [
            dict(word.split("=", 1) for word in line.split() if "=" in word)
            for line in done.stdout.splitlines()
        ]

    def ended(self) -> tuple[str, int, int]:
        """Wait for its end, all tasks'; return the state, the exit status and the signal."""
        try:
            wait_until(lambda: all(one["JobState"] in _ENDS for one in self._shown()))
        except BaseException:
            self.cancel()
            raise
        found = {(one["JobState"], one["ExitCode"]) for one in self._shown()}
        assert len(found) == 1, found
        state, code = found.pop()
        status, number = code.split(":")
        return state, int(status), int(number)

    @property
    def restarts(self) -> int:
        """How often it was put back into the queue."""
        return max(int(one["Restarts"]) for one in self._shown())

    def cancel(self, *flags: str) -> None:
        """End it, or send it a signal."""
        done = self.slurm.run("scancel", *flags, self.id)
        assert done.status == 0, done.stderr


def wait_until(condition: Callable[[], bool], seconds: float = TIMEOUT_S) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


@contextlib.contextmanager
def ended_after(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """End a process that a failing test leaves behind."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
