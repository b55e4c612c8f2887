"""The number of shards per server where the user gives none: that with the shortest step. Pure.

**A step as a pipeline.** Its stages are computing, pushes on the wire, updates, replies on the
wire; what passes through them are a server's shards, the one whose gradient is ready first in
front. A shard enters a stage when it has left the one before and the shard before it has left this
one. With one shard the stages follow each other; with many they overlap, down to the longest stage.
Each shard costs some more: a message, a call and often a wake-up, at both ends.

- *Computing*: forward, and backward part by part. Where the gradient does not come in parts, or its
  norm is needed, all shards are ready at its end.
- *The wire*: the busiest direction of any host's link. On one host nothing is sent, and a version
  is read while it is written: so both stages take no time.
- *Frames*, where there is a codec: pushes and replies are as long as theirs. A worker encodes one
  shard after another, and a server decodes as many as it waits for and encodes as many replies.
- *Updates*: in modes of rounds the gradients of all workers; else a worker waits for its own alone,
  and the server makes all.
- *Cores*: all that the ranks of a host compute, over its cores, is a bound. Where none is left to a
  server, it takes that of a worker; and a round waits for that worker.

What is not known is assumed: a gradient takes ``_GRADIENT_S`` for each parameter and sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from psrt.codec.times import FREE, NO_FRAMES, FrameTimes
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts
from psrt.collective.costs import LinkCosts
from psrt.config import TrainConfig
from psrt.config.names import MOST_SHARDS
from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ConfigError
from psrt.core.partition import Span, layered_spans
from psrt.core.units import plural, size_text, time_text
from psrt.runtime.job_codec import JobCodec
from psrt.runtime.strategies.push_pull import shares_of
from psrt.transport.port import AS_ASKED

#: Seconds of a gradient for each parameter and sample of a dense layer: 6 operations at 1e11 a
#: second, about one core.
_GRADIENT_S = 6e-11
#: Seconds that one more shard costs a worker, and the server for each worker: as read where both
#: have something to compute meanwhile, so that code and numbers have left their caches.
_SHARD_S = 50e-6
#: Between hosts of which nothing was measured, if there is a codec: Ethernet of 1 Gbit/s. Who takes
#: one has slow links, and there one shard too few costs more than many too many on fast ones: with
#: int8 both ways, 3 workers and a server at 100 Mbit/s, 1.46 × of a step against 1.05 ×.
_SLOW = LinkCosts(alpha=25e-6, beta=1 / 1.2e8, gamma=1e-10)
#: A shard is not cut below this.
_LEAST_BYTES = 1 << 17
#: Fewer shards are taken if a step with them is longer by at most this fraction.
_WORTH = 0.05


@dataclass(frozen=True, slots=True)
class ServedJob:
    """A job with servers, as far as the time of a step depends on it."""

    #: Number of parameters.
    n: int
    #: Host of each worker, and of each server.
    workers: Sequence[int]
    servers: Sequence[int]
    #: The gradient's spans in the order in which they are ready; without any, as a whole.
    parts: Sequence[Span]
    #: Whether an update waits for the gradients of all workers.
    rounds: bool
    #: Seconds in which a worker computes what it pushes.
    compute_s: float
    #: Of the machine, with the cores of a host.
    costs: MachineCosts
    #: Whether ranks of a host share memory.
    shared_memory: bool = True
    #: Bytes of a push and of a reply, over those of its numbers.
    push: float = 1.0
    reply: float = 1.0
    #: What encoding and decoding take.
    times: FrameTimes = NO_FRAMES


class ShardChoice(NamedTuple):
    """The number of shards of a server, and the reason."""

    shards: int
    #: To follow "because"; or "as asked".
    why: str


def served_job(
    config: TrainConfig,
    n: int,
    layers: Sequence[Span],
    servers: Sequence[int],
    workers: Sequence[int],
    *,
    costs: MachineCosts,
    codec: JobCodec | None = None,
) -> ServedJob:
    """Return the job of a config.

    Args:
        config: resolved, of a mode with servers.
        n: the number of parameters.
        layers: the gradient's spans in the order in which they are ready.
        servers: the host of each.
        workers: the host of each.
        costs: of the machine.
        codec: of the job.
    """
    mode = config.scheme
    frames: dict[str, Any] = {}
    if codec is not None:
        if costs.between == DEFAULT_COSTS.between:
            costs = replace(costs, between=_SLOW)
        frames = {"push": codec.share(n), "times": codec.times({}, 1.0)}
        if codec.reply is not None:
            frames["reply"] = codec.reply.share(n)
    streams = not mode.averages and config.clip_norm is None
    return ServedJob(
        n=n,
        workers=workers,
        servers=servers,
        parts=layers if streams else (),
        rounds=mode.rounds,
        compute_s=_GRADIENT_S * n * config.batch_size * mode.local_steps,
        costs=costs,
        shared_memory=config.shared_memory,
        **frames,
    )


def shards_for(
    config: TrainConfig, job: ServedJob, fragments: Sequence[Sequence[Span]] = ()
) -> ShardChoice:
    """Return the number of shards of each server: as asked, chosen, or as fragments have pieces.

    Raises:
        ConfigError: if another number is asked for than fragments have pieces.
    """
    asked = config.shards_per_server
    if fragments:
        pieces = sum(map(len, fragments))
        if isinstance(asked, int) and asked != pieces:
            raise ConfigError(
                f"--shards-per-server {asked}: the fragments of --mode {config.scheme} are "
                f"{plural(pieces, 'piece')} of the parameters, each a shard of every server"
            )
        return ShardChoice(pieces, f"fragments are {plural(pieces, 'piece')} of the parameters")
    return ShardChoice(asked, AS_ASKED) if isinstance(asked, int) else choose_shards(job)


def choose_shards(job: ServedJob) -> ShardChoice:
    """Choose the number of shards of each server: a power of two."""
    nbytes, most = ITEMSIZE * job.n, most_shards(job)
    if most < 2:
        why = f"its {size_text(nbytes / len(job.servers))} are too small to split"
        return ShardChoice(1, why)
    times = {1 << i: step_seconds(job, 1 << i) for i in range(most.bit_length())}
    enough = (1 + _WORTH) * min(times.values())
    shards = next(each for each, seconds in times.items() if seconds <= enough)
    parts = f"a gradient {time_text(job.compute_s)}"
    if _wire_seconds(job):
        parts += f", its {size_text(job.push * nbytes)} {time_text(_wire_seconds(job, job.push))}"
        if job.reply != job.push:
            reply = time_text(_wire_seconds(job, job.reply))
            parts += f" and a reply's {size_text(job.reply * nbytes)} {reply}"
        parts += " on the busiest link"
    if job.times.encode != FREE:
        parts += f", encoding {time_text(job.times.encode.at(job.n))}"
    parts += f", updates {time_text(_update_seconds(job))}"
    seconds = time_text(times[shards])
    if shards == 1:
        other = min((each for each in times if each > 1), key=times.__getitem__)
        is_less = times[other] < times[1]
        than = f"{'hardly more than' if is_less else 'and'} {time_text(times[other])} with {other}"
        why = f"a step of {seconds} is predicted, {than} ({parts})"
    else:
        why = f"a step of {seconds} is predicted instead of {time_text(times[1])} with 1 ({parts})"
    return ShardChoice(shards, why)


def most_shards(job: ServedJob) -> int:
    """Return the most shards per server that a choice may take, at least 1."""
    return max(1, min(MOST_SHARDS, ITEMSIZE * job.n // (len(job.servers) * _LEAST_BYTES)))


def shards_to_try(job: ServedJob, usual: int) -> tuple[int, ...]:
    """Return the numbers of shards that ``choose_shards`` compares, the usual one first."""
    values = (1 << i for i in range(most_shards(job).bit_length()))
    return tuple(dict.fromkeys((usual, *values)))


def step_seconds(job: ServedJob, each: int) -> float:
    """Return the predicted time of a worker's step, with ``each`` shards per server."""
    servers, workers = len(job.servers), len(job.workers)
    spans = layered_spans(job.n, servers * each, job.parts)
    ready = [_ready(span, job) for span in spans]
    crowd = workers if job.rounds else 1
    update, own = _update_seconds(job), crowd / workers
    there, back = _wire_seconds(job, job.push), _wire_seconds(job, job.reply)
    times, call = job.times, _SHARD_S + (job.costs.between.alpha if there else 0.0)
    last = encoded = 0.0
    # In the order in which a worker encodes them: the last shard first, whatever its server.
    pushed = [0.0] * len(spans)
    for shard in reversed(range(len(spans))):
        encoded += times.encode.at(spans[shard].size)
        pushed[shard] = ready[shard] + (len(spans) - 1 - shard) * _SHARD_S + encoded
    for server in range(servers):
        mine = range(servers * each)[server::servers]
        size = sum(spans[shard].size for shard in mine)
        arrived = free = read = 0.0
        for shard in reversed(mine):
            n, share = spans[shard].size, own * spans[shard].size / size
            arrived = max(arrived, pushed[shard]) + share * there + call
            # Frames are decoded while others of the shard arrive, and replies sent likewise.
            decode, encode = times.decode.at(n), times.encode_reply.at(n)
            first = arrived - share * there * (1 - 1 / crowd)
            decoded = max(max(free, first) + crowd * decode, arrived + decode)
            updated = decoded + share * update + crowd * call
            free = updated + crowd * encode
            sent = max(max(read, updated + encode) + share * back, free + share * back / crowd)
            read = sent + times.decode_reply.at(n)
        last = max(last, read)
    return max(last, _bound(job, each, call))


