"""The durations of a simulation: computing, links, updates, sums. Pure: numbers and draws.

**The model of a link.** Every rank has one link to a network that has no bottlenecks itself. Each
direction of the link passes ``bandwidth`` bytes per second, one message after another:

1. A message leaves when all messages that the sender handed over before it have left. Its m bytes
   keep the sending direction busy for m/B seconds.
2. Its first byte travels for ``latency``, and for m · ``per_byte`` more.
3. It is received when all messages whose first bytes arrived earlier are received. That takes m/B
   seconds, during which the rest of it is still being sent (cut-through): so the m/B of an idle
   link count once, not once at each end.

Between two ranks no message overtakes another, as in MPI. With constant latency L, B bytes/s,
``per_byte`` 0 and all links idle:

=====================================================  ====================================
m bytes                                                arrive after
=====================================================  ====================================
in one message                                         L + m/B
in each of W messages, sent at once to one rank        L + k·m/B the k-th, so L + W·m/B all
in each of W messages, sent at once by one rank        the same
in each of W messages, sent at once between two ranks  the same
=====================================================  ====================================

So servers saturate as real ones do: W workers that push m bytes each to one server cannot take
a step in less than W·m/B. A message counts with its bytes on the wire, even where two ranks share
memory.

A rank that encodes or decodes does nothing else meanwhile, and what it sends afterwards leaves that
much later. On one core frames do not overlap: a server that decodes W of them takes W times as long
as for one.

With ``hosts`` a link belongs to a host, and all ranks that use it at a time share it, see
``shared_links``: W messages sent at once by one rank all arrive after L + W·m/B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from psrt.codec.times import CodecTimes
from psrt.core.errors import ConfigError
from psrt.core.messages import Message
from psrt.pipeline.cost import Slowdown, StageCosts, as_dear

#: Draws one duration, in seconds.
Draw = Callable[[np.random.Generator], float]


@dataclass(frozen=True, slots=True)
class SimulationCosts:
    """Durations in virtual seconds. With the defaults, every order of events can occur.

    Every draw must return a finite number, 0 or more; the simulator refuses anything else.

    Raises:
        ConfigError: if a number is impossible.

    >>> SimulationCosts(bandwidth=0.0)
    Traceback (most recent call last):
    psrt.core.errors.ConfigError: a link's bandwidth must be more than 0 bytes/s, got 0.0
    """

    #: ``(rank, rng)``: one call of ``compute``.
    compute: Callable[[int, np.random.Generator], float] = lambda _, rng: rng.exponential(1e-3)
    #: From sending a message to its arrival, except for the time of its bytes.
    latency: Draw = lambda rng: rng.exponential(1e-4)
    #: Seconds per byte that delay a message itself, but no message behind it.
    per_byte: float = 0.0
    #: Bytes per second in each direction of each rank's link; see the module.
    bandwidth: float = math.inf
    #: ``(shard, bytes, rng)``: the time its server takes to apply that many bytes of gradient;
    #: None: updates take no time.
    apply: Callable[[int, int, np.random.Generator], float] | None = None
    #: ``(rank, message, idle, rng)``: the time of receiving a message that has arrived; ``idle`` is
    #: whether the rank waited for it. It also makes ranks poll their peers in turn, as on one host.
    #: None: receiving takes no time, and messages are taken in order of arrival.
    receive: Callable[[int, Message, bool, np.random.Generator], float] | None = None
    #: By rank, its host: ranks of a host share its link, see the module; None: each has its own.
    hosts: Sequence[int] | None = None
    #: By rank, its machine and the number of cores that the ranks of this machine share, see
    #: ``cores``; None: each rank has a core of its own.
    cores: Sequence[tuple[int, int]] | None = None
    #: From the last worker's arrival at a sum over all workers to its result, instead of the
    #: messages of its schedule; None: those messages are sent.
    reduce: Draw | None = None
    #: Time of the last sum, from which all learn that no worker trains any more; only with
    #: ``reduce``.
    last_sum: float = 0.0
    #: Times of codecs by name; other codecs take those of their table.
    codecs: Mapping[str, CodecTimes] = field(default_factory=dict)
    #: How many times as fast codecs are as these times say; may be infinite.
    codec_speed: float = 1.0
    #: Whether ``receive``, ``apply`` and ``reduce`` were measured with the job's codec: then they
    #: contain encoding and decoding, which take no time of their own.
    framed: bool = False
    #: Of a split model: the cost of each stage of a gradient, in the order of the layers, in any
    #: unit; empty: in proportion to its parameters, see ``pass_costs``.
    stages: Sequence[StageCosts] = ()
    #: Of a split model: how many times as long a row takes in a micro-batch as in a whole batch.
    slowdown: Slowdown = as_dear
    #: Of a split model: seconds that a micro-batch's pass takes beside its products. A backward
    #: pass to inputs and weights at once counts twice.
    pass_s: float = 0.0
    #: Bytes of gradient per second that a worker applies to parameters that it updates itself, in
    #: modes without servers; unused where ``reduce`` was measured, which includes it.
    worker_apply: float = math.inf

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ConfigError(
                f"a link's bandwidth must be more than 0 bytes/s, got {self.bandwidth}"
            )
        if not self.worker_apply > 0:
            raise ConfigError(f"a worker must apply more than 0 bytes/s, got {self.worker_apply}")
        if not 0 <= self.pass_s < math.inf:
            raise ConfigError(f"a pass must take finite seconds, 0 or more, got {self.pass_s}")
        if not self.codec_speed > 0:
            raise ConfigError(f"codecs must be more than 0 times as fast, got {self.codec_speed}")
        if self.hosts is not None and self.bandwidth == math.inf:
            raise ConfigError("links of hosts are shared, so their bandwidth must be finite")
        if not 0 <= self.per_byte < math.inf:
            raise ConfigError(
                f"a link's seconds per byte must be finite and 0 or more, got {self.per_byte}"
            )
