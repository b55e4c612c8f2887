"""How several shards per server overlap computing, pushes, updates and reads.

A small job of the real roles is recorded in virtual time, as for ``timeline``; here bytes and
updates take time as well. The unit of time is a gradient:

- computing takes 1: forward, then backward layer by layer, the last one first. Backward takes twice
  as long as forward, except in the first layer, which need not pass a gradient on;
- ``PUSHES``, ``UPDATES``: time for which all pushes of a step keep a server's link busy, and all
  their updates the server. Replies take as long as pushes, in the other direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from psrt.config import TrainConfig, resolve
from psrt.core.errors import ConfigError
from psrt.core.messages import Params
from psrt.core.partition import Span, even_spans
from psrt.history import Kind
from psrt.runtime.strategies.push_pull import shares_of
from psrt.runtime.timing_only import TimingOnlyProblem
from psrt.simulation import SimulationCosts
from psrt.transport import RoleMap
from psrt.views.explain.recording import RecordedJob, recorded
from psrt.views.trace import marks

FORWARD, BACKWARD, PUSH, UPDATE, READ = "forward", "backward", "push", "update", "read"
#: Units that all pushes of a step take on a server's link, and all their updates; see above.
PUSHES, UPDATES = 0.5, 0.2
_LATENCY = 0.01
#: Layers of the model, unless there are more shards.
_LAYERS = 8
#: Elements of a layer; enough that the header of a frame hardly counts.
_LAYER = 4096
#: Most workers and shards: a worker takes three lines, and each shard has its own character.
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
    #: For ``PUSH`` and ``READ``: when it was handed over, before waiting for the link.
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
    #: Mean time of a step, in gradients; and the same with one shard per server.
    step: float
    whole: float

    @property
    def model(self) -> str:
        """What takes how long, in a sentence or two."""
        return (
            "Computing a gradient takes 1. On each server's link the pushes of all workers take "
            f"{PUSHES:g} and the replies as much; the updates take the server {UPDATES:g}."
        )

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
        """Return the share of the time of pushes and reads during which their worker computes."""
        both = whole = 0.0
        for worker in range(self.workers):
            moved = [bar for bar in self._of(PUSH, READ) if bar.number == worker]
            # A worker computes one layer at a time: its computing until t is piecewise linear.
            busy = [bar for bar in self._of(FORWARD, BACKWARD) if bar.number == worker]
            bends = [time for bar in busy for time in (bar.start, bar.stop)]
            spent = [0.0, *accumulate((bar.stop - bar.start) * k for bar in busy for k in (1, 0))]
            ends = [[bar.start, bar.stop] for bar in moved]
            both += float(np.diff(np.interp(ends, bends, spent[: len(bends)])).sum())
            whole += sum(bar.stop - bar.start for bar in moved)
        return both / whole if whole else 0.0

    def _of(self, *what: str) -> list[Bar]:
        return [bar for bar in self.bars if bar.what in what]


def run(config: TrainConfig, *, workers: int, slow: Mapping[int, float]) -> Exchange:
    """Train the small job, also with one shard per server, and return what happened.

    Args:
        config: of the mode, with ``steps`` and a number of ``shards_per_server``.
        workers: number of workers, ≥ 1.
        slow: worker → factor by which its steps take longer; 1 for all others.

    Raises:
        ConfigError: if the config does not fit the number of workers, or has too many shards.
    """
    factors = tuple(slow.get(worker, 1.0) for worker in range(workers))
    job, layers = _recorded(config, factors)
    whole, _ = _recorded(replace(config, shards_per_server=1), factors)
    bars = [*_computing(job, layers), *_messages(job), *_updates(job)]
    return Exchange(
        config=job.config,
        slow=factors,
        bars=tuple(sorted(bars, key=lambda bar: (bar.start, bar.stop, bar.number, bar.part))),
        step=_step(job),
        whole=_step(whole),
    )


def _computing(job: RecordedJob, layers: Sequence[Span]) -> Iterator[Bar]:
    """Yield forward and backward of each layer: the shares of each gradient's time."""
    for worker in range(job.workers):
        for it in job.on_lane(worker, marks.COMPUTE):
            start, seconds = it.start / 1e9, (it.stop - it.start) / 1e9
            backward = [start + share * seconds for share in shares_of(layers)]
            # A layer's two products backward take as long as that of the last one, which begins
            # them.
            turn = backward[0] - (backward[-1] - start) * 2 / (3 * len(layers) - 1)
            forward = np.linspace(start, turn, len(layers) + 1).tolist()
            for layer, (begin, end) in enumerate(pairwise(forward)):
                yield Bar(begin, end, FORWARD, worker, layer, 0.0)
            for i, (begin, end) in enumerate(pairwise([turn, *backward])):
                yield Bar(begin, end, BACKWARD, worker, len(layers) - 1 - i, 0.0)


def _messages(job: RecordedJob) -> Iterator[Bar]:
    """Yield the time for which each payload kept the server's link busy."""
    for it in job.passages:
        if it.on_link:
            assert it.message is not None, "nobody sums"
            is_read = isinstance(it.message, Params)
            what, worker = (READ, it.target) if is_read else (PUSH, it.source)
            start = it.stop - it.on_link
            yield Bar(start, it.stop, what, worker, it.message.shard, it.start)


def _updates(job: RecordedJob) -> Iterator[Bar]:
    """Yield the updates of servers; saving a gradient for a later update counts as part of one."""
    for server in range(job.config.servers or 0):
        for it in job.on_lane(job.workers + server, marks.UPDATE):
            shard = int(it.facts["shard"])
            yield Bar(it.start / 1e9, it.stop / 1e9, UPDATE, server, shard, 0.0)


def _step(job: RecordedJob) -> float:
    """Return the mean time of a step."""
    return max(job.ends()) / max(it.clock for it in job.of_kind(Kind.LEAVE))


def _recorded(
    config: TrainConfig, factors: tuple[float, ...]
) -> tuple[RecordedJob, Sequence[Span]]:
    resolved = resolve(config, ranks=len(factors) + (config.servers or 1))
    shards = (resolved.servers or 1) * int(resolved.shards_per_server or 1)
    if shards > MOST_SHARDS:
        raise ConfigError(f"{shards} shards cannot be drawn, at most {MOST_SHARDS} can")
    layers = max(_LAYERS, shards)
    spans = even_spans(layers * _LAYER, layers)[::-1]
    problem = TimingOnlyProblem(spans[0].stop, batch_size=1, steps=config.steps, spans=spans)
    job = recorded(
        config, problem, workers=len(factors), costs=partial(_costs, factors=factors),
        numerics=False,
    )  # fmt: skip
    return job, spans


def _costs(role_map: RoleMap, factors: tuple[float, ...]) -> SimulationCosts:
    """Return costs of the job with which ``PUSHES`` and ``UPDATES`` hold for every server."""
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
        text += f", {exchange.whole:.2f} with one shard per server"
    return f"{text}; {exchange.hidden():.0%} of pushing and reading overlaps with computing"
