"""The links on which a codec pays: by formula, and confirmed in virtual time. No MPI.

The formulas are the times of a step of W workers whose links pass B bytes per second each way. v is
the bytes of a vector, f those of a frame, E and D the seconds of encoding and decoding a vector.
All that one rank encodes and decodes happens one after another, on one core.

**Pushes** into one server, which decodes one frame while the next one arrives. Replies are the same
with and without a codec:

====================  ====================================================
vectors               W·v/B
frames                E + max(W·f/B + D, f/B + W·D)
====================  ====================================================

**All-reduce**: a ring of vectors, or frames in two phases, in W chunks: e, d = E/W, D/W for each
chunk, and c = f/(W·B) on the wire. While a rank encodes the next chunk, the last one is in
flight. A rank adds contributions in rank order, so the last rank waits for the contribution that
arrives last before it adds any. A mean is decoded while the next one arrives:

====================  ====================================================
vectors               2·(W − 1)/W · v/B
contributions         max(E, e + (W − 1)·c, E − e + c) + D
means                 e + max((W − 1)·c + d, max(c, d) + (W − 1)·d)
====================  ====================================================

**Gathered**, by a codec that does not go in two phases: all frames go to all, and the last rank
waits for the frame of the first one before it adds any:

====================  ====================================================
frames                E + (W − 1)·f/B + W·D
====================  ====================================================

Latencies are the same with and without a codec. Accuracy is not considered: a codec that pays here
may still need more steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from psrt.bench import figures
from psrt.bench.figures import Column, Row
from psrt.codec import CODECS
from psrt.codec.table import RandomK
from psrt.codec.times import CodecTimes, Line
from psrt.config import TrainConfig
from psrt.core.arrays import ITEMSIZE
from psrt.core.ways import Way
from psrt.job.virtual import simulate
from psrt.simulation import SimulationCosts

#: Numbers of workers for which the link's speed is shown.
WORKERS = (4, 16, 64)
#: Links slower by this factor are simulated, where the codec must win, and faster ones.
MARGIN = 1.1
TITLE = (
    "Gbit/s of a link below which a codec pays; simulated on links 10 % slower and faster, "
    "? where that does not say the same"
)
#: Bytes per second between which a limit is searched.
_SLOWEST, _FASTEST = 1.0, 1e15


class Reading(NamedTuple):
    """The readings of a codec."""

    #: Bytes of a vector, and of its frame.
    vector: float
    frame: float
    #: Seconds of encoding a vector as a sender does, and of decoding its frame.
    encode: float
    decode: float

    @classmethod
    def of(cls, row: Row) -> Reading:
        """Return the reading in a row of ``codec.measure``."""
        return cls(ITEMSIZE * row["n"], row["nbytes"], row["send"].median, row["decode"].median)


def push_seconds(it: Reading, workers: int, bandwidth: float) -> tuple[float, float]:
    """Return the time until a server has all vectors, and until it has decoded all frames."""
    frame = it.frame / bandwidth
    coded = it.encode + max(workers * frame + it.decode, frame + workers * it.decode)
    return workers * it.vector / bandwidth, coded


def sum_seconds(it: Reading, workers: int, bandwidth: float) -> tuple[float, float]:
    """Return the time of an all-reduce, of vectors and of frames."""
    encode, decode = it.encode / workers, it.decode / workers
    wire, others = it.frame / workers / bandwidth, workers - 1
    forth = max(it.encode, encode + others * wire, others * encode + wire) + it.decode
    back = encode + max(others * wire + decode, max(wire, decode) + others * decode)
    return 2 * others / workers * it.vector / bandwidth, forth + back


def gather_seconds(it: Reading, workers: int, bandwidth: float) -> tuple[float, float]:
    """Return the time of an all-reduce, of vectors and of frames that all gather."""
    others = workers - 1
    coded = it.encode + others * it.frame / bandwidth + workers * it.decode
    return 2 * others / workers * it.vector / bandwidth, coded


#: Vectors and frames of one kind: by formula.
_Seconds = Callable[[Reading, int, float], tuple[float, float]]
#: By key of a row, its formula, and the mode and flags of the simulated job.
KINDS: dict[str, tuple[_Seconds, dict[str, Any]]] = {
    "push": (push_seconds, {"mode": "sync", "servers": 1, "shards_per_server": 1}),
    "all_reduce": (sum_seconds, {"mode": "allreduce:overlap=false"}),
}


def gathers(codec: str) -> bool:
    """Return whether all ranks gather the frames of a codec by default."""
    ways = CODECS[codec].ways
    return Way.GATHERED in ways and Way.TWO_PHASES not in ways


def limit(it: Reading, workers: int, seconds: _Seconds) -> float:
    """Return the bytes per second below which frames are faster; 0 if nowhere."""
    low, high = _SLOWEST, _FASTEST
    dense, coded = seconds(it, workers, low)
    if coded >= dense:
        return 0.0
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        dense, coded = seconds(it, workers, middle)
        low, high = (middle, high) if coded < dense else (low, middle)
    return low


def simulated(
    name: str, n: int, it: Reading, workers: int, bandwidth: float, flags: dict[str, Any]
) -> tuple[float, float]:
    """Return the virtual seconds of a step without a codec and with it.

    Args:
        name: of the codec. If the length of its frames depends on the numbers or on matrices, which
            do not exist here, random-k replaces it, with frames of that length.
        n: elements of a vector.
        it: its readings.
        workers: W.
        bandwidth: of each rank's link.
        flags: of the job.
    """
    coded: dict[str, Any] = {"codec": CODECS[name]}
    dense: dict[str, Any] = {}
    row = CODECS[name]
    if row.takes_matrices or row.codec(n).nbytes is None:
        coded = {"codec": RandomK(density=it.frame / it.vector)}
    elif row.feeds_back:
        coded["error_feedback"] = False  # its time is in the reading
    times = CodecTimes(Line(0.0, it.encode / n), Line(0.0, it.decode / n))
    costs = SimulationCosts(
        compute=lambda rank, rng: 0.0,
        latency=lambda rng: 0.0,
        bandwidth=bandwidth,
        codecs={coded["codec"].name: times},
    )
    if "servers" not in flags:
        dense["allreduce"] = "ring"
        coded["allreduce"] = "naive" if gathers(name) else "all-pairs"
    plain, framed = (
        simulate(
            TrainConfig(steps=1, batch_size=1, **flags, **more),
            workers=workers, numerics=False, parameters=n, costs=costs,
        ).seconds
        for more in (dense, coded)
    )  # fmt: skip
    return plain, framed


def limits(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the limits of each codec and number of workers, in bits per second.

    Each has its confirmation: the speed of a simulated step relative to one without the codec, on
    two links, one slower by ``MARGIN`` and one faster.
    """
    return [_limits(row, workers) for row in rows for workers in WORKERS]


