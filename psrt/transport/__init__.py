"""How bytes get from rank to rank: one protocol, an MPI port and a virtual one.

``psrt.transport.mpi`` imports mpi4py, so it is not imported here.
"""

from psrt.transport.costs import Costs
from psrt.transport.port import EXTRA, NO_PAYLOAD, Port, Wiring
from psrt.transport.solo import SoloPort, drive
from psrt.transport.world import VirtualWorld

__all__ = ["EXTRA", "NO_PAYLOAD", "Costs", "Port", "SoloPort", "VirtualWorld", "Wiring", "drive"]