def _ready(span: Span, job: ServedJob) -> float:
    """Return the time at which the gradient of a span is ready."""
    shares = zip(job.parts, shares_of(job.parts), strict=True)
    return job.compute_s * next((it for part, it in shares if part.start <= span.start), 1.0)


def _bound(job: ServedJob, each: int, call: float) -> float:
    """Return the time that the most loaded resource needs for a step of all workers."""
    servers, workers = len(job.servers), len(job.workers)
    size, times = job.n // (servers * each), job.times
    frames = workers * (times.decode.at(size) + times.encode_reply.at(size))
    update = _update_seconds(job) + each * (workers * call + frames)
    cores = max(1, job.costs.cores)
    own = _SHARD_S + times.encode.at(size) + times.decode_reply.at(size)
    gradient = job.compute_s + each * servers * own
    busy = 0.0
    on_host, serve_there = Counter(job.workers), Counter(job.servers)
    for host in {*job.workers, *job.servers}:
        here, serving = on_host[host], serve_there[host]
        busy = max(busy, (here * gradient + serving * update) / cores)
        if job.rounds and here and serving > max(0, cores - here):
            busy = max(busy, gradient + update)
    # A worker's reply waits for its push: it leaves the wire idle in one direction meanwhile.
    wire = _wire_seconds(job, max(job.push, job.reply)) * (1 + 2 / (workers * each))
    return max(busy, update, wire)


