"""The configs that are worth planning: values of knobs, tried in every mode that has the knobs.

A row says which knobs it has and whether it needs servers; what it refuses is left out. Pure.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from psrt.collective.analysis.choose import choose, predicted
from psrt.collective.registry import ALL_REDUCES, AUTO, PLUS
from psrt.config import MODES, TrainConfig, resolve
from psrt.config.modes import Mode
from psrt.config.names import BUCKET_BYTES, PAIRS, PARAMETERS, PLAIN, SHARDS, SPREAD
from psrt.core.arrays import ITEMSIZE
from psrt.core.errors import ConfigError
from psrt.job.gossip import topology_for
from psrt.planning.families import CODECS
from psrt.planning.known import Known
from psrt.planning.ranking import promise_of
from psrt.topology.names import TOPOLOGIES

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
#: Splits of a model that are tried where its gradients are summed, and the layers that they need.
_SPLITS: Final = {"pipeline:2": 2, "pipeline:4": 4, "tensor:2": 1}


class Candidate(NamedTuple):
    """A config that fits its ranks; not resolved."""

    config: TrainConfig
    servers: int
    workers: int
    #: With a site of its ranks.
    known: Known
    #: Seconds of a step by the closed form.
    closed_s: float = 0.0

    @property
    def ranks(self) -> int:
        """Servers and workers."""
        return self.servers + self.workers

    @property
    def copies(self) -> int:
        """Copies of the model: as many as workers, unless it is split."""
        return self.workers // self.config.axes.cells

    @property
    def sample_s(self) -> float:
        """Seconds in which it trains a batch of one copy, by the closed form."""
        return self.closed_s / self.copies

    @property
    def promise(self) -> str:
        """What it promises about the parameters, a key of ``PROMISES``."""
        return promise_of(self.config, several=self.known.site.is_several)


class Places(NamedTuple):
    """The ranks that there are, or that there would be."""

    known: Known
    #: Number of workers, to which servers are added; None: the ranks of the site are both.
    workers: int | None = None
    #: Whether the model is that of ``psrt train``, whose parts are layers; others are not split.
    is_mlp: bool = False

    def with_servers(self, servers: int) -> tuple[int, Known]:
        """Return the number of workers, and what is known of as many ranks."""
        site, workers = self.known.site, self.workers
        if workers is None:
            return site.ranks - servers, self.known
        site = replace(site, hosts=tuple(site.of(workers + servers)))
        return workers, replace(self.known, site=site)


def candidates(base: TrainConfig, fixed: Mapping[str, Any], places: Places) -> list[Candidate]:
    """Return all that is sensible.

    Args:
        base: what all have in common; knobs that are varied are None.
        fixed: by knob of the run, what the user asks for; by ``mode``, the knobs of its row.
        places: the ranks.

    Raises:
        ConfigError: if nothing is possible, and why.
    """
    if base.parallel and not places.is_mlp:
        why = "psrt plan knows no layers but those that the flags of psrt train describe"
        raise ConfigError(f"--parallel {base.parallel}: {why}; see psrt simulate --parallel")
    if base.parallel and (fixed.get("servers") or (base.mode and base.scheme.needs_servers)):
        raise ConfigError(f"--parallel {base.parallel}: psrt plan splits models without servers")
    found, refusals = dict[str, Candidate](), list[ConfigError]()
    modes, tried = _modes(base, fixed, places), _servers(base, fixed, places)
    for servers in tried:
        workers, known = places.with_servers(servers)
        for mode in modes:
            fits = mode.may_have_servers if servers else not mode.needs_servers
            is_simple = mode.single == (workers == 1 and not servers)
            is_asked = base.mode and len(tried) == 1  # then a refusal says why
            if not is_asked and not (fits and (is_simple or base.mode)):
                continue
            own = servers if servers or mode.may_have_servers else None
            is_usual = mode.sums_gradients and mode == MODES[mode.name]
            layers = len(known.workload.parts) * (places.is_mlp and is_usual and not base.parallel)
            splits = [{"parallel": it} for it, least in _SPLITS.items() if least <= layers]
            for more in [*_varied(base, fixed, mode, known, servers), *splits]:
                try:
                    config = replace(base, mode=mode, servers=own, **more)
                    it = Candidate(config, servers, workers, known)
                    resolved = resolve(config, ranks=it.ranks)
                    topology_for(resolved, known.site.hosts[: it.copies], edges=None)
                    found.setdefault(repr(config), it)
                except ConfigError as error:
                    refusals.append(error)
    if not found:
        refusals.append(ConfigError("no mode can be planned for these ranks and flags"))
        raise refusals[0]
    return list(found.values())


def _servers(base: TrainConfig, fixed: Mapping[str, Any], places: Places) -> list[int]:
    """Return the numbers of servers that are tried: none, and powers of two."""
    asked = 0 if base.parallel else fixed.get("servers")
    if asked is not None:
        return [asked]
    most = min(places.workers or places.known.site.ranks // 2, places.known.workload.n)
    return [0, *(1 << i for i in range(most.bit_length()))]


def _modes(base: TrainConfig, fixed: Mapping[str, Any], places: Places) -> list[Mode]:
    """Return the rows with all values of the grids, except for what the user has fixed."""
    workers, work = places.workers or places.known.site.ranks, places.known.workload
    is_one_bucket = len(work.parts) < 2 or ITEMSIZE * work.n <= BUCKET_BYTES
    kept = {*fixed.get("mode", ()), *["bucket_bytes"] * is_one_bucket}
    found = list[Mode]()
    for row in [base.scheme] if base.mode else [MODES[name] for name in MODES.own]:
        names = [it for it in row.knobs if it in GRIDS and it not in kept]
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
    """Yield the knobs that are varied in a mode: placement, codecs, the all-reduce."""
    if base.parallel:
        yield {}
        return
    hosts = len({*known.site.hosts})
    is_spread = servers > 1 and 1 < hosts < known.site.ranks and "placement" not in fixed
    more: dict[str, Any] = {"placement": SPREAD} if is_spread else {}
    if mode.sums and not (servers or mode.shard or base.codec or "allreduce" in fixed):
        yield from ({"allreduce": name} for name in _algorithms(known))
    else:
        yield more
    is_free = not {"codec", "codec_reply"} & fixed.keys() and base.optimizer.codec is None
    for codec, reply in CODECS if hosts > 1 and mode.codecs and is_free else ():
        yield more | {"codec": codec, "codec_reply": reply}


def _algorithms(known: Known) -> list[str]:
    """Return the all-reduces that are tried without servers: that of ``auto``, and the next."""
    site, nbytes = known.site, ITEMSIZE * known.workload.n
    hosts = [*Counter(site.hosts).values()]
    first = choose(hosts, nbytes, ITEMSIZE, site.costs).algorithm
    names = [it for it in ALL_REDUCES if it not in (AUTO, first)]
    names = [it for it in names if len(hosts) > 1 or not it.startswith(PLUS)]
    others = predicted(names, hosts, nbytes, ITEMSIZE, site.costs)
    return [first, *sorted(others, key=others.__getitem__)[:1]]
