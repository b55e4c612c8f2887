"""Pipelines as data: what each stage computes, sends and receives. Pure: no arrays, no MPI.

``registry.py`` has a row for each schedule, ``step.py`` the nomenclature, and ``schedules/`` the
orders of computations with their derivations; ``messages.py`` adds the messages. A new schedule is
one file there and one row. The tests under ``tests/pure/pipeline`` then run it for every P and M.
The prover (``proof.py``) shows that each micro-batch passes each stage once in each direction, and
broken copies of the schedule show that the prover detects errors. Importing this package does not
import numpy.
"""

from __future__ import annotations

from psrt.pipeline.registry import PIPELINES, ScheduleName, forms, schedule_of
from psrt.pipeline.schedule import PipelineSchedule, most_alive
from psrt.pipeline.step import ALL, Kind, PipelineStep
from psrt.pipeline.timeline import ScheduleError

__all__ = [
    "ALL",
    "PIPELINES",
    "Kind",
    "PipelineSchedule",
    "PipelineStep",
    "ScheduleError",
    "ScheduleName",
    "forms",
    "most_alive",
    "schedule_of",
]
