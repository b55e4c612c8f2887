"""The protocol between ranks, whatever carries it: ports, frames, waiting. No MPI, no time."""

from psrt.transport.port import EXTRA, NO_PAYLOAD, Port, RoleMap
from psrt.transport.solo import SoloPort, drive

__all__ = ["EXTRA", "NO_PAYLOAD", "Port", "RoleMap", "SoloPort", "drive"]
