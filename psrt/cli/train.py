"""``psrt train``, and ``psrt server`` and ``psrt worker`` of an MPMD launch."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from psrt.cli.flags import parse_train
from psrt.cli.printing import say
from psrt.errors import PsrtError
from psrt.job import launched, run

_HOW = (
    "training in this process alone; to start ranks: mpirun -n 4 python -m psrt train --mode sync"
)


def main(argv: Sequence[str], role: str | None = None) -> int:
    """Train as the flags say.

    Args:
        argv: the flags.
        role: what this rank was started as, None for any.

    Returns:
        The exit status: 0, 2 for what cannot be, 3 if the loss diverged.
    """
    if launched():
        return _among_ranks(argv, role)
    try:
        config = parse_train(argv)
        if config.mode is None:
            say(_HOW)
        run(config, say=say)
    except PsrtError as error:
        print(f"psrt: error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _among_ranks(argv: Sequence[str], role: str | None) -> int:
    # The first import of MPI starts it; ``start`` says how.
    from psrt.transport.start import world  # isort: skip
    from psrt.mpi_job import run_over_mpi
    from psrt.transport.agreement import same_everywhere

    comm = world()
    try:
        if comm.size == 1:
            run(parse_train(argv), comm=comm, say=say)
        else:
            same_everywhere(comm, "\0".join(argv), "flags")
            run_over_mpi(comm, lambda: parse_train(argv), role=role, say=say)
    except PsrtError as error:  # the same on all ranks
        if comm.rank == 0:
            print(f"psrt: error: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    return 0
