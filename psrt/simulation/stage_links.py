"""The channels between the stages of a simulated model, and the time of their passes.

Both ends of a channel are in one process and have one matrix, as inside a host: nothing is copied,
and a writer waits for rows to be released. A message takes the time of its bytes in the network of
the simulator. Slices of a layer meet at a rendezvous, where their sums take two barriers and the
time of the bytes that a rank moves. So do all parts of a copy, to total their numbers. With
``costs.hosts`` slices of one host sum at the speed of its memory, and hosts sum as in a ring.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from psrt.collective.registry import NODE, ONE_SHOT_BYTES
from psrt.core.arrays import FloatArray, Vector
from psrt.core.partition import Part
from psrt.pipeline.step import Kind, PipelineStep
from psrt.simulation.network import Channel as Line
from psrt.simulation.pass_costs import PassCosts
from psrt.simulation.rendezvous import Rendezvous, hosts_among, two_barriers
from psrt.simulation.sums import fold_of, moved_bytes
from psrt.transport.stage_links import NUMBER_BYTES, Channel, touches

if TYPE_CHECKING:
    from psrt.simulation.port import VirtualPort
    from psrt.simulation.simulator import Simulator

#: Of a copy of the model: by stage and slice, the rank of the job.
Ranks: TypeAlias = Sequence[Sequence[int]]


def stage_links(
    world: Simulator,
    ranks: Ranks,
    channels: Sequence[Sequence[Channel]],
    parts: Sequence[Part],
    costs: Sequence[PassCosts],
) -> dict[int, VirtualStageLinks]:
    """Return the links between the ranks of one copy of a model, by rank of the job.

    Args:
        world: the simulator of the job.
        ranks: of the copy.
        channels: by slice, the channels of all stages.
        parts: of the parameters, one per rank; slices change fastest.
        costs: of the passes, by stage.
    """
    ports = [[world.ports[rank] for rank in of_stage] for of_stage in ranks]
    gathering = _Gathering([port for of_stage in ports for port in of_stage], parts)

    whole = [rank for of_stage in ranks for rank in of_stage]

    def seconds(*_: Any) -> float:
        return two_barriers(world, whole, NUMBER_BYTES * (len(parts) - 1))

    rest = 4 * sum(part.size for part in parts[1:])

    def there_and_back_s(*_: Any) -> float:
        return two_barriers(world, whole, 2 * rest) if rest else 0.0

    totals = Rendezvous(world, math.fsum, seconds, workers=len(parts))
    scattering = Rendezvous(world, operator.itemgetter(0), there_and_back_s, workers=len(parts))
    found: dict[int, VirtualStageLinks] = {}
    ways = [
        [_Way(world, it, ranks[it.writer][i], ranks[it.reader][i]) for it in of_slice]
        for i, of_slice in enumerate(channels)
    ]
    for stage, of_stage in enumerate(ranks):
        slices = _Slices(world, of_stage)
        for i, rank in enumerate(of_stage):
            mine = [it for it in ways[i] if stage in (it.channel.writer, it.channel.reader)]
            place = stage * len(of_stage) + i
            meets = slices, i, gathering, place, totals, scattering
            found[rank] = VirtualStageLinks(world.ports[rank], mine, costs[stage], *meets)
    return found


@dataclass(eq=False)
class VirtualStageLinks:
    """One stage's links in virtual time; see ``StageLinks``."""

    #: Of this rank.
    port: VirtualPort
    #: Channels that this stage writes or reads.
    ways: InitVar[Sequence[_Way]]
    #: Of its passes.
    costs: PassCosts
    #: Where the slices of this stage meet, and the number of this slice.
    slices: _Slices
    slice_: int
    #: Where the parameters of all parts of this copy meet, the number of this part, and where
    #: their numbers are summed.
    gathering: _Gathering
    place: int
    totals: Rendezvous
    #: Where the first part gives the others their parameters, which takes the time of the
    #: ``gather`` before it, too.
    scattering: Rendezvous
    bytes_sent: int = field(default=0, init=False)
    bytes_received: int = field(default=0, init=False)
    #: The time this worker would take for the whole gradient of the current step.
    _seconds: float = field(default=0.0, init=False)
    #: The part of it that passes take, by kind, chunk and rows, filled on demand.
    _shares: dict[tuple[Kind, int, int], float] = field(default_factory=dict, init=False)
    #: Seconds that this stage has computed.
    busy_s: float = field(default=0.0, init=False)

    def __post_init__(self, ways: Sequence[_Way]) -> None:
        """Join the ends of channels; see ``stage_links``."""
        self._ways = {it.channel: it for it in ways}
        self.matrices: Mapping[Channel, FloatArray] = {it.channel: it.matrix for it in ways}
        self.shares_batches = self.port.world.numerics

    def begin(self, rows: Mapping[Channel, Sequence[slice]]) -> None:
        """Announce a step: draw its time."""
        for channel, slices in rows.items():
            self._ways[channel].coming.extend(slices)
        world = self.port.world
        self._seconds = world.costs.compute(self.port.rank, world.rng)

    async def passed(self, step: PipelineStep, rows: int, share: float = 1.0) -> None:
        """Let the time of a computed share of a pass go by."""
        key = step.kind, step.chunk, rows
        whole = self._shares.get(key)
        if whole is None:
            whole = self._shares[key] = self.costs.share_of(step, rows)
        seconds = share * (self._seconds * whole + self.costs.beside(step, rows))
        self.busy_s += seconds
        await self.port.spend(seconds)

    async def free(self, channel: Channel, rows: slice) -> None:
        """Wait until the rows of the next message may be written."""
        way = self._ways[channel]
        await self.port.catch_up()
        await self.port.until(
            lambda: way.is_free(rows), lambda: f"rank {way.reader} to take what it was sent"
        )

    def send(self, channel: Channel, rows: slice, number: float = 0.0) -> None:
        """Send rows that have been written, together with a number; never waits."""
        way = self._ways[channel]
        way.held.append(rows)
        nbytes = _nbytes(channel, rows)
        self.bytes_sent += nbytes
        self.port.depart(way.line, nbytes, way.arrive, number)

    async def receive(self, channel: Channel) -> float:
        """Wait for the next message. Return the number sent with it."""
        way = self._ways[channel]
        what = "gradients" if channel.back else "activations"
        await self.port.catch_up()
        await self.port.until(way.has_come, lambda: f"the {what} of rank {way.writer}")
        self.bytes_received += _nbytes(channel, way.coming.popleft())
        return way.come.popleft()

    def release(self, channel: Channel) -> None:
        """Release the rows of the oldest unreleased message."""
        self._ways[channel].release()

    async def sum(self, array: FloatArray) -> None:
        """Sum an array over all slices, in place; every slice ends with the same bits."""
        await self._over_slices(self.slices.sums, array)

    async def max(self, array: FloatArray) -> None:
        """Replace each number by the largest one over all slices."""
        await self._over_slices(self.slices.most, array)

    async def _over_slices(self, place: Rendezvous, array: FloatArray) -> None:
        ranks = self.slices.ranks
        if ranks == 1:
            return
        moves = moved_bytes(NODE, self.slice_, ranks, array.size, whole=_is_small(array))
        result = await self._meet(place, self.slice_, array, moves, "slices of its layers")
        if self.port.world.numerics:
            np.copyto(array, result.reshape(array.shape))

    async def total(self, number: float) -> float:
        """Return the sum of a number over all parts of this copy, rounded once: equal on all."""
        others = self.totals.workers - 1
        if not others:
            return number
        found = await self._meet(
            self.totals, self.place, number, NUMBER_BYTES * others, "parts of its copy"
        )
        return float(found)

    async def _meet(self, at: Rendezvous, place: int, brings: Any, moves: int, whom: str) -> Any:
        """Bring a value to a rendezvous, and return the result.

        Args:
            at: the rendezvous.
            place: the number of this rank at the rendezvous.
            brings: its value.
            moves: bytes that it sends and receives.
            whom: the ranks it waits for, after "the other".
        """
        port, found = self.port, list[Any]()

        def on_result(result: Any) -> None:
            found.append(result)
            port.world.touch(port.rank)

        self.bytes_sent += moves
        await port.catch_up()
        at.arrive(place, brings, on_result)
        await port.until(lambda: bool(found), lambda: f"the other {whom}")
        self.bytes_received += moves
        return found[0]

    def empty(self, rows: int, width: int) -> FloatArray:
        """Return a new array whose sums over the slices copy the least."""
        return np.zeros((rows, width), np.float32)

    async def gather(self, mine: Vector, out: Vector | None = None) -> Vector | None:
        """Return the parameters of all parts at the first of them, None at the others."""
        whole = await self.gathering.at(self.place, mine)
        if whole is not None and out is not None:
            np.copyto(out, whole)
        return whole

    async def scatter(
        self, whole: Vector | None, mine: Vector, numbers: Sequence[int]
    ) -> Sequence[int]:
        """Give each part its parameters, and return the numbers of the first part on all."""
        parts = self.gathering.parts
        own = parts[self.place].size
        moves = 4 * (own if self.place else sum(it.size for it in parts[1:]))
        brings = whole, numbers
        found: tuple[Vector, Sequence[int]]
        found = await self._meet(self.scattering, self.place, brings, moves, "parts of its copy")
        if self.port.world.numerics:
            np.copyto(mine, parts[self.place].take(found[0]))
        return found[1]


