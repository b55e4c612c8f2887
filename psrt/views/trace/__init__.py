"""A trace of a run for a viewer of traces, made from its history: who did what when.

``source`` reads the events of all ranks in order of time, ``spans`` says what they were doing,
``flows`` which event led to which, and ``chrome`` or ``perfetto`` writes that. No MPI, and no run
under way: only its files.
"""

from __future__ import annotations

from psrt.views.trace.trace import Traced, trace_run

__all__ = ["Traced", "trace_run"]
