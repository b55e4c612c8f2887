"""Choose the all-reduce that is fastest by the machine's costs. Pure.

The candidates depend on the hosts of the ranks:

=====================================  ========================================================
ranks                                  candidates
=====================================  ========================================================
on one host                            ``node``, and ``mpi`` where the library was measured
on several hosts, one each             every schedule of ``ALGORITHMS``
on several hosts, several on some      the same over all ranks, and ``node+NAME``: inside a host
                                       by shared memory, between hosts by the schedule NAME
– where all that was measured          ``mpi``, too
=====================================  ========================================================

The shortest time wins, with two exceptions. The library must be more than 10 % faster, 3 % between
hosts, since near a tie the noise of its measurement would decide. And schedules of messages are not
candidates inside a host, where shared memory needs only one barrier or two; ``why`` still names the
best of them.

**Measured or predicted.** ``psrt bench allreduce --fit`` keeps the time of each candidate between
the hosts that it runs on. If there are such times for the given ranks by host, only measured
all-reduces are candidates: a formula knows nothing of a network's weaknesses. Of times within 3 %
of the shortest the first in the order of ``ALGORITHMS`` is taken, so that a choice between equals
does not depend on noise.
Elsewhere times are predicted by α, β and γ.

**Between hosts.** The ranks of a host share its one wire; ``between.beta`` is that of a single
pair of ranks without other traffic.

- ``node+NAME``: every host offers as many rails as the smallest host has ranks, and rail i runs
  NAME over all hosts with the i-th slice of the vector. So each rail sends 1/rails of the bytes
  over 1/rails of the wire, and combines 1/rails of them on a core that it may have to share.
- A schedule over all ranks: if its row has ``shares_link``, all ranks of a host send to other hosts
  at once and share the wire. Each message is priced as one between hosts, so the prediction is
  somewhat too slow.

**Inside a host** every step of a rank needs a core, so with more ranks than cores they take turns:
messages, copies and combining take longer by the number of ranks per core. Between hosts this
holds for combining only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psrt.collective.analysis.machine import MachineCosts
from psrt.collective.costs import LinkCosts
from psrt.collective.registry import ALGORITHMS, LIBRARY, NODE, PLUS
from psrt.collective.schedule import Algorithm
from psrt.core.errors import ConfigError
from psrt.core.units import plural, size_text, time_text

#: Measured times that differ by less than this factor count as equal: noise is as large.
_ALIKE = 1.03
#: The factor by which the library must be faster than ``node`` to be chosen on one host.
_CLEARLY = 1.1


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen algorithm, and the reason."""

    #: A key of ``ALGORITHMS``, ``node``, ``node+`` and such a key, or ``mpi``.
    algorithm: str
    #: Predicted or measured time, in seconds.
    seconds: float
    #: One sentence with the numbers that decided.
    why: str


def choose(
    hosts: Sequence[int],
    nbytes: int,
    itemsize: int,
    costs: MachineCosts,
    *,
    dtype_ok_for_library: bool = True,
    shared_memory: bool = False,
) -> Choice:
    """Choose an all-reduce.

    Args:
        hosts: number of ranks on each host, ≥ 1 each.
        nbytes: bytes of the vector, ≥ 0.
        itemsize: bytes of an element.
        costs: of the machine.
        dtype_ok_for_library: whether the library supports the type; most have no float16.
        shared_memory: whether ranks of a host must fold in shared memory, also on several hosts.

    Raises:
        ConfigError: if there is no host, or one without ranks.

    >>> from psrt.collective.analysis.machine import DEFAULT_COSTS
    >>> choose([4], 4 << 20, 4, DEFAULT_COSTS).why
    'node: 1.26 ms predicted for 4 MiB on 4 ranks of 1 host; segmented-ring 3.33 ms'
    >>> choose([2, 2], 4096, 4, DEFAULT_COSTS).algorithm
    'node+butterfly'
    """
    if not hosts or min(hosts) < 1:
        raise ConfigError(f"ranks on each host {list(hosts)}, expected at least 1 each")
    if sum(hosts) == 1:
        return Choice(ALGORITHMS.own[0], 0.0, "1 rank: nothing to sum")

    if len(hosts) > 1:
        alone = max(hosts) == 1 and not shared_memory
        through_nodes = () if alone else [PLUS + name for name in ALGORITHMS.own]
        names = [*(() if shared_memory else ALGORITHMS.own), *through_nodes]
        library = dtype_ok_for_library and not shared_memory
        return choose_among(names, hosts, nbytes, itemsize, costs, library=library)
    what = f"predicted {_what(hosts, nbytes)}"
    messages = predicted(ALGORITHMS.own, hosts, nbytes, itemsize, costs)
    best_of_messages = fastest(messages)
    others = [NODE, LIBRARY] if dtype_ok_for_library else [NODE]
    times = messages | predicted(others, hosts, nbytes, itemsize, costs)
    if times[NODE] > _CLEARLY * times.get(LIBRARY, math.inf):
        return _choice(LIBRARY, [NODE, best_of_messages], times, what)
    others = [best_of_messages, *({LIBRARY} & times.keys())]
    return _choice(NODE, others, times, what)


