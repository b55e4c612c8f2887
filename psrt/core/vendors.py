"""What the MPI libraries read from the environment when they start."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: Open MPI's component for one-sided traffic over UCX complains on every rank where there is no
#: such hardware.
_ALWAYS = {"OMPI_MCA_osc": "^ucx"}
#: The transports that they do without. Open MPI's over libfabric sleeps for a second, and psrt does
#: not use it; one of UCX's lets a user's group write to its memory, and there are others.
_WITHOUT = {"OMPI_MCA_btl": "^ofi", "UCX_TLS": "^sysv"}
#: The one that ranks on one host do not need either. Its port is open to every user of the machine
#: and of the network, and one who connects to it and falls silent holds the rank up.
_PORT = ",tcp"
#: Bytes free in /dev/shm below which ranks may need it after all: Open MPI's take no shared memory
#: if there are not 16 MiB for each of them to begin with.
_ROOM = 32 << 20
#: Variables with the number of ranks of a job, and with that of the ranks of it on this host.
_COUNTS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "MPI_LOCALNRANKS"),
)


def settings(environment: Mapping[str, str], *, tcp: bool) -> dict[str, str]:
    """Return the variables to set; what the user has set is left as it is.

    Args:
        environment: the variables of this process.
        tcp: whether ranks may talk over TCP.

    >>> settings({"UCX_TLS": "all", "OMPI_MCA_osc": "rdma"}, tcp=True)
    {'OMPI_MCA_btl': '^ofi'}
    >>> settings({"UCX_TLS": "^sysv", "OMPI_MCA_osc": "rdma"}, tcp=False)
    {'OMPI_MCA_btl': '^ofi,tcp', 'UCX_TLS': '^sysv,tcp'}
    """
    # One that has its first value may have it of a parent of this process, such as `psrt launch`.
    return {
        name: text if tcp or name not in _WITHOUT else text + _PORT
        for name, text in (_ALWAYS | _WITHOUT).items()
        if environment.get(name, text) == text
    }


def is_own(name: str, text: str) -> bool:
    """Return whether this is a value that psrt sets."""
    own = (_ALWAYS | _WITHOUT).get(name)
    return own is not None and text.removesuffix(_PORT) == own


def has_room() -> bool:
    """Return whether ranks on this host have the memory to share that lets them do without TCP."""
    try:
        shared = os.statvfs("/dev/shm")
    except OSError:
        return False
    return shared.f_bavail * shared.f_frsize >= _ROOM


def is_one_of_several(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher says that it has started several processes with this one."""
    names = (*(of_job for of_job, _ in _COUNTS), "SLURM_STEP_NUM_TASKS")
    counts = [environment[name] for name in names if name in environment]
    return bool(counts) and counts[0] != "1"


def on_one_host(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher says that it has started all ranks of this job on this host.

    Alone, a process is not one of several; and it may be what starts ranks on other hosts.
    """
    for of_job, of_host in _COUNTS:
        if of_job in environment:
            return environment[of_job] == environment.get(of_host)
    # Slurm says it itself where it has started the ranks.
    tasks, nodes = environment.get("SLURM_STEP_NUM_TASKS"), environment.get("SLURM_STEP_NUM_NODES")
    return tasks not in (None, "1") and nodes == "1"
