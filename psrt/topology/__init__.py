"""Topologies: who averages with whom, and with which weights, as data. Pure: no MPI, no time.

A topology is a period of rounds. Each round has a graph, whose edges say who sends to whom, and a
mixing matrix M on these edges: after the round rank i has Σ_j M[i, j] θ_j. A matrix is built, and
then verified by code that did not build it (``verify``); how fast disagreement shrinks follows from
its singular values (``spectrum``).

The names below are looked up on first use: only ``names`` needs no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psrt.topology.graph import Graph
    from psrt.topology.registry import GRAPHS, Topology, topology_of
    from psrt.topology.verify import MixingError

__all__ = ["GRAPHS", "Graph", "MixingError", "Topology", "topology_of"]

#: Public name → the module that has it.
_HOME = {
    "Graph": "graph",
    **dict.fromkeys(("GRAPHS", "Topology", "topology_of"), "registry"),
    "MixingError": "verify",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
