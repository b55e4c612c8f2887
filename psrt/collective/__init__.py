"""Collectives as data: generators of steps, one file each. Pure: no buffers, no MPI.

``registry.py`` has a row for each, ``step.py`` the nomenclature, ``spec.py`` the required results,
and ``schedules/`` the schedules with their derivations. A new all-reduce is one file there and one
row. The tests under ``tests/pure/collective`` then run it for every p and n. The prover
(``analysis/proof.py``) shows that each contribution counts exactly once, and broken copies of the
schedule show that the prover detects errors. Importing this package does not import numpy.
"""

from __future__ import annotations

from psrt.collective.ops import OPS, Operation
from psrt.collective.registry import ALGORITHMS, PHASES, SCHEDULES
from psrt.collective.schedule import Algorithm, Schedule
from psrt.collective.schedules.ring import ring_steps
from psrt.collective.spec import CollectiveSpec, Postcondition
from psrt.collective.step import NOTHING, Step

__all__ = [
    "ALGORITHMS",
    "NOTHING",
    "OPS",
    "PHASES",
    "SCHEDULES",
    "Algorithm",
    "CollectiveSpec",
    "Operation",
    "Postcondition",
    "Schedule",
    "Step",
    "ring_steps",
]
