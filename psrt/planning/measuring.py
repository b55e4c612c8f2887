"""Measures a job on the ranks that will train it, and is what these ranks run.

As a script, ``measuring.py FILE WORKERS [SCRIPT ...]``, or ``-m MODULE ...``, it is one rank, which
ends where the other script would train. Without that one the job is that of ``--knobs``.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from psrt.core.errors import ConfigError
from psrt.launch.hints import launch_line
from psrt.planning.known import Known

if TYPE_CHECKING:
    from mpi4py import MPI

    from psrt.config import TrainConfig
    from psrt.runtime.problem import Problem

_HERE = Path(__file__).resolve()


def measured_on(
    ranks: int | None, flags: Sequence[str], script: Sequence[str], workers: int | None
) -> Known:
    """Return what ranks that ``psrt launch`` starts measure of a job.

    Args:
        ranks: their number; None leaves it to ``psrt launch``.
        flags: others of it.
        script: a script, or ``-m`` and a module, with its flags; empty for the job of ``--knobs``.
        workers: of each mode; None: all ranks that are not servers.

    Raises:
        ConfigError: if they did not leave what they measured where this process finds it.
        SystemExit: with the status of the ranks if they failed; the error has been printed.
    """
    # Other hosts are promised to have the current folder, but no other.
    beside = "." if "--hostfile" in flags else None
    with tempfile.TemporaryDirectory(prefix=".psrt-plan-", dir=beside) as folder:
        path = Path(folder).absolute() / "known.json"
        words = [*flags, str(_HERE), str(path), str(workers or 0), *script]
        if status := ran(launch_line(ranks, shlex.join(words))):  # stdout is for the plan
            raise SystemExit(status)
        if path.exists():
            return Known.from_json(path.read_text(encoding="utf-8"))
    where = ", or ran on another host in another folder" if beside else ""
    raise ConfigError(
        f"nothing was measured: {shlex.join(script)} never called psrt.run, or has a training loop "
        f"of its own, which cannot be repeated{where}: give --parameters N and --gradient-ms MS"
    )


def ran(line: str, log: IO[str] | None = None, timeout_s: float | None = None) -> int:
    """Run a line that is quoted for a shell; its output goes to ``log``, by default to stderr.

    Raises:
        TimeoutExpired: after that many seconds; it has ended its ranks.
    """
    process = subprocess.Popen(
        shlex.split(line), stdin=subprocess.DEVNULL, stdout=2 if log is None else log, stderr=log
    )
    try:
        return process.wait(timeout_s)
    except BaseException:
        process.terminate()
        process.wait()
        raise


def main() -> None:
    """Measure the job that the words of this process's command line start."""
    path, workers, *script = sys.argv[1:]
    if sys.path[0] == str(_HERE.parent):  # the other script's folder comes with it
        del sys.path[0]
    from psrt.config import TrainConfig
    from psrt.job import local
    from psrt.launch.rank import run_script

    local.instead = partial(_measure, Path(path), int(workers))
    if script:
        run_script(script)
    else:
        local.run(TrainConfig())


def _measure(
    path: Path, workers: int, comm: MPI.Comm, config: TrainConfig, problem: Problem | None
) -> NoReturn:
    """Measure a job on its ranks, write what was found at rank 0, and end; collective."""
    from psrt.planning.probe import measure_job
    from psrt.runtime.own_loop import OwnLoop

    if not isinstance(problem, OwnLoop):  # whose gradients cannot be repeated
        say = partial(print, file=sys.stderr, flush=True)
        known = measure_job(comm, config, problem, workers=workers or None, say=say)
        if comm.rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(known.to_json(), encoding="utf-8")
    sys.exit(0)


if __name__ == "__main__":
    main()
