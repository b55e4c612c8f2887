"""The history of copies of a split model that are learners, as those of runs whose rules are known.

What the first worker of each copy does is a run of local SGD over servers. The other workers of a
copy take the same steps, each on its own part and alone, as in a serial run.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from psrt.config.modes import MODES
from psrt.history.events import Kind
from psrt.history.header import Header
from psrt.history.reading import History

#: The mode without communication.
_ALONE = next(iter(MODES.where(lambda it: it.single)))
#: Of a run whose workers have servers; a serial one refuses them.
_SERVED = ("codec", "codec_reply", "staleness_rate", "servers", "shards_per_server")


def alone(history: History, copy: int, job: Header) -> History:
    """Return what a worker did that talks to no server, as a serial run.

    Args:
        history: of its cell.
        copy: of the model, its number in the cell.
        job: the header of the run.
    """
    header = dataclasses.replace(
        history.header,
        config=job.config | dict.fromkeys(_SERVED) | {"mode": _ALONE},
        workers=(job.workers[copy],),
        stopped=job.stopped[copy : copy + 1],
        batches=None,
        deal=(),
    )
    own = history.workers[copy].copy()
    own["worker"] = 0
    # It leaves after its steps; what it says counts averages.
    own["clock"][own["kind"] == Kind.LEAVE] = np.count_nonzero(own["kind"] == Kind.STEP)
    return History(header, (own,), (), history.finals[:0])
