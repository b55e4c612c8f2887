"""Everything of virtual time: a seeded scheduler, ports, links with costs, calibration."""

from psrt.simulation.costs import Costs
from psrt.simulation.simulator import VirtualWorld

__all__ = ["Costs", "VirtualWorld"]
