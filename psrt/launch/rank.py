"""The process of one rank of a user's script: torchrun's variables, its GPU, then the script.

``python -P -m psrt.launch.rank [--gpus] SCRIPT ...``, or ``-m MODULE ...``. Imports no MPI and no
numpy: the script may need neither. It ends the job if the script fails: plain Python would wait for
the other ranks, which wait for it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import runpy
import sys
import time
from itertools import accumulate

from psrt.core.errors import ConfigError, status_of
from psrt.launch.environment import KNOBS, is_of_srun, place, started_rank, started_ranks
from psrt.launch.gpus import VISIBLE, gpu_of

#: The number of ranks on each host of a hostfile, which ``psrt launch`` sets: "2,1".
SLOTS = "PSRT_SLOTS"
#: The flag before the script that gives each rank a GPU of its own.
GPUS = "--gpus"
#: Seconds that a rank without a GPU leaves to the one that reports it.
_REPORT_S = 5.0
#: The status of the script if it has failed without MPI.
_failed: list[int] = []


def torchrun_variables() -> dict[str, str]:
    """Return the variables by which scripts of torchrun find their place among the ranks.

    ``GROUP_RANK``, the number of the host, is left out where it is not known.
    """
    local, size = place()
    rank, ranks = started_rank(), started_ranks()
    found = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": size}
    first_ranks = [0, *accumulate(map(int, filter(None, os.environ.get(SLOTS, "").split(","))))]
    if is_of_srun():
        found["GROUP_RANK"] = int(os.environ.get("SLURM_NODEID", "0"))
    elif size == ranks:
        found["GROUP_RANK"] = 0
    elif rank - local in first_ranks[:-1]:
        found["GROUP_RANK"] = first_ranks.index(rank - local)
    return {name: str(number) for name, number in found.items()}


def main() -> None:
    """Run the script of this process's command line as ``__main__``."""
    atexit.register(_abort, os.getpid())  # first, to be called last
    words = sys.argv[1:]
    has_gpu = words[:1] == [GPUS]
    os.environ.update(torchrun_variables())
    if has_gpu:
        _take_gpu()
    run_script(words[has_gpu:])


def _take_gpu() -> None:
    """Let this rank see its own GPU only, as the first one."""
    local, size = place()
    try:
        own = gpu_of(os.environ, local, size, is_bound=is_of_srun() and _is_bound())
    except ConfigError as error:
        if local:  # the first rank of this host reports it, and its end ends the others
            time.sleep(_REPORT_S)
        else:
            print(f"psrt: error: {error} (on rank {started_rank()})", file=sys.stderr, flush=True)
        _end_others(error.exit_status)
        sys.exit(error.exit_status)
    # Scripts take the GPU with this number: torchrun sets it so, too, with --virtual-local-rank.
    os.environ.update({VISIBLE: own, "LOCAL_RANK": "0"})


def _is_bound() -> bool:
    """Return whether Slurm shows each rank the GPUs of its own already."""
    names = ("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_GPU_BIND")
    has_share = re.search(r"\bgpu\b", os.environ.get("SLURM_TRES_PER_TASK", ""))
    return bool(has_share) or any(name in os.environ for name in names)


def run_script(words: list[str]) -> None:
    """Run a script, or ``-m`` and a module, as ``__main__``; end the job if it fails.

    Args:
        words: with its own ones, which it finds in ``sys.argv``.
    """
    is_module = words[0] == "-m"
    sys.argv[:] = words[is_module:]
    if not os.environ.get("PYTHONSAFEPATH"):  # what Python's -P left out
        script = os.path.dirname(os.path.realpath(sys.argv[0]))
        sys.path.insert(0, os.getcwd() if is_module else script)
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            _end_others(status_of(error))
        raise
    # What takes a config loads this module.
    if os.environ.get(KNOBS) and "psrt.job.local" not in sys.modules and not started_rank():
        print(
            "psrt: --knobs had no effect: nothing gave psrt a config", file=sys.stderr, flush=True
        )


def _end_others(status: int) -> None:
    """Have the end of this process end the job."""
    if (mpi := sys.modules.get("mpi4py.MPI")) is not None:
        mpi._set_abort_status(status)
    else:
        _failed.append(status)


def _abort(process: int) -> None:
    """Have MPICH's mpirun end the job after a failure before MPI has started, as others do."""
    handle = os.environ.get("PMI_FD", "") if "HYDI_CONTROL_FD" in os.environ else ""
    if _failed and handle.isdecimal() and os.getpid() == process:
        sys.stdout.flush()  # mpirun also ends this process
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            os.write(int(handle), f"cmd=abort exitcode={_failed[0]}\n".encode())


if __name__ == "__main__":
    main()
