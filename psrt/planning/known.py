"""What planning knows: of a model, of the ranks that will train it, and of their machines. Pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from statistics import fmean
from typing import Any

from psrt.codec import Matrix
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts
from psrt.config import TrainConfig
from psrt.core.errors import ConfigError
from psrt.core.partition import Span

#: The source of times that are nobody's measurement.
GIVEN = "given"
#: A server's or a worker's passes over gradients, in bytes per second: about one core.
DEFAULT_APPLY = 2e9


@dataclass(frozen=True, slots=True)
class Workload:
    """The model and the time that it takes to compute."""

    #: Number of parameters.
    n: int
    #: Samples of a worker's step.
    batch_size: int
    #: By rank, the seconds of some gradients, in order, each on a core of its own while the other
    #: cores of the machine compute, too. Fewer lists than ranks: rank r has list r modulo their
    #: number.
    gradient_s: tuple[tuple[float, ...], ...]
    #: Samples of an epoch; None if unknown.
    samples: int | None = None
    #: The gradient's spans in the order in which they are ready; without any, it comes as a whole.
    parts: tuple[Span, ...] = ()
    #: The matrices among the parameters.
    matrices: tuple[Matrix, ...] = ()
    #: Whether the model has layers that ranks can gather one by one.
    is_chain: bool = False

    @property
    def mean_s(self) -> float:
        """The mean seconds of a gradient, over all ranks."""
        return fmean(map(fmean, self.gradient_s))


@dataclass(frozen=True, slots=True)
class Site:
    """Where the ranks of a job run."""

    #: By rank, the number of its host, from 0; ranks of a host share memory and a link.
    hosts: tuple[int, ...]
    #: By host, the number of the machine whose cores it uses: hosts may be containers on one.
    machines: tuple[int, ...]
    #: By machine, its cores.
    cores: tuple[int, ...]
    #: What messages, memory and all-reduces cost.
    costs: MachineCosts = DEFAULT_COSTS

    @property
    def ranks(self) -> int:
        """Their number."""
        return len(self.hosts)

    @property
    def is_several(self) -> bool:
        """Whether there are several hosts, between which codecs are in effect."""
        return len(set(self.hosts)) > 1

    def crowding(self, hosts: Iterable[int]) -> float:
        """Return how many times as long ranks compute because they share cores.

        Args:
            hosts: that of each rank that computes.
        """
        ranks = Counter(self.machines[host] for host in hosts)
        return max(1.0, *(number / self.cores[it] for it, number in ranks.items()))

    def of(self, ranks: int) -> list[int]:
        """Return the host of each rank of a job; more ranks than there are begin again."""
        return [self.hosts[rank % len(self.hosts)] for rank in range(ranks)]


@dataclass(frozen=True, slots=True)
class ShortRun:
    """How fast a short run of a family was; see ``families``."""

    family: str
    samples_per_s: float
    workers: int
    #: Of what is sent; None: uncompressed.
    codec: str | None = None
    #: What psrt chose by itself.
    algorithm: str | None = None
    shards_per_server: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """Everything that a plan is made from."""

    workload: Workload
    site: Site
    #: Bytes of gradient per second that a server, or a worker for itself, applies, by name of an
    #: optimizer; others take ``DEFAULT_APPLY``.
    apply: dict[str, float] = field(default_factory=dict)
    #: Where it comes from, such as "measured on these ranks", "given", "like runs/a".
    source: str = GIVEN
    #: Why the measurements are not to be trusted; empty if nothing suggests that.
    doubt: str = ""
    #: Further measured constants, in seconds or as pure numbers, by name; see ``costs_for``.
    details: dict[str, float] = field(default_factory=dict)
    #: To which predictions are fitted.
    runs: tuple[ShortRun, ...] = ()

    def apply_rate(self, config: TrainConfig) -> float:
        """Return the bytes of gradient per second that an update takes in with its optimizer."""
        return self.apply.get(config.optimizer.name, DEFAULT_APPLY)

    def without_factors(self) -> Known:
        """Return what is known before it was fitted to runs on its own ranks."""
        # The names of factors are those that have a family in them.
        kept = {name: it for name, it in self.details.items() if " " not in name}
        return replace(self, details=kept)

    def is_sound(self) -> bool:
        """Whether its numbers are in their ranges, and its places are there."""
        work, site = self.workload, self.site
        above = [work.n, work.batch_size, *chain(*work.gradient_s), *site.cores]
        above += [*self.apply.values(), *(it.samples_per_s for it in self.runs)]
        places = ((site.hosts, site.machines), (site.machines, site.cores))
        return (
            all(0 < it < math.inf for it in above)
            and all(0 <= it < math.inf for it in self.details.values())
            and all(its and 0 <= min(its) <= max(its) < len(there) for its, there in places)
            and bool(work.gradient_s)
            and all(work.gradient_s)
        )

    def to_json(self) -> str:
        """Return it as text that ``from_json`` reads back without loss."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Known:
        """Read what ``to_json`` wrote, or a plan that was made from it.

        Raises:
            ConfigError: if it is something else.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            found = found.get("known", found)
            work, site = found["workload"], found["site"]
            work["gradient_s"] = tuple(map(tuple, work["gradient_s"]))
            work["parts"] = tuple(Span(*it) for it in work["parts"])
            work["matrices"] = tuple(Matrix(*it) for it in work["matrices"])
            costs = MachineCosts.from_json(json.dumps(site.pop("costs")))
            site = Site(**{name: tuple(its) for name, its in site.items()}, costs=costs)
            runs = tuple(ShortRun(**it) for it in found["runs"])
            known = cls(**found | {"workload": Workload(**work), "site": site, "runs": runs})
            if known.is_sound():
                return known
            raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ConfigError("--known: not what planning has measured") from None
