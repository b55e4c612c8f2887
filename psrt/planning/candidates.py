"""The configs that are worth planning: values of knobs, tried in every mode that has the knobs.

No mode is named here: a row says which knobs it has, and whether it needs servers, sums or mixes. A
combination that a row refuses is left out. Pure.
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
from psrt.config.names import PAIRS, PLAIN, SPREAD
from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ConfigError
from psrt.core.sharding import Sharing
from psrt.planning.families import CODECS
from psrt.planning.known import Known, Site
from psrt.topology.names import DEFAULT

#: All-reduces that are tried, the fastest by the closed form.
_ALGORITHMS = 2
#: Codecs of what is sent and of what comes back, tried between hosts.
_CODECS: Final = ((None, None), *CODECS)


class Setting(NamedTuple):
    """What the values of a knob depend on."""

    workers: int
    #: Bytes of a gradient, and the number of parts in which it comes.
    nbytes: int
    parts: int


#: By knob of a mode, the values that are tried.
GRIDS: Final[Mapping[str, Callable[[Setting], Sequence[Any]]]] = {
    "backup": lambda it: (0, 1, it.workers // 8),
    "staleness": lambda it: (1, 3, 8),
    "k": lambda it: (1, 2, it.workers // 2),
    "local_steps": lambda it: (4, 16, 64),
    "quorum": lambda it: (None, -(-it.workers // 2)),
    "asynchronous": lambda it: (False, True),
    "bucket_bytes": lambda it: (
        [None, *(size for size in (1 << 18, 1 << 22, 1 << 24) if it.parts > 1 and size < it.nbytes)]
    ),
    "shard": lambda it: [None, *(its.value for its in Sharing)][: 2 if it.parts == 1 else None],
    "topology": lambda it: (DEFAULT, "exponential", "one-peer-exponential"),
    "variant": lambda it: (PLAIN, PAIRS),
}


@dataclass(frozen=True, slots=True)
class Places:
    """The ranks that there are, or that there would be."""

    known: Known
    #: Number of workers, to which servers are added; None where the number of ranks is fixed.
    workers: int | None = None
    #: Ranks of a host of a cluster that is only described; None where the ranks are known.
    per_host: int | None = None
    #: Cores of each of its hosts.
    cores: int = 1

    def split(self, servers: int) -> tuple[int, int]:
        """Return the number of ranks and of workers with that many servers."""
        if self.workers is not None:
            return self.workers + servers, self.workers
        return self.known.site.ranks, self.known.site.ranks - servers

    def known_with(self, servers: int) -> Known:
        """Return what is known, with a site of as many ranks as there are with these servers."""
        ranks, _ = self.split(servers)
        if self.per_host is None:  # further servers run where others do
            site = replace(self.known.site, hosts=tuple(self.known.site.of(ranks)))
            return replace(self.known, site=site)
        hosts = tuple(rank // self.per_host for rank in range(ranks))
        count = hosts[-1] + 1
        costs = replace(self.known.site.costs, cores=self.cores)
        site = Site(hosts, tuple(range(count)), (self.cores,) * count, costs)
        return replace(self.known.without_factors(), site=site)


class Candidate(NamedTuple):
    """A config, resolved by its own ranks only when it runs."""

    config: TrainConfig
    servers: int
    ranks: int
    workers: int


def candidates(
    base: TrainConfig, fixed: Mapping[str, Any], places: Places
) -> tuple[list[Candidate], ConfigError | None]:
    """Return all that is sensible, and the first refusal.

    Args:
        base: what all have in common, without the knobs that are varied.
        fixed: by knob of the run, what the user asks for; by ``mode``, the knobs of its row.
        places: the ranks.
    """
    found: dict[str, Candidate] = {}
    refused: ConfigError | None = None
    tried = _servers(fixed, places)
    for servers in tried:
        ranks, workers = places.split(servers)
        if workers < 1:
            continue
        known = places.known_with(servers)
        for mode in _modes(base, fixed, places, workers):
            fits = mode.may_have_servers if servers else not mode.needs_servers
            is_worth = _is_worth(mode, servers, workers)
            # What is asked for, and nothing else, is refused with the reason.
            if not (fits or len(tried) == 1) or not (is_worth or base.mode is not None):
                continue
            own = servers if servers or mode.may_have_servers else None
            for more in _varied(base, fixed, mode, known, servers, workers):
                try:
                    asked = replace(base, mode=mode, servers=own, **more)
                    resolve(asked, ranks=ranks)
                except ConfigError as error:
                    refused = refused or error
                    continue
                found.setdefault(repr(asked), Candidate(asked, servers, ranks, workers))
    return list(found.values()), refused


def _servers(fixed: Mapping[str, Any], places: Places) -> list[int]:
    """Return the numbers of servers that are tried: none, and powers of two."""
    if (asked := fixed.get("servers")) is not None:
        return [asked]
    most = min(places.workers or places.known.site.ranks // 2, places.known.workload.n)
    return [0, *itertools.takewhile(lambda it: it <= most, (1 << i for i in itertools.count()))]


def _is_worth(mode: Mode, servers: int, workers: int) -> bool:
    """Return whether a mode is worth a try: one worker alone needs none but the simplest."""
    is_alone = workers == 1 and not servers
    return is_alone if mode.single else not is_alone


def _modes(
    base: TrainConfig, fixed: Mapping[str, Any], places: Places, workers: int
) -> Iterator[Mode]:
    """Yield the rows with all values of the grids, except for what the user has fixed."""
    work = places.known.workload
    setting = Setting(workers, ITEMSIZE * work.n, max(1, len(work.parts)))
    asked: Mode | None = base.mode
    for row in [asked] if asked is not None else [MODES[name] for name in MODES.own]:
        tried = {
            name: GRIDS[name](setting)
            for name in row.knobs
            if name in GRIDS and (asked is None or name not in fixed["mode"])
        }
        for values in itertools.product(*(dict.fromkeys(its) for its in tried.values())):
            try:
                yield replace(row, **dict(zip(tried, values, strict=True)))
            except ConfigError:
                continue


def _varied(
    base: TrainConfig,
    fixed: Mapping[str, Any],
    mode: Mode,
    known: Known,
    servers: int,
    workers: int,
) -> Iterator[dict[str, Any]]:
    """Yield the knobs of the run that are varied in a mode: codecs and the all-reduce."""
    counts = [*Counter(known.site.hosts).values()]
    several = len(counts) > 1
    codecs: Sequence[tuple[str | None, str | None]] = _CODECS[:1]
    if several and mode.codecs and "codec" not in fixed and base.optimizer.codec is None:
        codecs = [it for it in _CODECS if "codec_reply" not in fixed or it[1] is None]
    for codec, reply in codecs:
        more: dict[str, Any] = {}
        if servers > 1 and several and max(counts) > 1 and "placement" not in fixed:
            more["placement"] = SPREAD
        if codec is not None:
            more["codec"] = codec
        if reply is not None:
            more["codec_reply"] = reply
        is_coded = codec is not None or base.codec is not None
        plain = not is_coded and mode.shard is None
        sums = mode.sums and not servers and workers > 1
        if sums and plain and "allreduce" not in fixed:
            for name in _algorithms(known, workers):
                yield more | {"allreduce": name}
        else:
            yield more


def _algorithms(known: Known, workers: int) -> list[str]:
    """Return the all-reduces that are tried: that of ``auto``, and the next best."""
    site, nbytes = known.site, ITEMSIZE * known.workload.n
    hosts = [site.hosts[:workers].count(it) for it in dict.fromkeys(site.hosts[:workers])]
    first = choose(hosts, nbytes, ITEMSIZE, site.costs).algorithm
    times = {
        name: seconds
        for name in ALL_REDUCES
        if name not in (AUTO, first)
        and (len(hosts) > 1 or not name.startswith(PLUS))
        and (seconds := predict(name, hosts, nbytes, ITEMSIZE, site.costs)) is not None
    }
    return [first, *sorted(times, key=times.__getitem__)[: _ALGORITHMS - 1]]
