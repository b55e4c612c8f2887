"""The origin of a run's numbers, as digests: code, data, initial parameters. No MPI, no time."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from psrt.config import TrainConfig
from psrt.core.arrays import Vector
from psrt.core.version import __version__
from psrt.data import Deal
from psrt.history import Header
from psrt.history.header import OF_CELL, Tried
from psrt.job.cells import Cell
from psrt.report import parameters_sha256
from psrt.runtime.own_loop import OwnLoop
from psrt.runtime.problem import Problem, gradient_spans, matrices_of
from psrt.runtime.strategies.base import ReducePlan
from psrt.topology import Topology
from psrt.transport.port import RoleMap

#: Packages and modules of psrt that do not touch a run's numbers.
_ELSEWHERE = (
    *("bench", "cli", "doctor", "explain", "history", "pages", "report", "runs", "trace"),
    "version.py",
)
#: The part of the simulation that only fits costs to recorded runs.
_CALIBRATION = ("simulation", "calibration")


@functools.cache
def code_sha256() -> str:
    """Return the SHA-256 of psrt's sources, except those that only measure, explain or report."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if name.parts[0] not in _ELSEWHERE and name.parts[:2] != _CALIBRATION:
            digest.update(f"{name.as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def data_sha256(problem: Problem | None) -> str:
    """Return the SHA-256 of a problem's data; empty if it has no ``fingerprint``."""
    asked = getattr(problem, "fingerprint", None)
    return str(asked()) if callable(asked) else ""


def batch_plan(problem: Problem | None, workers: int) -> tuple[int, int] | None:
    """Return the samples of an epoch and of a full batch; None if the problem does not say."""
    asked = getattr(problem, "batch_plan", None)
    return asked(workers) if callable(asked) else None


def _layers(problem: Problem | None, n: int) -> tuple[tuple[int, int], ...]:
    spans = () if problem is None else gradient_spans(problem, n)
    return tuple((span.start, span.stop) for span in sorted(spans))


def history_header(
    config: TrainConfig,
    role_map: RoleMap,
    *,
    initial: Vector,
    problem: Problem | None,
    files: tuple[str, ...],
    plan: ReducePlan | None = None,
    deal: Deal | None = None,
    topology: Topology | None = None,
    hosts: tuple[int, ...] = (),
    clocks: tuple[tuple[int, float, float, float], ...] = (),
    simulated: bool = False,
    numerics: bool = True,
    disturbed: bool = False,
    crashes: tuple[int, ...] = (),
    cells: tuple[dict[str, Any], ...] = (),
    tuned: tuple[Tried, ...] = (),
) -> Header:
    """Return the header of a run's history.

    Args:
        config: resolved.
        role_map: the ranks of workers and servers.
        initial: (n,) float32, the initial parameters.
        problem: the model and data; its optional ``fingerprint() -> str`` is a digest of the data,
            its optional ``batch_plan`` says how psrt cuts it.
        files: names of the event files.
        plan: how all workers sum; None if they do not.
        deal: the samples of each worker; None where samples are not assigned.
        topology: the graph on which workers mix; None where they do not.
        hosts: number of the host of each rank.
        clocks: what the times of the hosts are ahead of the first one's, see ``Header``.
        simulated: whether time is virtual.
        numerics: whether anything is computed.
        disturbed: whether something is made to go wrong in virtual time.
        crashes: workers whose crash is scheduled.
        cells: of a split model, see ``Header``.
        tuned: what ``--tune`` tried, see ``Header``.
    """
    return Header(
        config=config.plain(),
        n=role_map.n,
        workers=role_map.workers,
        servers=role_map.servers,
        spans=tuple((span.start, span.stop) for span in role_map.spans if role_map.servers),
        initial_sha256=parameters_sha256(np.asarray(initial, np.float32)),
        data_sha256=data_sha256(problem),
        code_sha256=code_sha256(),
        psrt=__version__,
        numpy=np.__version__,
        files=files,
        algorithm=None if plan is None else plan.algorithm,
        way=None if plan is None or plan.frames is None else plan.frames.way.value,
        control_algorithm=None if plan is None else plan.control_algorithm,
        layers=_layers(problem, role_map.n) if config.scheme.streams else (),
        matrices=() if problem is None else matrices_of(problem, role_map.n),
        batches=batch_plan(problem, config.axes.data or len(role_map.workers)),
        deal=() if deal is None else deal.rows,
        edges="" if topology is None else topology.edges,
        hosts=hosts,
        clocks=clocks,
        own_loop=isinstance(problem, OwnLoop),
        simulated=simulated,
        numerics=numerics,
        disturbed=disturbed,
        crashes=crashes,
        cells=cells,
        tuned=tuned,
    )


def cell_fields(
    config: TrainConfig,
    cell: Cell,
    *,
    initial: Vector,
    problem: Problem,
    files: tuple[str, ...],
    plan: ReducePlan | None,
) -> dict[str, Any]:
    """Return what a cell says of itself in the header of the job, as JSON has it; see ``OF_CELL``.

    Args:
        config: resolved.
        cell: of a split model.
        initial: (n,) float32, its part of the initial parameters.
        problem: its part of the model.
        files: names of its event files.
        plan: how its workers sum; None if they do not.
    """
    role_map = cell.role_map
    fields = {
        "n": role_map.n,
        "workers": [cell.ranks[rank] for rank in role_map.workers],
        "servers": [cell.ranks[rank] for rank in role_map.servers],
        "spans": [[*span] for span in role_map.spans if role_map.servers],
        "initial_sha256": parameters_sha256(np.asarray(initial, np.float32)),
        "files": files,
        "matrices": matrices_of(problem, role_map.n),
        "layers": _layers(problem, role_map.n) if config.scheme.streams else (),
        "algorithm": None if plan is None else plan.algorithm,
        "way": None if plan is None or plan.frames is None else plan.frames.way.value,
        "control_algorithm": None if plan is None else plan.control_algorithm,
    }
    assert fields.keys() == set(OF_CELL), "all that a cell has of its own"
    found: dict[str, Any] = json.loads(json.dumps(fields))
    return found
