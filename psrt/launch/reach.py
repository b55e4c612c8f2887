"""Which hosts of a job answer over ssh, as mpirun would reach them. Imports no MPI.

A host that answers also deletes what killed ranks have left in its shared memory.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psrt.core.errors import ConfigError
from psrt.launch.hostfile import NAME

#: Words in mpirun's flags that make it reach hosts in another way, which is not tried here.
OTHER_WAYS = ("ssh", "rsh", "launcher", "agent")
#: Without prompts, one attempt, and these seconds to connect.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectionAttempts=1", "-o", "ConnectTimeout=5")
#: Seconds that a host has to answer, and number of hosts asked at a time.
_ANSWER_S, _AT_A_TIME = 15.0, 64
#: Status of ssh's own errors. Any other is that of the command, so the host has answered.
_FAILED = 255


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command on a host."""

    #: Its status, or that of an error of ssh.
    status: int
    #: Its stdout, and the stderr of the command or of ssh.
    said: str
    error: str


def ask(questions: Mapping[str, Sequence[str]]) -> Mapping[str, Answer]:
    """Run commands on hosts in parallel, each in this process's folder; return the results.

    Args:
        questions: name of a host → the words of its command.

    Raises:
        ConfigError: for an invalid name.
    """
    found: dict[str, Answer] = {}
    hosts = list(questions)
    for at in range(0, len(hosts), _AT_A_TIME):
        asked = {it: _ask(command(it, questions[it])) for it in hosts[at : at + _AT_A_TIME]}
        deadline = time.monotonic() + _ANSWER_S
        found.update({host: _answer(process, deadline) for host, process in asked.items()})
    return found


def unreachable(hosts: Iterable[str], age_s: float) -> Mapping[str, str]:
    """Return the hosts that do not answer, and why, in the order of ``hosts``.

    Args:
        hosts: their names.
        age_s: seconds since the first attempt began; older segments of shared memory are kept.

    Raises:
        ConfigError: for an invalid name.
    """
    answers = ask({host: _sweeping(age_s) for host in hosts if not is_this_host(host)})
    return {
        host: " ".join(answer.error.split())[-200:] or "ssh failed"
        for host, answer in answers.items()
        if answer.status == _FAILED
    }


def is_this_host(name: str) -> bool:
    """Return whether a name is that of this host; an alias may be missed.

    >>> is_this_host("localhost"), is_this_host("no-host-of-ours")
    (True, False)
    """
    name = name.rpartition("@")[2]
    own = socket.gethostname()
    return name in ("localhost", own, own.partition(".")[0]) or name.startswith("127.")


def command(host: str, words: Sequence[str]) -> Sequence[str]:
    """Return the words that run a command on a host; the last word is for the shell there.

    Raises:
        ConfigError: for an invalid name.
    """
    if not NAME.fullmatch(host):
        raise ConfigError(f"{host!r} is not a valid name or address of a host")
    return [*_SSH, "--", host, f"cd {shlex.quote(os.getcwd())} && {shlex.join(words)}"]


def _sweeping(age_s: float) -> Sequence[str]:
    # The attempt is some seconds older when the host reads this.
    return [sys.executable, "-P", "-m", "psrt.launch.segments", f"{age_s + _ANSWER_S:.0f}"]


def _ask(words: Sequence[str]) -> subprocess.Popen[str] | str:
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return f"ssh: {error.strerror}"


def _answer(process: subprocess.Popen[str] | str, deadline: float) -> Answer:
    if isinstance(process, str):
        return Answer(_FAILED, "", process)
    try:
        said, error = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(OSError):
            process.communicate()
        return Answer(_FAILED, "", f"no answer within {_ANSWER_S:g} s")
    return Answer(process.returncode, said, error)
