"""A trace of a run for a trace viewer, made from its history.

``source`` reads the events of all ranks in order of time, ``spans`` derives what they were doing,
``flows`` derives which event caused which, and ``chrome`` or ``perfetto`` writes the file. Uses no
MPI and no running job, only its files.
"""

from __future__ import annotations

from psrt.views.trace.trace import Traced, trace_run

__all__ = ["Traced", "trace_run"]