def _limits(row: Row, workers: int) -> dict[str, Any]:
    it, n = Reading.of(row), row["n"]
    found: dict[str, Any] = {"codec": row["codec"], "workers": workers}
    for kind, (seconds, flags) in KINDS.items():
        if seconds is sum_seconds and gathers(row["codec"]):
            seconds = gather_seconds
        bandwidth = limit(it, workers, seconds)
        speeds = (bandwidth / MARGIN, bandwidth * MARGIN) if bandwidth else ()
        steps = [simulated(row["codec"], n, it, workers, speed, flags) for speed in speeds]
        found[kind] = 8 * bandwidth
        found[f"{kind}_simulated"] = [dense / coded for dense, coded in steps]
    return found


def is_confirmed(gains: Sequence[float]) -> bool:
    """Return whether a codec wins on the slower link, and does not on the faster one.

    >>> is_confirmed([1.05, 0.97]), is_confirmed([1.05, 1.02]), is_confirmed([])
    (True, False, True)
    """
    return not gains or gains[0] > 1 > gains[1]


def table(found: Sequence[Row]) -> str:
    """Return the limits as a table, one line per codec; unconfirmed ones are marked."""
    by_codec: dict[str, dict[tuple[str, int], Row]] = {}
    for it in found:
        by_codec.setdefault(it["codec"], {}).update({(kind, it["workers"]): it for kind in KINDS})
    columns: list[Column] = [("codec", "codec")]
    for kind, heading in (("push", "pushes, {} workers"), ("all_reduce", "all-reduce, {}")):
        columns += [(heading.format(it), f"{kind} {it}") for it in WORKERS]
    rows = [
        {"codec": codec}
        | {f"{kind} {workers}": _cell(it, kind) for (kind, workers), it in cells.items()}
        for codec, cells in by_codec.items()
    ]
    return figures.table(rows, columns)


def _cell(it: Row, kind: str) -> str:
    return f"{it[kind] / 1e9:.2f}{'' if is_confirmed(it[f'{kind}_simulated']) else ' ?'}"