def _update_seconds(job: ServedJob) -> float:
    """Return the time of a server's updates in a step of all workers."""
    nbytes = ITEMSIZE * job.n / len(job.servers)
    return nbytes * len(job.workers) * job.costs.node.byte_s


def exchange_seconds(job: ServedJob) -> float:
    """Return the time of a push of all workers and its answers on the busiest link."""
    return _wire_seconds(job, job.push) + _wire_seconds(job, job.reply)


def _wire_seconds(job: ServedJob, share: float = 1.0) -> float:
    """Return the time of a step's pushes on the busiest direction of a host's link.

    Args:
        job: the job.
        share: bytes of a push, or a reply, over those of its numbers.
    """
    nbytes = share * ITEMSIZE * job.n / len(job.servers)
    hosts = {*job.workers, *job.servers}
    if len(hosts) == 1:
        if job.shared_memory:
            return 0.0
        return max(len(job.workers), len(job.servers)) * nbytes * job.costs.inside.beta
    most, on_host, serve_there = 0, Counter(job.workers), Counter(job.servers)
    for host in hosts:
        workers, servers = on_host[host], serve_there[host]
        inward = servers * (len(job.workers) - workers)
        outward = workers * (len(job.servers) - servers)
        most = max(most, inward, outward)
    return most * nbytes * job.costs.between.beta
