"""The protocol between ranks, whatever carries it: ports, frames, waiting. No MPI, no time."""

from psrt.transport.port import CONTROL, NO_PAYLOAD, Port, RoleMap
from psrt.transport.solo import SoloPort, drive, quietly

__all__ = ["CONTROL", "NO_PAYLOAD", "Port", "RoleMap", "SoloPort", "drive", "quietly"]
