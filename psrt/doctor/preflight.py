"""What keeps a job from starting on its hosts, found over ssh before a rank is started."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence

from psrt.doctor.findings import FAILS, Finding
from psrt.doctor.host import look
from psrt.launch import launched
from psrt.launch.hostfile import Host
from psrt.launch.reach import Answer, ask, is_this_host

_SAME = "install the same environment at the same path on every host"
#: Output of ssh or of the host's shell → its meaning, and its cure, both for ``{host}``.
_CAUSES: Sequence[tuple[str, str, str]] = (
    (
        r"No module named '?psrt",
        "its {python} has no psrt, or another version",
        _SAME,
    ),
    (
        r"cd: |No such file or directory: '?{folder}|{folder}: No such file",
        "it has no folder {folder}",
        "start from a folder that every host has, such as one on a shared file system",
    ),
    (
        r"{python}.*(not found|No such file|Permission denied)|No such file.*{python}",
        "it has no {python}",
        _SAME,
    ),
    (
        r"Could not resolve|Name or service not known|Temporary failure in name resolution",
        "its name is not known here",
        "correct the hostfile, or add {host} to DNS or to /etc/hosts of every host",
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed",
        "ssh does not know its key, or knows another one",
        "ssh {host} once by hand and accept the key, after ssh-keygen -R {host} if it has changed",
    ),
    (
        r"Permission denied|Too many authentication failures|No more authentication methods",
        "ssh accepts only a password, or nothing at all",
        "ssh-copy-id {host}, until ssh {host} true does not ask for anything",
    ),
    (
        r"Connection refused",
        "nothing answers ssh there",
        "start its sshd (systemctl start ssh); if it has another port, set it in ~/.ssh/config",
    ),
    (
        r"timed out|No route to host|unreachable|no answer within|Connection (closed|reset)",
        "it does not answer",
        "see whether it is up and whether a firewall blocks ssh: ping {host}, ssh -v {host}",
    ),
    (r"^ssh: No such file", "there is no ssh here", "install it: apt-get install openssh-client"),
)


def preflight(
    hosts: Sequence[Host],
    ranks: int,
    *,
    is_open_mpi: bool,
    variables: Mapping[str, str],
    folder: str,
) -> list[Finding]:
    """Return what is wrong on each host.

    Args:
        hosts: hosts of the job; empty for this one.
        ranks: number of ranks of the job.
        is_open_mpi: whether they run on Open MPI; MPICH exports this process's variables.
        variables: variables of the ranks.
        folder: folder in which they start.

    Raises:
        ConfigError: for an invalid name.
    """
    shares = _shares(hosts or (Host(socket.gethostname(), ranks),), ranks)
    others = [host for host in shares if not is_this_host(host)]
    sets = [f"{name}={text}" for name, text in variables.items()]
    if not is_open_mpi and "TMPDIR" in os.environ:
        sets += [f"TMPDIR={os.environ['TMPDIR']}"]
    kind = "openmpi" if is_open_mpi else "mpich"
    words = {
        host: ["env", *sets, sys.executable, "-P", "-m", "psrt.doctor.host", str(share), kind]
        for host, share in shares.items()
    }
    answers = ask({host: words[host] for host in others})
    found = []
    for host, share in shares.items():
        if host in answers:
            wrong = understood(host, answers[host], sys.executable, folder)
        else:
            wrong = look(share, is_open_mpi=is_open_mpi)
        found += [Finding(FAILS, f"{host}: {what}", cure) for what, cure in wrong]
    return found


def here() -> list[Finding]:
    """Return what is wrong on this host, as a rank sees it before MPI starts."""
    open_mpi = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    ranks = open_mpi or os.environ.get("MPI_LOCALNRANKS", "1")
    # A single rank of MPI usually needs no shared memory.
    found = look(int(ranks), is_open_mpi=open_mpi is not None or not launched())
    return [Finding(FAILS, f"{socket.gethostname()}: {what}", cure) for what, cure in found]


def is_first_here() -> bool:
    """Return whether this is the first rank of its host, as far as its launcher tells."""
    names = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    return next((os.environ[name] for name in names if name in os.environ), "0") == "0"


def understood(host: str, answer: Answer, python: str, folder: str) -> list[tuple[str, str]]:
    """Return what is wrong with a host, from the output of its ``look`` or from its error."""
    if answer.status == 0:
        # Whatever its shell says at the start comes before.
        last = answer.said.strip().rpartition("\n")[2]
        try:
            return [(str(what), str(cure)) for what, cure in json.loads(last)]
        except (ValueError, TypeError):
            return [
                (f"its shell answers {last[:80]!r}", "let its shell's start-up files print nothing")
            ]
    places = {"host": host, "python": python, "folder": folder}
    for pattern, what, cure in _CAUSES:
        for name, text in places.items():
            pattern = pattern.replace(f"{{{name}}}", re.escape(text))
        if re.search(pattern, answer.error, re.MULTILINE):
            return [(f"{what.format(**places)} ({_last(answer)})", cure.format(**places))]
    cure = f"run this by hand: ssh {host} {python} -m psrt.doctor.host 1 mpich"
    return [(f"it cannot be used ({_last(answer)})", cure)]


def _last(answer: Answer) -> str:
    lines = answer.error.strip().splitlines() or [f"status {answer.status}"]
    return lines[-1].strip()[:160]


def _shares(hosts: Sequence[Host], ranks: int) -> dict[str, int]:
    """Return the number of ranks of each host that has any: hosts are filled in order."""
    shares = {}
    for host in hosts:
        if ranks > 0:
            shares[host.address] = min(host.slots, ranks)
            ranks -= host.slots
    if ranks > 0:  # more than slots: some have more
        shares = {host: share + -(-ranks // len(shares)) for host, share in shares.items()}
    return shares
