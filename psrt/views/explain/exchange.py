"""How servers with several shards keep everybody busy at once: computing, pushes, updates, reads.

A small job of the real roles runs in virtual time, as for ``timeline``; here bytes and updates take
time, too, and the ports write down when what was under way. The unit of time is a gradient:

- computing takes 1: forward, and backward layer by layer, the last one first, each for twice as
  long as forward but the first, which has no layer below that waits for its own;
- ``PUSHES``, ``UPDATES``: the pushes of a step of all workers keep a server's link busy that long,
  and their updates the server; the replies take as long as the pushes, in the other direction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np

from psrt.config import TrainConfig, resolve
from psrt.errors import ConfigError
from psrt.job.virtual import SimulatedRun, simulate
from psrt.messages import Message, Params
from psrt.partition import Span, even_spans
from psrt.runtime.strategies.push_pull import shares_of
from psrt.runtime.timing_only import TimingOnlyProblem
from psrt.simulation import SimulationCosts, Simulator
from psrt.simulation.port import Mail, VirtualPort
from psrt.transport import RoleMap
from psrt.transport.port import NO_PAYLOAD
from psrt.units import plural

T = TypeVar("T")
FORWARD, BACKWARD, PUSH, UPDATE, READ = "forward", "backward", "push", "update", "read"
#: Units that all pushes of a step take on a server's link, and all their updates; see the module.
PUSHES, UPDATES = 0.5, 0.2
_LATENCY = 0.01
#: Layers of the model, unless there are more shards.
_LAYERS = 8
#: Elements of a layer: a frame around them weighs little.
_LAYER = 4096
#: Workers and shards at most: a worker takes three lines, a shard has a character of its own.
MOST_WORKERS, MOST_SHARDS = 16, 36


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that took time, from ``start`` to ``stop``."""

    start: float
    stop: float
    #: ``FORWARD`` or ``BACKWARD`` of a layer; ``PUSH`` or ``READ``: the bytes are on the server's
    #: link; ``UPDATE``.
    what: str
    #: The worker, or of an ``UPDATE`` the server; counted from 0.
    number: int
    #: Of ``FORWARD`` and ``BACKWARD`` the layer, else the shard.
    part: int
    #: Of ``PUSH`` and ``READ``: when it was handed over, to wait until the link was free.
    since: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """What happened in the job."""

    #: Resolved.
    config: TrainConfig
    #: By worker, the factor by which its steps take longer.
    slow: tuple[float, ...]
    #: In order of their start.
    bars: tuple[Bar, ...]
    #: Mean time of a step, in gradients; and with one shard a server.
    step: float
    whole: float

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.slow)

    @property
    def servers(self) -> int:
        """Number of servers."""
        return self.config.servers or 0

    @property
    def shards(self) -> int:
        """Number of shards of all servers."""
        return self.servers * int(self.config.shards_per_server or 1)

    @property
    def seconds(self) -> float:
        """When the last worker finished."""
        return max(bar.stop for bar in self.bars)

    def hidden(self) -> float:
        """Return the share of the time of a worker's pushes and reads in which it computes."""
        both = whole = 0.0
        for worker in range(self.workers):
            moved = [bar for bar in self._of(PUSH, READ) if bar.number == worker]
            # A worker computes one layer at a time: its computing until t is a broken line.
            busy = [bar for bar in self._of(FORWARD, BACKWARD) if bar.number == worker]
            bends = [time for bar in busy for time in (bar.start, bar.stop)]
            spent = [0.0, *accumulate((bar.stop - bar.start) * k for bar in busy for k in (1, 0))]
            ends = [[bar.start, bar.stop] for bar in moved]
            both += float(np.diff(np.interp(ends, bends, spent[: len(bends)])).sum())
            whole += sum(bar.stop - bar.start for bar in moved)
        return both / whole if whole else 0.0

    def _of(self, *what: str) -> list[Bar]:
        return [bar for bar in self.bars if bar.what in what]


class _Recorder(Simulator):
    """A simulator that writes down what takes time."""

    def __init__(self, role_map: RoleMap, **rest: Any) -> None:
        super().__init__(role_map, **rest)
        self.bars: list[Bar] = []
        self.layers: Sequence[Span] = ()
        #: By sender, receiver and shard, when the messages in flight were handed over.
        self.sent: dict[tuple[int, int, int], deque[float]] = {}
        self.ports = [_RecorderPort(self, rank) for rank in range(role_map.size)]


