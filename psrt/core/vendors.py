"""Environment variables that the MPI libraries read when they start."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: Open MPI's component for one-sided communication over UCX prints a complaint on every rank if
#: there is no such hardware.
_ALWAYS = {"OMPI_MCA_osc": "^ucx"}
#: Transports that are turned off. Open MPI's over libfabric sleeps for a second, and psrt does not
#: use it. One of UCX's lets the user's group write to its memory, and there are others to use.
_WITHOUT = {"OMPI_MCA_btl": "^ofi", "UCX_TLS": "^sysv"}
#: The transport that ranks on a single host do not need either. Its port is open to every user of
#: the machine and the network, and a client that connects and sends nothing blocks the rank.
_PORT = ",tcp"
#: Free bytes in /dev/shm below which ranks may need it after all: Open MPI uses no shared memory
#: unless there are 16 MiB for each rank at the start.
_ROOM = 32 << 20
#: Variables with the number of ranks of a job, and with the number of those on this host.
_COUNTS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "MPI_LOCALNRANKS"),
)


def settings(environment: Mapping[str, str], *, tcp: bool) -> dict[str, str]:
    """Return the variables to set; variables that the user has set are not changed.

    Args:
        environment: the variables of this process.
        tcp: whether ranks may use TCP.

    >>> settings({"UCX_TLS": "all", "OMPI_MCA_osc": "rdma"}, tcp=True)
    {'OMPI_MCA_btl': '^ofi'}
    >>> settings({"UCX_TLS": "^sysv", "OMPI_MCA_osc": "rdma"}, tcp=False)
    {'OMPI_MCA_btl': '^ofi,tcp', 'UCX_TLS': '^sysv,tcp'}
    """
    # Its first value may have been set by a parent of this process, such as `psrt launch`.
    return {
        name: text if tcp or name not in _WITHOUT else text + _PORT
        for name, text in (_ALWAYS | _WITHOUT).items()
        if environment.get(name, text) == text
    }


def is_own(name: str, text: str) -> bool:
    """Return whether psrt sets this value."""
    own = (_ALWAYS | _WITHOUT).get(name)
    return own is not None and text.removesuffix(_PORT) == own


def has_room() -> bool:
    """Return whether this host has enough shared memory for ranks not to need TCP."""
    try:
        shared = os.statvfs("/dev/shm")
    except OSError:
        return False
    return shared.f_bavail * shared.f_frsize >= _ROOM


def is_one_of_several(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher has started several processes together with this one."""
    names = (*(of_job for of_job, _ in _COUNTS), "SLURM_STEP_NUM_TASKS")
    counts = [environment[name] for name in names if name in environment]
    return bool(counts) and counts[0] != "1"


def on_one_host(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher has started all ranks of this job on this host.

    False for a single process, which may itself start ranks on other hosts.
    """
    for of_job, of_host in _COUNTS:
        if of_job in environment:
            return environment[of_job] == environment.get(of_host)
    # Slurm sets these variables if it has started the ranks.
    tasks, nodes = environment.get("SLURM_STEP_NUM_TASKS"), environment.get("SLURM_STEP_NUM_NODES")
    return tasks not in (None, "1") and nodes == "1"
