"""Starts MPI the way psrt wants it."""

from __future__ import annotations

import os

import mpi4py

# psrt calls MPI from one thread, and locks it never needs cost time at each call.
mpi4py.rc.thread_level = "funneled"
# Open MPI's one-sided component for UCX complains at start where there is no such hardware.
os.environ.setdefault("OMPI_MCA_osc", "^ucx")
# Its transport for one-sided traffic over libfabric, which psrt has none of, sleeps for a second.
os.environ.setdefault("OMPI_MCA_btl", "^ofi")

from mpi4py import MPI  # noqa: E402


def world() -> MPI.Comm:
    """Return all ranks of the job."""
    return MPI.COMM_WORLD
