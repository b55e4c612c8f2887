"""What things take in virtual time: computing, links, updates, sums. Pure: numbers and draws.

**The model of a link.** Every rank has one link to a network that never gets in its own way. Each
direction of the link passes ``bandwidth`` bytes a second, one message after another:

1. the message leaves when those that the sender handed over before it have left; its m bytes keep
   the way out busy for m/B seconds;
2. its first byte travels for ``latency``, and for m · ``per_byte`` more;
3. it comes in when those whose first bytes were at the receiver before its own have come in; that
   takes m/B seconds, in which the rest of it is still leaving (cut-through): so an idle link
   counts once, not once an end.

Between two ranks no message overtakes another, as in MPI. With constant latency L, B bytes/s,
``per_byte`` 0 and all links idle:

=====================================================  ====================================
m bytes                                                are there after
=====================================================  ====================================
in one message                                         L + m/B
in each of W messages, sent at once to one rank        L + k·m/B the k-th, so L + W·m/B all
in each of W messages, sent at once by one rank        the same
in each of W messages, sent at once from rank to rank  the same
=====================================================  ====================================

So servers saturate as real ones do: W workers that push m bytes each to one server cannot take
a step in less than W·m/B. Messages are spans and frames as they are counted on the wire, also
where two ranks are said to share memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from psrt.errors import ConfigError
from psrt.messages import Message

#: Draws one duration, in seconds.
Draw = Callable[[np.random.Generator], float]


@dataclass(frozen=True, slots=True)
class Costs:
    """What things take in virtual time, in seconds. The defaults make every order possible.

    What a draw returns must be finite and 0 or more; the world refuses anything else.

    Raises:
        ConfigError: if a number is impossible.

    >>> Costs(bandwidth=0.0)
    Traceback (most recent call last):
    psrt.errors.ConfigError: a link's bandwidth must be more than 0 bytes/s, got 0.0
    """

    #: One call of ``compute`` at a rank.
    compute: Callable[[int, np.random.Generator], float] = lambda _, rng: rng.exponential(1e-3)
    #: From the sending of a message to its arrival, but for its bytes.
    latency: Draw = lambda rng: rng.exponential(1e-4)
    #: Seconds per byte of message and payload that no message waits for.
    per_byte: float = 0.0
    #: Bytes per second of each rank's own link, each direction by itself; see the module.
    bandwidth: float = math.inf
    #: ``(rank, bytes, rng)``: how long a server is busy with working in so many bytes of
    #: gradient; None: updates take no time.
    apply: Callable[[int, int, np.random.Generator], float] | None = None
    #: ``(rank, message, waited, rng)``: how long a rank takes to take up a message that has come,
    #: and whether it had waited for one; None: no time. With it ranks also look for messages as
    #: those of one host do: at one peer after another, each time from the next one on.
    take: Callable[[int, Message, bool, np.random.Generator], float] | None = None
    #: If given, a sum over all workers is there so long after the last one has come to it,
    #: whatever messages its schedule would send.
    reduce: Draw | None = None

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ConfigError(
                f"a link's bandwidth must be more than 0 bytes/s, got {self.bandwidth}"
            )
        if not 0 <= self.per_byte < math.inf:
            raise ConfigError(
                f"a link's seconds per byte must be finite and 0 or more, got {self.per_byte}"
            )
