"""What messages and shared memory cost on one machine, as measured and kept in a file.

``psrt bench allreduce --fit FILE`` measures a machine and writes ``MachineCosts.to_json()``;
`choose` predicts with them which all-reduce is the fastest.

**The shared-memory fold.** L ranks of one host whose vectors lie in shared windows reduce them
without messages: all meet at a barrier, rank r folds the r-th slice of everybody's vector and
writes the sum back into all of them, and all meet again. For n bytes:

    T = 2·⌈lg L⌉·sync + max(1, L/cores)·n·byte

- A barrier is ⌈lg L⌉ rounds of looking at a neighbour's flag, since after k rounds a rank can
  have heard from at most 2**k.
- A rank reads L slices of n/L bytes and writes as many, so it moves 2n bytes whatever L is.
  ``byte`` is the time per byte of the vector, for its read and its write together.
- On as many cores as ranks these passes run side by side. Where ranks outnumber the cores they
  queue up, L/cores of them on each core.

Cores share the memory's bandwidth, so ``byte`` is to be measured with as many ranks at work as
will be used; one number for all L is a simplification.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from psrt.collective.costs import LinkCosts
from psrt.core.errors import ConfigError
from psrt.core.files import read_text

#: Largest time accepted, in seconds; a file with a larger one is broken.
_LONGEST = 1e9
#: One measurement of an all-reduce: its name, the ranks of each host, bytes, seconds.
Measured = tuple[str, tuple[int, ...], int, float]


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """Costs of the shared-memory fold; see the top of this file."""

    #: Seconds of one round of a barrier.
    sync_s: float
    #: Seconds per byte of the vector for one rank's pass over it.
    byte_s: float

    def seconds(self, ranks: int, nbytes: float, cores: int) -> float:
        """Return the time of a fold among ``ranks`` on a host with ``cores`` cores.

        One rank has nothing to fold and takes no time.

        Args:
            ranks: number of ranks on the host, ≥ 1.
            nbytes: size of the vector in bytes.
            cores: cores that they share.

        >>> NodeCosts(sync_s=1e-6, byte_s=1e-9).seconds(4, 1_000_000, cores=2)
        0.002004
        """
        if ranks == 1 or nbytes == 0:
            return 0.0
        rounds = (ranks - 1).bit_length()
        return 2 * rounds * self.sync_s + max(1.0, ranks / cores) * nbytes * self.byte_s


@dataclass(frozen=True, slots=True)
class MachineCosts:
    """The costs of a machine that `choose` compares by."""

    #: Of messages between ranks of one host.
    inside: LinkCosts
    #: Of messages between hosts, one pair at a time.
    between: LinkCosts
    #: Of shared memory.
    node: NodeCosts
    #: Cores of a host; ranks beyond them take turns.
    cores: int
    #: All-reduces as far as they were measured, in any order: the library's on one host, and all
    #: candidates between hosts.
    measured: tuple[Measured, ...] = ()

    def queue(self, ranks: int) -> float:
        """Return the slow-down of a host on which ``ranks`` ranks compute at the same time."""
        return max(1.0, ranks / self.cores)

    def measured_seconds(self, algorithm: str, hosts: Sequence[int], nbytes: int) -> float | None:
        """Return the time of an all-reduce, None if it was not measured with these ranks by host.

        Between two measured sizes the time is read off the straight line on log-log paper: times
        are flat for short vectors and proportional to long ones, and both are straight there.
        Below the smallest size it is that of the smallest, above the largest it is proportional.

        Args:
            algorithm: its name.
            hosts: the number of ranks of each.
            nbytes: of the vector.

        >>> costs = MachineCosts(
        ...     LinkCosts(0, 0, 0),
        ...     LinkCosts(0, 0, 0),
        ...     NodeCosts(0, 0),
        ...     2,
        ...     (("ring", (1, 1), 100, 1.0), ("ring", (1, 1), 10000, 4.0)),
        ... )
        >>> costs.measured_seconds("ring", [1, 1], 1000), costs.measured_seconds("ring", [2], 1000)
        (2.0, None)
        """
        given = algorithm, tuple(hosts)
        times = {size: s for name, of, size, s in self.measured if (name, of) == given}
        if not times:
            return None
        sizes = sorted(times)
        if nbytes <= sizes[0]:
            return times[sizes[0]]
        for low, high in pairwise(sizes):
            if nbytes <= high:
                share = math.log(nbytes / low) / math.log(high / low)
                return times[low] * math.exp(share * math.log(times[high] / times[low]))
        return times[sizes[-1]] * nbytes / sizes[-1]

    def to_json(self) -> str:
        """Return the costs as text that `from_json` reads back without loss."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> MachineCosts:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: if it is no JSON, or a field is missing, unknown, or of no sensible value.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"costs of a machine: not JSON: {error}") from error
        parts = _parts(found, "costs of a machine", cls)
        return cls(
            inside=LinkCosts(**_seconds(parts["inside"], "inside", LinkCosts)),
            between=LinkCosts(**_seconds(parts["between"], "between", LinkCosts)),
            node=NodeCosts(**_seconds(parts["node"], "node", NodeCosts)),
            cores=_count(parts["cores"], "cores"),
            measured=_measured(parts["measured"]),
        )


