"""The configs that are worth planning: values of knobs, tried in every mode that has the knobs.

A row says which knobs it has and whether it needs servers; what it refuses is left out. Pure.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from psrt.collective.analysis.choose import choose, predict
from psrt.collective.registry import ALL_REDUCES, AUTO, PLUS
from psrt.config import MODES, TrainConfig, resolve
from psrt.config.modes import Mode
from psrt.config.names import BUCKET_BYTES, PAIRS, PARAMETERS, PLAIN, SHARDS, SPREAD
from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ConfigError
from psrt.job.gossip import topology_for
from psrt.planning.families import CODECS
from psrt.planning.known import Known, Site
from psrt.topology.names import TOPOLOGIES

#: Codecs of what is sent and of what comes back, tried between hosts.
_CODECS: Final = ((None, None), *CODECS)
#: By knob of a mode, the values that are tried with W workers.
GRIDS: Final[Mapping[str, Callable[[int], Sequence[Any]]]] = {
    "backup": lambda workers: (0, 1, workers // 8),
    "staleness": lambda workers: (1, 3, 8),
    "k": lambda workers: (1, 2, workers // 2),
    "local_steps": lambda workers: (4, 16, 64),
    "quorum": lambda workers: (None, -(-workers // 2)),
    "asynchronous": lambda workers: (False, True),
    "bucket_bytes": lambda workers: (None, 1 << 22),
    "shard": lambda workers: (None, *SHARDS),
    "topology": lambda workers: TOPOLOGIES.own[:3],
    "variant": lambda workers: (PLAIN, PAIRS),
}


@dataclass(frozen=True, slots=True)
class Places:
    """The ranks that there are, or that there would be."""

    known: Known
    #: Number of workers, to which servers are added; None where the number of ranks is fixed.
    workers: int | None = None
    #: Ranks of a host, and cores that they share; None where hosts are known.
    per_host: int | None = None
    cores: int = 1

    def split(self, servers: int) -> tuple[int, int]:
        """Return the number of ranks and of workers with that many servers."""
        ranks = self.known.site.ranks if self.workers is None else self.workers + servers
        return ranks, ranks - servers

    def known_with(self, servers: int) -> Known:
        """Return what is known, with a site of as many ranks as there are with these servers."""
        ranks, _ = self.split(servers)
        if self.per_host is None:  # further servers run where others do
            site = replace(self.known.site, hosts=tuple(self.known.site.of(ranks)))
            return replace(self.known, site=site)
        hosts = tuple(rank // self.per_host for rank in range(ranks))
        machines = tuple(range(hosts[-1] + 1))
        costs = replace(self.known.site.costs, cores=self.cores)
        site = Site(hosts, machines, (self.cores,) * len(machines), costs)
        return replace(self.known.without_factors(), site=site)


class Candidate(NamedTuple):
    """A config that fits its ranks; not resolved."""

    config: TrainConfig
    servers: int
    ranks: int
    workers: int


def candidates(base: TrainConfig, fixed: Mapping[str, Any], places: Places) -> list[Candidate]:
    """Return all that is sensible.

    Args:
        base: what all have in common; knobs that are varied are None.
        fixed: by knob of the run, what the user asks for; by ``mode``, the knobs of its row.
        places: the ranks.

    Raises:
        ConfigError: if nothing is possible, and why.
    """
    found: dict[str, Candidate] = {}
    refused = ConfigError("no mode can be planned for these ranks and flags")
    refusals = list[ConfigError]()
    tried = _servers(fixed, places)
    for servers, mode in itertools.product(tried, _modes(base, fixed, places)):
        ranks, workers = places.split(servers)
        fits = mode.may_have_servers if servers else not mode.needs_servers
        is_simple = mode.single == (workers == 1 and not servers)
        # What is asked for, and nothing else, is refused with the reason.
        if not (fits or len(tried) == 1) or not (is_simple or base.mode):
            continue
        own = servers if servers or mode.may_have_servers else None
        for more in _varied(base, fixed, mode, places.known_with(servers), servers):
            try:
                config = replace(base, mode=mode, servers=own, **more)
                hosts = places.known_with(servers).site.hosts[:workers]
                topology_for(resolve(config, ranks=ranks), hosts, edges=None)
                found.setdefault(repr(config), Candidate(config, servers, ranks, workers))
            except ConfigError as error:
                refusals.append(error)
    if not found:
        raise next(iter(refusals), refused)
    return list(found.values())


def _servers(fixed: Mapping[str, Any], places: Places) -> list[int]:
    """Return the numbers of servers that are tried: none, and powers of two."""
    if (asked := fixed.get("servers")) is not None:
        return [asked]
    most = min(places.workers or places.known.site.ranks // 2, places.known.workload.n)
    return [0, *(1 << i for i in range(most.bit_length()))]


def _modes(base: TrainConfig, fixed: Mapping[str, Any], places: Places) -> list[Mode]:
    """Return the rows with all values of the grids, except for what the user has fixed."""
    workers, work = places.workers or places.known.site.ranks, places.known.workload
    found = list[Mode]()
    for row in [base.scheme] if base.mode else [MODES[name] for name in MODES.own]:
        names = [it for it in row.knobs if it in GRIDS and it not in fixed.get("mode", ())]
        is_one = len(work.parts) < 2 or ITEMSIZE * work.n <= BUCKET_BYTES
        names = [it for it in names if it != "bucket_bytes" or not is_one]
        for values in itertools.product(*(dict.fromkeys(GRIDS[it](workers)) for it in names)):
            if not work.is_chain and PARAMETERS in values:
                continue
            try:
                found.append(replace(row, **dict(zip(names, values, strict=True))))
            except ConfigError:
                continue
    return found


def _varied(
    base: TrainConfig, fixed: Mapping[str, Any], mode: Mode, known: Known, servers: int
) -> Iterator[dict[str, Any]]:
    """Yield the knobs of the run that are varied in a mode: placement, codecs, the all-reduce."""
    counts = Counter(known.site.hosts)
    is_spread = servers > 1 and 1 < len(counts) < known.site.ranks and "placement" not in fixed
    more: dict[str, Any] = {"placement": SPREAD} if is_spread else {}
    is_free = not {"codec", "codec_reply"} & fixed.keys() and base.optimizer.codec is None
    for codec, reply in _CODECS if len(counts) > 1 and mode.codecs and is_free else _CODECS[:1]:
        plain = not (codec or base.codec or mode.shard or servers) and "allreduce" not in fixed
        coded = more if codec is None else more | {"codec": codec, "codec_reply": reply}
        for name in _algorithms(known) if mode.sums and plain else [None]:
            yield coded if name is None else coded | {"allreduce": name}


def _algorithms(known: Known) -> list[str]:
    """Return the all-reduces that are tried without servers: that of ``auto``, and the next."""
    site, nbytes = known.site, ITEMSIZE * known.workload.n
    hosts = [*Counter(site.hosts).values()]
    first = choose(hosts, nbytes, ITEMSIZE, site.costs).algorithm
    names = [it for it in ALL_REDUCES if it not in (AUTO, first)]
    names = [it for it in names if len(hosts) > 1 or not it.startswith(PLUS)]
    times = {it: predict(it, hosts, nbytes, ITEMSIZE, site.costs) for it in names}
    others = {it: seconds for it, seconds in times.items() if seconds is not None}
    return [first, *sorted(others, key=others.__getitem__)[:1]]
