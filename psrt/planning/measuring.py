"""Measures a job on the ranks that will train it: starts them, and reads what rank 0 wrote."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import psrt
from psrt.core.errors import ConfigError
from psrt.planning.known import Known

#: The words that start psrt by this Python, which takes no modules from the current folder, and
#: the folder of psrt itself.
_PSRT, _ROOT = (sys.executable, "-P", "-m", "psrt"), Path(psrt.__file__).parents[1]
#: Seconds between two looks at a run.
_LOOK_S = 0.2


def measured_on(
    command: Sequence[str],
    *,
    hostfile: str | None = None,
    ranks: int | None = None,
    workers: int | None = None,
    say: Callable[[str], None],
) -> Known:
    """Return what ranks that ``psrt launch`` starts measure of a job.

    What they print goes to stderr: stdout is for the plan.

    Args:
        command: the words after ``psrt launch``: a script or ``-m`` and a module, each with its
            flags, or ``train`` and flags of a config.
        hostfile: of their hosts; None: this one.
        ranks: their number; None leaves it to ``psrt launch``.
        workers: of each mode; None: all ranks that are not servers.
        say: called with a line that says what is started.

    Raises:
        ConfigError: if there is no such script, or if they did not leave what they measured where
            this process finds it.
        SystemExit: with the status of the ranks if they failed; the error has been printed.
    """
    words = [] if ranks is None else ["-n", str(ranks)]
    words += [] if hostfile is None else ["--hostfile", hostfile]
    if command[0] == "train":  # flags become the config of a script that has none
        words, command = [*words, "--knobs", shlex.join(command[1:])], ()
    elif command[0] != "-m" and not Path(command[0]).is_file():
        raise ConfigError(f"no script {command[0]}")
    # Other hosts are promised to have the current folder, but no other.
    beside = None if hostfile is None else "."
    with tempfile.TemporaryDirectory(prefix=".psrt-plan-", dir=beside) as folder:
        path = Path(folder).absolute() / "known.json"
        ours = ["-m", "psrt.planning.measure", str(path), str(workers or 0)]
        say(f"measuring on {'the' if ranks is None else ranks} ranks; nothing is trained for good")
        status = ran(["launch", *words, *ours, *command])
        if status:
            raise SystemExit(status)
        try:
            return Known.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"rank 0 wrote what it measured to {path} on its own host: start from the first "
                "host of --hosts, or in a folder that all hosts share"
            ) from None


def ran(
    words: Sequence[str], is_over: Callable[[], bool] | None = None, *, log: IO[str] | None = None
) -> int:
    """Run psrt to its end; return its status, which is 128 + n after signal n.

    Args:
        words: after ``psrt``.
        is_over: asked now and then whether it is to be ended before.
        log: takes what it prints; None: stderr.
    """
    variables = dict(os.environ)
    if _ROOT.name not in ("site-packages", "dist-packages"):  # used without being installed
        variables["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(_ROOT), variables.get("PYTHONPATH")))
        )
    process = subprocess.Popen(
        [*_PSRT, *words], env=variables, stdin=subprocess.DEVNULL,
        stdout=2 if log is None else log, stderr=log,
    )  # fmt: skip
    try:
        while is_over is not None and process.poll() is None and not is_over():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
        if is_over is not None:
            process.terminate()  # it ends its ranks before it ends
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return status if status >= 0 else 128 - status
