"""The topologies whose names are all there is to say."""

from __future__ import annotations

from psrt.topology.names import TOPOLOGIES

GRAPHS = tuple(name for name, row in TOPOLOGIES.items() if not row.number)
