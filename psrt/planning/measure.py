"""The process of one rank that measures a user's job, and ends where that would train.

``python -m psrt.planning.measure OUT WORKERS [SCRIPT ...]``, or ``-m MODULE ...``. Without a script
the job is that of a config, which ``psrt launch --knobs`` gives.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from mpi4py import MPI

    from psrt.config import TrainConfig
    from psrt.runtime.problem import Problem

_GIVE = "give --parameters N and --gradient-ms MS instead"
#: Seconds that other ranks leave to the first one to print what all of them would.
_AFTER_FIRST_S = 1.0


def main() -> None:
    """Measure the job that the words of this process's command line start."""
    path, workers, *words = sys.argv[1:]
    if Path(sys.path[0]) == Path.cwd():  # which -m has added; a script's own folder comes with it
        del sys.path[0]
    from psrt.job import local

    ends: list[int] = []

    def instead(comm: MPI.Comm, config: TrainConfig, problem: Problem | None) -> NoReturn:
        _measure(comm, config, problem, Path(path), int(workers) or None)
        ends.append(0)
        sys.exit(0)

    local.instead = instead
    try:
        _start(words)
    except SystemExit as error:
        if error.code or ends:
            raise
    except Exception:
        _leave_first()
        raise
    _fail("never called psrt.run")


def _start(words: Sequence[str]) -> None:
    from psrt.config import TrainConfig
    from psrt.job.local import run
    from psrt.launch.rank import run_script

    if words:
        run_script([*words])
    else:
        run(TrainConfig())


def _measure(
    comm: MPI.Comm, config: TrainConfig, problem: Problem | None, path: Path, workers: int | None
) -> None:
    """Measure a job on its ranks, and write what was found at rank 0; collective."""
    from psrt.planning.probe import measure_job
    from psrt.runtime.own_loop import OwnLoop

    if isinstance(problem, OwnLoop):
        _fail("has a training loop of its own, whose gradients cannot be repeated")
    say = partial(print, file=sys.stderr, flush=True)  # of rank 0 only
    known = measure_job(comm, config, problem, workers=workers, say=say)
    if comm.rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(known.to_json(), encoding="utf-8")


def _fail(why: str) -> NoReturn:
    """End the job with an error that all ranks have, about the script that they run."""
    _leave_first()
    print(f"psrt: error: {sys.argv[0]} {why}: {_GIVE}", file=sys.stderr, flush=True)
    sys.exit(2)


def _leave_first() -> None:
    from psrt.launch.environment import started_rank

    time.sleep(_AFTER_FIRST_S if started_rank() else 0.0)


if __name__ == "__main__":
    main()
