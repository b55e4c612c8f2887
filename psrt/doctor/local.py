"""What a process knows about itself and its host, without MPI."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from psrt.core.vendors import is_own
from psrt.core.version import __version__
from psrt.doctor.facts import RankFacts
from psrt.job.provenance import code_sha256
from psrt.launch import spoken_pmi, started_by, started_ranks
from psrt.launch.library import library_file

#: Functions of the libraries behind numpy that return the number of their threads.
_THREADS_OF = (
    "scipy_openblas_get_num_threads64_",
    "scipy_openblas_get_num_threads",
    "openblas_get_num_threads64_",
    "openblas_get_num_threads",
    "MKL_Get_Max_Threads",
    "bli_thread_get_num_threads",
)
_LIBRARIES = ("openblas", "mkl_rt", "libblis")
#: Variables that tell MPI which network to use, and how.
_SETTINGS = ("OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_mtl", "MPIR_CVAR_", "UCX_", "FI_")
# ioctl: flags and address of a network interface, from linux/sockios.h and linux/if.h.
_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_UP, _LOOPBACK = 0x1, 0x8


def local_facts(rank: int, mpi: Mapping[str, str]) -> RankFacts:
    """Return what this process knows by itself.

    Args:
        rank: its rank.
        mpi: name and version of the MPI library under ``MPI``, its ABI under ``ABI``.
    """
    shm = _file_system("/dev/shm")
    return RankFacts(
        rank=rank,
        host=platform.node(),
        boot=_line("/proc/sys/kernel/random/boot_id"),
        pid=os.getpid(),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        machine_cores=os.cpu_count() or 1,
        versions={
            "psrt": f"{__version__}, code {code_sha256()[:8]}",
            "Python": platform.python_version(),
            "numpy": np.__version__,
            "mpi4py": _version("mpi4py"),
            "MPI": mpi["MPI"],
        },
        library_path=library_file(_maps()),
        abi=mpi["ABI"],
        launcher=started_by(),
        pmi=spoken_pmi(),
        started=started_ranks(),
        blas_threads=blas_threads(),
        shm_bytes=None if shm is None else shm[0],
        shm_free=None if shm is None else shm[1],
        networks=networks(),
        settings={
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_SETTINGS) and not is_own(name, value)
        },
    )


def blas_threads() -> int | None:
    """Return the number of threads of numpy's matrix products; None if it is not known."""
    for path in sorted({line.split(maxsplit=5)[5] for line in _maps() if "/" in line}):
        if any(name in os.path.basename(path) for name in _LIBRARIES):
            library = ctypes.CDLL(path)
            for name in _THREADS_OF:
                if hasattr(library, name):
                    return int(getattr(library, name)())
    return None


def networks() -> dict[str, str]:
    """Return the IPv4 networks that are up, except for the loopback: name → address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asked, _SIOCGIFFLAGS, request)
                (flags,) = struct.unpack("H", answer[16:18])
                if flags & _UP and not flags & _LOOPBACK:
                    answer = fcntl.ioctl(asked, _SIOCGIFADDR, request)
                    found[name] = socket.inet_ntoa(answer[20:24])
            except OSError:  # it has no address, or has just disappeared
                continue
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _file_system(path: str) -> tuple[int, int] | None:
    """Return the bytes of a file system and those that are free."""
    try:
        it = os.statvfs(path)
    except OSError:
        return None
    return it.f_frsize * it.f_blocks, it.f_frsize * it.f_bavail


def _maps() -> list[str]:
    """Return the files that this process has mapped; empty if the system does not tell."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""