def choose_among(
    names: Sequence[str],
    hosts: Sequence[int],
    nbytes: int,
    itemsize: int,
    costs: MachineCosts,
    *,
    library: bool = False,
) -> Choice:
    """Choose one of some all-reduces, by measured times if there are any.

    Args:
        names: keys of ``ALGORITHMS``, or ``node+`` and such a key.
        hosts: number of ranks on each host, ≥ 1 each.
        nbytes: bytes of the vector, ≥ 0.
        itemsize: bytes of an element.
        costs: of the machine.
        library: whether the MPI library's is a candidate, too, where it was measured.
    """
    found = {name: costs.measured_seconds(name, hosts, nbytes) for name in names}
    times = {name: time for name, time in found.items() if time is not None}
    what = f"{'measured' if times else 'predicted'} {_what(hosts, nbytes)}"
    times = times or predicted(names, hosts, nbytes, itemsize, costs)
    best = fastest(times, _ALIKE if any(found.values()) else 1.0)
    if library:
        times |= predicted([LIBRARY], hosts, nbytes, itemsize, costs)
        if times[best] > _ALIKE * times.get(LIBRARY, math.inf):
            best = LIBRARY
    return _choice(best, _runners_up(best, times)[:2], times, what)


def _what(hosts: Sequence[int], nbytes: int) -> str:
    return f"for {size_text(nbytes)} on {sum(hosts)} ranks of {plural(len(hosts), 'host')}"


def predicted(
    names: Iterable[str],
    hosts: Sequence[int],
    nbytes: int,
    itemsize: int,
    costs: MachineCosts,
) -> dict[str, float]:
    """Return the predicted seconds by name, of those that the costs cover."""
    times = {name: predict(name, hosts, nbytes, itemsize, costs) for name in names}
    return {name: time for name, time in times.items() if time is not None}


def predict(
    algorithm: str, hosts: Sequence[int], nbytes: int, itemsize: int, costs: MachineCosts
) -> float | None:
    """Return the predicted seconds of an all-reduce; None if the costs do not cover it.

    Args:
        algorithm: ``mpi``, ``node``, ``node+`` and a schedule's name, or a schedule's name.
        hosts: number of ranks on each host, ≥ 1 each.
        nbytes: bytes of the vector, ≥ 0.
        itemsize: bytes of an element.
        costs: of the machine. They cover the library where it was measured, and ``node`` on one
            host.

    Raises:
        ConfigError: if there is no such schedule.
    """
    alone = len(hosts) == 1
    if algorithm == LIBRARY:
        return costs.measured_seconds(LIBRARY, hosts, nbytes)
    if algorithm == NODE:
        return costs.node.seconds(hosts[0], nbytes, costs.cores) if alone else None
    if algorithm.startswith(PLUS):
        return _through_nodes(algorithm.removeprefix(PLUS), hosts, nbytes, itemsize, costs)
    most, turns = max(hosts), costs.queue(max(hosts))
    row = _row(algorithm)
    if alone:
        wire = costs.inside
        shared = LinkCosts(turns * wire.alpha, turns * wire.beta, turns * wire.gamma)
    else:
        wire, share = costs.between, most if row.shares_link else 1
        shared = LinkCosts(wire.alpha, share * wire.beta, turns * wire.gamma)
    return row.seconds(sum(hosts), nbytes, shared, itemsize=itemsize)


def _through_nodes(
    name: str, hosts: Sequence[int], nbytes: int, itemsize: int, costs: MachineCosts
) -> float:
    """Return the seconds of a fold inside all hosts and of ``name`` between them."""
    wire, rails = costs.between, min(hosts)
    rail = LinkCosts(wire.alpha, rails * wire.beta, costs.queue(rails) * wire.gamma)
    across = _row(name).seconds(len(hosts), nbytes / rails, rail, itemsize=itemsize)
    return costs.node.seconds(max(hosts), nbytes, costs.cores) + across


def _row(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        raise ConfigError(f"no all-reduce {name!r}, expected one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def _choice(best: str, others: Sequence[str], times: Mapping[str, float], what: str) -> Choice:
    """Return the choice, with the runners-up and why any that is faster was not taken."""
    parts = [f"{best}: {time_text(times[best])} {what}"]
    for name in others:
        faster = times[name] < times[best] and not math.isclose(times[name], times[best])
        but = "not 3 % faster"
        if best == NODE:
            but = "not 10 % faster" if name == LIBRARY else "no messages inside a host"
        parts.append(f"{name} {time_text(times[name])}" + f", but {but}" * faster)
    return Choice(best, times[best], "; ".join(parts))


def _runners_up(best: str, times: Mapping[str, float]) -> list[str]:
    """Return the others, fastest first; of those that take the same time only the first."""
    named = [best]
    for name in sorted(times, key=times.__getitem__):
        if not any(math.isclose(times[name], times[other]) for other in named):
            named.append(name)
    return named[1:]


def fastest(times: Mapping[str, float], alike: float = 1.0) -> str:
    """Return the name of the shortest time; of several that are alike the first.

    Args:
        times: by name.
        alike: factor up to which a time counts as the shortest; rounding does in any case.

    >>> fastest({"tree": 3.0, "ring": 0.1 + 0.2, "halving-doubling": 0.3})
    'ring'
    >>> fastest({"tree": 3.0, "ring": 0.31, "halving-doubling": 0.3}, alike=1.05)
    'ring'
    """
    least = min(times.values())
    return next(
        name for name, time in times.items() if time <= alike * least or math.isclose(time, least)
    )
