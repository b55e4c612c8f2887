"""The names that a knob may take: optimizers, rates, all-reduces. Data only."""

from __future__ import annotations

from typing import Final

from psrt.collective.registry import ALL_REDUCES, SHARDING
from psrt.collective.registry import AUTO as AUTO
from psrt.collective.registry import LIBRARY as LIBRARY
from psrt.collective.registry import by_hosts as by_hosts
from psrt.core.sharding import Sharing

#: Where servers are placed among the ranks.
SPREAD = "spread"
PLACEMENTS: Final = (SPREAD, "first", "last")

#: Shards of one server: more would only cost messages.
MOST_SHARDS: Final = 256

#: All-reduces: ``auto`` picks one, ``node`` uses the shared memory of a host, ``mpi`` is the
#: library's own, and ``node+`` with a schedule uses shared memory inside each host and the
#: schedule between hosts.
ALLREDUCE_NAMES: Final = ALL_REDUCES

#: What an all-reduce may shard over the workers, and the all-reduces that can give each its shard.
OPTIMIZER, GRADIENTS, PARAMETERS = SHARDS = tuple(it.value for it in Sharing)
SHARDING_NAMES: Final = SHARDING

#: How layers are assigned to the fragments of streaming local SGD.
STRIDED, SEQUENTIAL = "strided", "sequential"
FRAGMENT_ORDERS: Final = (STRIDED, SEQUENTIAL)

#: What the weight of a worker in a merge is made of.
SAMPLES, EQUAL, QUALITY = "samples", "equal", "quality"
MERGE_WEIGHTS: Final = (SAMPLES, EQUAL, QUALITY)

#: Whether a step of gossip averages first and then moves along the gradient, or the reverse.
COMBINE_THEN_ADAPT, ADAPT_THEN_COMBINE = "combine-then-adapt", "adapt-then-combine"
MIXING_ORDERS: Final = (COMBINE_THEN_ADAPT, ADAPT_THEN_COMBINE)

#: How neighbours average: in rounds, without rounds, or in rounds of another kind.
PLAIN, PAIRS, PUSH_SUM = "plain", "pairs", "push-sum"
GRADIENT_TRACKING, BY_HOST = "gradient-tracking", "by-host"
VARIANTS: Final = (PLAIN, PAIRS, PUSH_SUM, GRADIENT_TRACKING, BY_HOST)

#: Fewest bytes of gradient that are summed at once. Long enough that messages cost more by their
#: bytes than by their number, and a small part of the models that are worth splitting.
BUCKET_BYTES: Final = 1 << 20

#: Default order in which pipeline stages work.
DEFAULT_PIPELINE: Final = "1f1b"

ACTIVATION_NAMES: Final = ("relu", "tanh", "gelu")
LOSS_NAMES: Final = ("cross-entropy", "squared")
