"""Which hosts of a job answer, asked by ssh, as mpirun would reach them. Imports no MPI.

Whoever answers sweeps, on the way, what killed ranks have left in its shared memory.
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

from psrt.errors import ConfigError
from psrt.mpirun.hostfile import NAME

#: Never a question, one try, and these seconds to connect.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectionAttempts=1", "-o", "ConnectTimeout=5")
#: Seconds that a host has to answer, and how many are asked at a time.
_ANSWER_S, _AT_A_TIME = 15.0, 64
#: The status of ssh's own errors; any other is that of the command, so the host has answered.
_FAILED = 255


def unreachable(hosts: Iterable[str], age_s: float) -> Mapping[str, str]:
    """Return the hosts that do not answer, and why, in the order of ``hosts``.

    Args:
        hosts: their names.
        age_s: seconds since the first attempt began; older segments are not swept on those that do.

    Raises:
        ConfigError: for a name that is none.
    """
    others = [host for host in hosts if not is_this_host(host)]
    found: dict[str, str] = {}
    for at in range(0, len(others), _AT_A_TIME):
        asked = {host: _ask(host, age_s) for host in others[at : at + _AT_A_TIME]}
        deadline = time.monotonic() + _ANSWER_S
        for host, process in asked.items():
            why = _answer(process, deadline)
            if why is not None:
                found[host] = why
    return found


def is_this_host(name: str) -> bool:
    """Return whether a name is this host's own; an alias may go by as another's.

    >>> is_this_host("localhost"), is_this_host("no-host-of-ours")
    (True, False)
    """
    own = socket.gethostname()
    return name in ("localhost", own, own.partition(".")[0]) or name.startswith("127.")


def question(host: str, age_s: float) -> Sequence[str]:
    """Return the command that asks a host; its last word is for the shell there.

    Raises:
        ConfigError: for a name that is none.
    """
    if not NAME.fullmatch(host):
        raise ConfigError(f"{host!r} is no name or address of a host")
    # It is some seconds older when that host reads it.
    sweep = shlex.join(
        [sys.executable, "-P", "-m", "psrt.mpirun.segments", f"{age_s + _ANSWER_S:.0f}"]
    )
    return [*_SSH, "--", host, f"cd {shlex.quote(os.getcwd())} && {sweep}"]


def _ask(host: str, age_s: float) -> subprocess.Popen[str] | str:
    try:
        return subprocess.Popen(
            question(host, age_s),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return f"ssh: {error.strerror}"


def _answer(process: subprocess.Popen[str] | str, deadline: float) -> str | None:
    """Return why a host has not answered; None if it has."""
    if isinstance(process, str):
        return process
    try:
        _, said = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(OSError):
            process.communicate()
        return f"no answer within {_ANSWER_S:g} s"
    if process.returncode != _FAILED:
        return None
    return " ".join(said.split())[-200:] or "ssh failed"