class _RecorderPort(VirtualPort):
    """A port that writes down what it does in its simulator."""

    def __init__(self, world: _Recorder, rank: int) -> None:
        super().__init__(world, rank)
        self._records = world
        if (charged := self.apply_s) is not None:
            server = world.role_map.server_ranks.index(rank) if self._places else 0

            def apply_s(shard: int, nbytes: int) -> float:
                seconds = charged(shard, nbytes)
                self._note(self.now(), self.now() + seconds, UPDATE, server, shard)
                return seconds

            self.apply_s = apply_s

    def _note(
        self, start: float, stop: float, what: str, number: int, part: int, since: float = 0.0
    ) -> None:
        self._records.bars.append(Bar(start, stop, what, number, part, since))

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Record forward and backward of each layer, once their time has passed."""
        start = self.now()
        result = await super().compute(work, *args)
        seconds, spans = self.now() - start, self._records.layers
        backward = [start + share * seconds for share in shares_of(spans)]
        # A layer's two products backward take as long as that of the last one, which begins them.
        turn = backward[0] - (backward[-1] - start) * 2 / (3 * len(spans) - 1)
        forward = np.linspace(start, turn, len(spans) + 1).tolist()
        for layer, (begin, end) in enumerate(pairwise(forward)):
            self._note(begin, end, FORWARD, self.worker, layer)
        for i, (begin, end) in enumerate(pairwise([turn, *backward])):
            self._note(begin, end, BACKWARD, self.worker, len(spans) - 1 - i)
        return result

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Record when a message is handed over."""
        key = self.rank, to, message.shard
        self._records.sent.setdefault(key, deque()).append(self.now())
        super().send(to, message, region)

    def deliver(self, mail: Mail) -> None:
        """Record the time that a payload has kept the server's link busy."""
        channel, message, region, nbytes = mail
        world = self._records
        since = world.sent[channel.source, self.rank, message.shard].popleft()
        if region != NO_PAYLOAD:
            worker = self.rank if isinstance(message, Params) else channel.source
            number = self.role_map.worker_of(worker)
            assert number is not None, "one end of a message is a worker"
            what = READ if isinstance(message, Params) else PUSH
            start = self.now() - nbytes / world.costs.bandwidth
            self._note(start, self.now(), what, number, message.shard, since)
        super().deliver(mail)


def run(config: TrainConfig, *, workers: int, slow: Mapping[int, float]) -> Exchange:
    """Train the small job, also with one shard a server, and return what happened.

    Args:
        config: of the mode, with ``steps`` and a number of ``shards_per_server``.
        workers: number of workers, ≥ 1.
        slow: worker → factor by which its steps take longer; 1 for all others.

    Raises:
        ConfigError: if the config does not fit the number of workers, or has too many shards.
    """
    factors = tuple(slow.get(worker, 1.0) for worker in range(workers))
    found = _simulated(config, factors)
    whole = _simulated(replace(config, shards_per_server=1), factors)
    world = found.world
    assert isinstance(world, _Recorder)
    return Exchange(
        config=resolve(config, ranks=world.role_map.size),
        slow=factors,
        bars=tuple(sorted(world.bars, key=lambda bar: bar.start)),
        step=_step(found),
        whole=_step(whole),
    )


def _step(found: SimulatedRun) -> float:
    """Return the mean time of a step."""
    return found.summary.seconds / max(meter.stats.steps for meter in found.meters)


def _simulated(config: TrainConfig, factors: tuple[float, ...]) -> SimulatedRun:
    resolved = resolve(config, ranks=len(factors) + (config.servers or 1))
    shards = (resolved.servers or 1) * int(resolved.shards_per_server or 1)
    if shards > MOST_SHARDS:
        raise ConfigError(f"{shards} shards cannot be drawn, at most {MOST_SHARDS} can")
    layers = max(_LAYERS, shards)
    spans = even_spans(layers * _LAYER, layers)[::-1]

    class World(_Recorder):
        def __init__(self, role_map: RoleMap, **rest: Any) -> None:
            super().__init__(role_map, **rest)
            self.layers = spans

    return simulate(
        config,
        TimingOnlyProblem(spans[0].stop, batch_size=1, steps=config.steps, spans=spans),
        workers=len(factors),
        seed=config.seed,
        numerics=False,
        costs=lambda role_map: _costs(role_map, factors),
        world=World,
    )


def _costs(role_map: RoleMap, factors: tuple[float, ...]) -> SimulationCosts:
    """Return the job's costs, such that ``PUSHES`` and ``UPDATES`` hold for every server."""
    nbytes = 4 * role_map.n * len(factors) / len(role_map.server_ranks)

    def step(rank: int, rng: np.random.Generator) -> float:
        worker = role_map.worker_of(rank)
        return 1.0 if worker is None else factors[worker]

    return SimulationCosts(
        compute=step,
        latency=lambda rng: _LATENCY,
        bandwidth=nbytes / PUSHES,
        apply=lambda shard, size, rng: size * UPDATES / nbytes,
    )


def lesson(exchange: Exchange) -> str:
    """Return the one line to remember."""
    text = f"a step takes {exchange.step:.2f} gradients"
    if exchange.config.shards_per_server != 1:
        text += f", {exchange.whole:.2f} with one shard a server"
    return (
        f"{text}; {exchange.hidden():.0%} of pushing and reading passes while the worker computes"
    )


def shards_text(exchange: Exchange) -> str:
    """Return the number of shards in words."""
    return f"{plural(int(exchange.config.shards_per_server or 1), 'shard')} a server"