class _Way:
    """Both ends of a channel."""

    def __init__(self, world: Simulator, channel: Channel, writer: int, reader: int) -> None:
        self.channel, self.writer, self.reader = channel, writer, reader
        rows = channel.rows if world.numerics else 0
        self.matrix: FloatArray = np.zeros((rows, channel.width), np.float32)
        self.line = Line(writer, reader)
        self._world = world
        #: Rows of the messages that were sent but not yet released.
        self.held: deque[slice] = deque()
        #: Numbers of the messages that have arrived, and rows of those still to be received.
        self.come: deque[float] = deque()
        self.coming: deque[slice] = deque()

    def is_free(self, rows: slice) -> bool:
        return len(self.held) < self.channel.messages and not touches(rows, self.held)

    def has_come(self) -> bool:
        return bool(self.come)

    def arrive(self, number: float) -> None:
        self.come.append(number)
        self._world.touch(self.reader)

    def release(self) -> None:
        self.held.popleft()
        self._world.touch(self.writer)


class _Slices:
    """Where the slices of a stage meet."""

    def __init__(self, world: Simulator, of_job: Sequence[int]) -> None:
        self.ranks = ranks = len(of_job)
        self._of_job, self._world, self._numerics = of_job, world, world.numerics
        self._hosts = hosts_among(world, of_job)
        self.sums = Rendezvous(world, self._sum, self._seconds, workers=ranks)
        self.most = Rendezvous(world, self._max, self._seconds, workers=ranks)

    def _sum(self, arrays: Sequence[FloatArray]) -> FloatArray:
        if not self._numerics:
            return arrays[0]
        flat = [it.reshape(-1) for it in arrays]
        summed: FloatArray = fold_of(NODE, whole=_is_small(arrays[0]))(flat)
        return summed

    def _max(self, arrays: Sequence[FloatArray]) -> FloatArray:
        largest = arrays[0].copy() if self._numerics else arrays[0]
        for other in arrays[1:] if self._numerics else ():
            np.maximum(largest, other, out=largest)
        return largest

    def _seconds(self, round_: int, result: FloatArray) -> float:
        nbytes, hosts = 4 * result.size, self._hosts
        if self._world.costs.hosts is None:
            moved = nbytes * (self.ranks - 1) / self.ranks
        else:  # the whole of it in memory; each way between hosts in two halves of a ring
            moved = nbytes if hosts == 1 else 2 * nbytes * (hosts - 1) / hosts
        return two_barriers(self._world, self._of_job, moved)


class _Gathering:
    """The parameters of a copy of the model, part by part."""

    def __init__(self, ports: Sequence[VirtualPort], parts: Sequence[Part]) -> None:
        self._first, self.parts = ports[0], parts
        #: By part, the vectors brought but not yet taken.
        self._brought: list[deque[Vector]] = [deque() for _ in ports]

    async def at(self, place: int, mine: Vector) -> Vector | None:
        first, brought = self._first, self._brought
        brought[place].append(mine.copy())
        if place:
            first.world.touch(first.rank)
            return None
        await first.until(lambda: all(brought), lambda: "the parameters of the other stages")
        taken = [it.popleft() for it in brought]
        if not first.world.numerics:
            return mine
        whole = np.empty(sum(part.size for part in self.parts), np.float32)
        for part, it in zip(self.parts, taken, strict=True):
            part.put(it, whole)
        return whole


def _nbytes(channel: Channel, rows: slice) -> int:
    height: int = rows.stop - rows.start
    return 4 * channel.width * height + NUMBER_BYTES


def _is_small(array: FloatArray) -> bool:
    return 4 * array.size <= ONE_SHOT_BYTES
