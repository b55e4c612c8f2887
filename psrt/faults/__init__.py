"""How the ranks of a job notice that one of them is dead, silent or stuck, and say so once.

``vitals`` is what a rank tells of itself, ``detector`` decides from what all ranks tell, and is
pure; ``hub`` and ``line`` carry it between processes, each in a thread (``watcher``) and apart from
MPI, which may itself be what is stuck.
"""

from psrt.faults.detector import Busy, Condition, Detector, Paused, Verdict, Waiting
from psrt.faults.hub import Hub
from psrt.faults.line import Line
from psrt.faults.roster import Member, Roster
from psrt.faults.vitals import Vitals

__all__ = [
    "Busy",
    "Condition",
    "Detector",
    "Hub",
    "Line",
    "Member",
    "Paused",
    "Roster",
    "Verdict",
    "Vitals",
    "Waiting",
]