def _parts(found: Any, what: str, kind: type) -> Mapping[str, Any]:
    """Return ``found`` if it is an object with exactly the fields of ``kind``."""
    if not isinstance(found, dict):
        raise ConfigError(f"{what}: {found!r}, expected an object")
    expected = {field.name for field in fields(kind)}
    for name in sorted(expected - found.keys()):
        raise ConfigError(f"{what}: no {name!r}")
    for name in sorted(found.keys() - expected):
        raise ConfigError(f"{what}: unknown {name!r}, expected {', '.join(sorted(expected))}")
    return found


def _seconds(found: Any, what: str, kind: type) -> dict[str, float]:
    """Return the fields of ``kind``, all of them times."""
    parts = _parts(found, what, kind)
    return {name: _time(value, f"{what}.{name}") for name, value in parts.items()}


def _time(value: Any, what: str) -> float:
    """Return a time of at least 0 seconds."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(f"{what}: {value!r}, expected seconds")
    if not 0 <= value <= _LONGEST:
        raise ConfigError(f"{what}: {value!r}, expected 0 to {_LONGEST:g} seconds")
    return float(value)


def _count(value: Any, what: str) -> int:
    """Return a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{what}: {value!r}, expected a whole number of at least 1")
    if value >= 1 << 63:
        raise ConfigError(f"{what}: a number of {value.bit_length()} bits, expected at most 63")
    return value


def _measured(found: Any) -> tuple[Measured, ...]:
    """Return the measurements, each of which is a list of four."""
    expected = "[algorithm, ranks of each host, bytes, seconds]"
    if not isinstance(found, list):
        raise ConfigError(f"measured: {found!r}, expected a list of {expected}")
    rows: dict[tuple[str, tuple[int, ...], int], float] = {}
    for i, row in enumerate(found):
        what = f"measured[{i}]"
        if not isinstance(row, list) or len(row) != 4:
            raise ConfigError(f"{what}: {row!r}, expected {expected}")
        if not isinstance(row[0], str):
            raise ConfigError(f"{what}: {row[0]!r}, expected the name of an algorithm")
        if not isinstance(row[1], list) or not row[1]:
            raise ConfigError(f"{what}: {row[1]!r}, expected the ranks of each host")
        hosts = tuple(_count(ranks, f"{what}, ranks") for ranks in row[1])
        key = row[0], hosts, _count(row[2], f"{what}, bytes")
        if key in rows:
            raise ConfigError(f"{what}: {row[0]} on {row[1]} with {row[2]} bytes again")
        rows[key] = _time(row[3], f"{what}, seconds")
        if rows[key] == 0:
            raise ConfigError(f"{what}, seconds: 0, expected more")
    return tuple((*key, seconds) for key, seconds in rows.items())


def read_costs(path: str) -> MachineCosts:
    """Return the costs that a file holds.

    Raises:
        ConfigError: if it cannot be read, or is not what ``MachineCosts.to_json`` writes.
    """
    text = read_text(path)
    try:
        return MachineCosts.from_json(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


#: Where nothing was measured: a machine of 2 cores with the messages of an MPI library over
#: shared memory, and 10 Gbit/s Ethernet (1.2 GB/s net of its headers) between hosts.
DEFAULT_COSTS = MachineCosts(
    inside=LinkCosts(alpha=3e-6, beta=2.5e-10, gamma=1e-10),
    between=LinkCosts(alpha=25e-6, beta=1 / 1.2e9, gamma=1e-10),
    node=NodeCosts(sync_s=1e-6, byte_s=1.5e-10),
    cores=2,
)
