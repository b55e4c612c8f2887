"""What a job can be: one description, of which the laws in ``tests/laws`` hold.

A job takes one level of each factor. Those of ``covering`` have every pair of levels that go
together, and every triple of what mode, codec and cut are in kind. Every row of a registry that is
no level of a factor stands in one job more (``of_rows``), so that all laws try a new codec or
optimizer as soon as it has its row.

What does not go together is written down here by itself (``RULES``) and not asked of psrt, which
has to refuse just that, in a line.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from psrt.codec import CODECS as CODEC_ROWS
from psrt.collective import ALGORITHMS
from psrt.config import TrainConfig
from psrt.config.faults import EVENT, Fault
from psrt.core.errors import ConfigError, PsrtError
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.job.virtual import SimulatedRun
from psrt.optim import OPTIMIZERS, STALENESS_RATES
from psrt.pipeline.registry import PIPELINES
from psrt.simulation.cost_flags import VirtualCosts
from support.graphs import GRAPHS as TOPOLOGIES
from support.knobs import together

Knobs = dict[str, Any]

#: Nothing in common with what jobs cost that tells who is first.
OTHER_COSTS: Final = VirtualCosts(compute="exponential:0.002", link="0.01:1e5")

#: Several steps an epoch, the last of fewer samples, and layers for two stages of two chunks each.
BASE: Final[Knobs] = {
    "dataset": "synthetic:50x12x4", "hidden": (16, 12, 8), "batch_size": 4, "epochs": 2,
    "lr": 0.02, "timeout_s": 5.0, "overwrite": True,
}  # fmt: skip
_OUTER: Final = "local-sgd:local-steps=3,outer=nesterov,outer.lr=0.7"
_WINDOW: Final = "local-sgd:local-steps=3,quorum=2,grace=0.001"
_STAGES: Final[Knobs] = {"parallel": "data:{copies},pipeline:2", "micro_batches": 2}
_CODED: Final[Knobs] = {"codec_everywhere": True}

#: By factor and level, the knobs of a level, those of a mode beside it. Copies are workers, each of
#: as many ranks as it is cut into.
FACTORS: Final[Mapping[str, Mapping[str, Knobs]]] = {
    "mode": {
        "serial": {"mode": "serial"},
        "allreduce": {"mode": "allreduce"},
        "sync": {"mode": "sync"},
        "backup": {"mode": "sync:backup=1"},
        "async": {"mode": "async"},
        "ssp": {"mode": "ssp:staleness=1"},
        "softsync": {"mode": "softsync:k=2"},
        "local": {"mode": "local-sgd:local-steps=3"},
        "post-local": {"mode": f"{_OUTER},outer.momentum=0.9,post-local-epoch=1"},
        "streaming": {"mode": f"{_OUTER},fragments=2,sync-delay=1"},
        "eager": {"mode": f"{_OUTER},eager=true"},
        "learners": {"mode": "local-sgd:local-steps=3,quorum=2"},
        "windows": {"mode": f"{_WINDOW},outer=delayed-nesterov,outer.period=2"},
        "fragments": {"mode": "local-sgd:local-steps=4,fragments=2,sync-delay=1,quorum=2"},
        "teams": {"mode": "local-sgd:local-steps=3,quorum=2,learner-ranks=2"},
        "easgd": {"mode": "easgd:local-steps=2"},
        "easgd, asynchronous": {"mode": "easgd:local-steps=2,asynchronous=true"},
        "gossip": {"mode": "gossip"},
        "adapt first": {"mode": "gossip:order=adapt-then-combine"},
        "push-sum": {"mode": "gossip:variant=push-sum"},
        "tracking": {"mode": "gossip:variant=gradient-tracking"},
        "pairs": {"mode": "gossip:variant=pairs"},
        "by host": {"mode": "gossip:variant=by-host"},
    },
    "codec": {
        "none": {},
        "float16": _CODED | {"codec": "float16"},
        "int8": _CODED | {"codec": "int8:bucket=64"},
        "sign": _CODED | {"codec": "sign:bucket=64"},
        "top-k": _CODED | {"codec": "top-k:density=0.1"},
        "dgc": _CODED | {"codec": "dgc:density=0.1,warmup-epochs=1"},
        "low-rank": _CODED | {"codec": "low-rank:rank=2"},
        "demo": _CODED | {"codec": "demo:chunk=8,kept=4"},
    },
    "cut": {
        "whole": {},
        "optimizer": {"shard": "optimizer"},
        "gradients": {"shard": "gradients"},
        "parameters": {"shard": "parameters"},
        "gpipe": _STAGES | {"pipeline_schedule": "gpipe", "recompute": True},
        "1f1b": _STAGES | {"pipeline_schedule": "1f1b", "defer_weights": True},
        "interleaved": _STAGES | {"pipeline_schedule": "interleaved:2"},
        "zero-bubble": _STAGES | {"pipeline_schedule": "zero-bubble"},
        "pipedream": {"parallel": "data:{copies},pipeline:2", "pipeline_schedule": "pipedream"},
        "tensor": {"parallel": "data:{copies},tensor:2", "micro_batches": 2},
    },
    # How workers reach each other: by servers, sums or a graph.
    "way": {
        "nothing": {},
        "1 server": {"servers": 1, "shards_per_server": 1},
        "2 servers": {"servers": 2, "shards_per_server": 1, "placement": "last"},
        "2 servers, 2 shards each": {"servers": 2, "shards_per_server": 2},
        "node": {"allreduce": "node"},
        "ring": {"allreduce": "ring"},
        "tree": {"allreduce": "tree"},
        "all-pairs": {"allreduce": "all-pairs"},
        "graph ring": {"topology": "ring"},
        "graph star": {"topology": "star"},
        "graph full": {"topology": "full"},
    },
    "copies": {"1": {}, "2": {}, "3": {}, "5": {}},
    "data": {
        "iid": {},
        "by-label": {"partition": "by-label:2"},
        "dirichlet": {"partition": "dirichlet:0.4"},
    },
    "optimizer": {
        "sgd": {"optimizer": "sgd"},
        "nesterov": {"optimizer": "nesterov"},
        "adam": {"optimizer": "adam", "lr": 0.002},
    },
    "trim": {
        "none": {},
        "clip": {"clip_norm": 0.5},
        "decay": {"weight_decay": 0.01, "schedule": "cosine:warmup=0.7"},
    },
    "rate": {
        "constant": {},
        "inverse": {"staleness_rate": "inverse"},
        "drop": {"staleness_rate": "drop:limit=1"},
        "delay-compensated": {"staleness_rate": "delay-compensated"},
        "gap-aware": {"staleness_rate": "gap-aware"},
    },
    # What befalls it.
    "event": {
        "none": {},
        "late": {"inject": ("*:jitter:0.002", "0:pause:2:0.03")},
        "saves": {"checkpoint_every": 2, "keep": 1000},
        "is killed": {"checkpoint_every": 2, "resume": "auto"},
        "loses a worker": {},
    },
}  # fmt: skip

#: That servers merge as soon as a quorum has come.
LEARNERS: Final = ("learners", "windows", "fragments", "teams")
SERVED: Final = (
    "sync", "backup", "async", "ssp", "softsync", "easgd", "easgd, asynchronous", *LEARNERS,
)  # fmt: skip
#: Those that servers or sums average.
AVERAGED: Final = ("local", "post-local")
SUMMED: Final = ("allreduce", "streaming", "eager", *AVERAGED)
MIXED: Final = ("gossip", "adapt first", "push-sum", "tracking", "pairs", "by host")
#: Whose gradients servers apply to newer parameters.
STALE: Final = ("async", "ssp", "softsync")
#: Where what servers get may be stale.
RATED: Final = (*STALE, *LEARNERS)
SHARDS: Final = ("optimizer", "gradients", "parameters")
STAGES: Final = ("gpipe", "1f1b", "interleaved", "zero-bubble", "pipedream")
SPLIT: Final = (*STAGES, "tensor")


class Rule(NamedTuple):
    """What does not go together."""

    #: The factors that it is about.
    factors: tuple[str, ...]
    #: Whether it forbids levels of these.
    forbids: Callable[..., bool]
    #: What the refusal names: one of these.
    names: tuple[str, ...]


def _way_of(mode: str, way: str) -> bool:
    """Return whether a mode has such a way."""
    if "server" in way:
        # Fragments are shards.
        return mode in (*SERVED, *AVERAGED) and (mode != "fragments" or "shards" not in way)
    if way.startswith("graph"):
        return mode in MIXED
    return way == "nothing" or mode in (*SUMMED, "teams")


RULES: Final[Sequence[Rule]] = (
    Rule(("mode", "way"), lambda mode, way: not _way_of(mode, way),
         ("--servers", "--shards-per-server", "--placement", "--allreduce", "topology")),
    Rule(("mode", "copies"), lambda mode, copies: mode == "serial" and copies != "1",
         ("--mode serial",)),
    Rule(("mode", "copies"), lambda mode, copies: mode == "backup" and copies == "1",
         ("--mode sync:backup=1",)),
    Rule(("mode", "copies"), lambda mode, copies: mode == "softsync" and copies == "1",
         ("--mode softsync:k=2",)),
    Rule(("mode", "copies"), lambda mode, copies: (mode in LEARNERS and copies == "1") or (
         mode == "windows" and copies == "2"), ("--mode local-sgd:",)),
    Rule(("mode", "codec"), lambda mode, codec: codec != "none" and mode in (
         "serial", "push-sum", "tracking", "pairs", "by host"), ("--codec",)),
    # A momentum of differences, or of a force.
    Rule(("mode", "codec"), lambda mode, codec: codec in ("dgc", "demo") and mode in (
         "easgd", "easgd, asynchronous", "gossip", "adapt first"), ("--codec",)),
    Rule(("mode", "cut"), lambda mode, cut: cut in SHARDS and mode != "allreduce", ("shard",)),
    Rule(("mode", "cut"), lambda mode, cut: cut in SPLIT and mode in (
         "serial", "backup", "pairs", "by host", "fragments", "teams"),
         ("--parallel",)),
    Rule(("mode", "cut"), lambda mode, cut: cut == "pipedream" and mode in LEARNERS,
         ("--parallel",)),
    Rule(("codec", "cut"), lambda codec, cut: codec != "none" and cut in SHARDS, ("shard=",)),
    # What a schedule adds as it would add numbers goes by all of them.
    Rule(("codec", "way"), lambda codec, way: codec != "none" and (way == "node" or (
         way in ("tree", "ring") and codec not in ("float16", "low-rank"))), ("--allreduce",)),
    # In which no worker owns a part of the sum.
    Rule(("cut", "way"), lambda cut, way: cut in SHARDS and way in ("tree", "all-pairs"),
         ("shard=",)),
    Rule(("cut", "way"), lambda cut, way: cut == "parameters" and way == "node", ("shard=",)),
    # Each part has servers of its own, as many as the others, unless they merge some copies.
    Rule(("mode", "cut", "way", "copies"), lambda mode, cut, way, copies: cut in SPLIT
         and way == "1 server" and not (mode in LEARNERS and int(copies) > 2), ("--servers",)),
    Rule(("cut", "trim"), lambda cut, trim: trim == "clip" and cut in (
         "gradients", "parameters", "pipedream"), ("--clip-norm",)),
    Rule(("mode", "rate"), lambda mode, rate: rate != "constant" and mode not in RATED,
         ("--staleness-rate",)),
    # Its quorum is all of them.
    Rule(("mode", "copies", "rate"), lambda mode, copies, rate: rate != "constant"
         and mode in LEARNERS and copies == "2", ("--staleness-rate",)),
    Rule(("cut", "rate"), lambda cut, rate: cut == "pipedream" and rate in (
         "delay-compensated", "gap-aware"), ("--staleness-rate",)),
    # The four labels want two copies, or more.
    Rule(("copies", "data"), lambda copies, data: copies == "1" and data == "by-label",
         ("--partition",)),
    Rule(("mode", "event"), lambda mode, event: mode == "eager" and event in ("saves", "is killed"),
         ("--checkpoint-every",)),
    Rule(("cut", "data", "event"), lambda cut, data, event: cut == "pipedream" and data != "iid"
         and event in ("saves", "is killed"), ("--checkpoint-every", "--resume")),
    Rule(("mode", "cut", "event"), lambda mode, cut, event: cut in SPLIT and event in (
         "saves", "is killed") and mode in (*STALE, "easgd, asynchronous"),
         ("--checkpoint-every",)),
    # Odd cycles.
    Rule(("mode", "way", "copies"), lambda mode, way, copies: mode == "pairs" and copies in (
         "3", "5") and way in ("nothing", "graph ring", "graph full"), ("variant=pairs",)),
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A level of each factor, in their order, and knobs that are no level of any."""

    levels: tuple[str, ...]
    more: tuple[tuple[str, Any], ...] = ()

    def __getitem__(self, factor: str) -> str:
        return self.levels[list(FACTORS).index(factor)]

    def __str__(self) -> str:
        plain = [next(iter(levels)) for levels in FACTORS.values()]
        told = [it for it, usual in zip(self.levels, plain, strict=True) if it != usual]
        return ", ".join([*told, *(f"{name} {value}" for name, value in self.more)])

    @property
    def by_factor(self) -> dict[str, str]:
        """Its levels."""
        return dict(zip(FACTORS, self.levels, strict=True))

    def but(self, **levels: str) -> Job:
        """Return this job with other levels of some factors."""
        return Job(tuple(levels.get(name, self[name]) for name in FACTORS), self.more)

    @property
    def copies(self) -> int:
        """The number of whole models, W."""
        return int(self["copies"])

    @property
    def workers(self) -> int:
        """The number of ranks that compute."""
        return self.copies * (2 if self["cut"] in SPLIT or self["mode"] == "teams" else 1)

    @property
    def hosts(self) -> tuple[int, ...]:
        """The ranks of each host, of which the first has two; empty for one host."""
        if self["mode"] != "by host":
            return ()
        return (2, *[1] * (self.workers - 2)) if self.workers > 1 else (1,)

    @property
    def served(self) -> bool:
        """Whether it has servers."""
        return self["mode"] in SERVED or "server" in self["way"]

    @property
    def in_order(self) -> bool:
        """Whether its bits are the same whoever comes first."""
        return self["mode"] not in (*RATED, "backup", "easgd, asynchronous", "pairs")

    @property
    def saves(self) -> bool:
        """Whether it makes checkpoints."""
        return self["event"] in ("saves", "is killed")

    @property
    def undisturbed(self) -> bool:
        """Whether it runs from its start to its end at once, if perhaps with somebody late."""
        return self["event"] in ("none", "late")

    @property
    def codec(self) -> str:
        """Its codec, of the table or on top."""
        return str(dict(self.more).get("codec", self["codec"]))

    @property
    def stops_alone(self) -> bool:
        """Whether its workers stop for a checkpoint at steps of their own."""
        return self.saves and not self.in_order

    @property
    def may_lose_a_member(self) -> bool:
        """Whether somebody dies for good; of some jobs none is left, others start again."""
        if self["event"] == "is killed":
            return self["mode"] in MIXED and self["cut"] not in SPLIT
        return self["event"] == "loses a worker"

    @property
    def is_possible(self) -> bool:
        """Whether no rule forbids it."""
        return refused_by(self.by_factor) is None

    def knobs(self, **more: Any) -> Knobs:
        """Return what is given to a ``TrainConfig``; what is None is not given."""
        found = dict(BASE)
        for name, level in zip(FACTORS, self.levels, strict=True):
            found |= FACTORS[name][level]
        if self["mode"] == "fragments" and "shards" not in self["way"]:
            found.pop("shards_per_server", None)
        if self["mode"] in MIXED and self["codec"] == "low-rank":
            found["consensus_rate"] = 0.1
        if self["mode"] == "allreduce" and self["cut"] != "parameters":
            found["check_every"] = 1
        if "parallel" in found:
            found["parallel"] = found["parallel"].format(copies=self.copies)
        found |= dict(self.more) | more
        return together({name: value for name, value in found.items() if value is not None})

    def config(self, out: Path | None, **more: Any) -> TrainConfig:
        """Return its config.

        Args:
            out: the folder of its files; None for none, without which there are no checkpoints.
            more: other knobs; None takes one away.
        """
        own: Knobs = {"out": None if out is None else str(out)}
        if out is None:
            own |= {"overwrite": None, "checkpoint_every": None, "keep": None, "resume": None}
        return TrainConfig(**self.knobs(**own | more))

    def scenario(self, **more: Any) -> Scenario:
        """Return the rest of it: who computes for how long, and dies."""
        own: dict[str, Any] = {"costs": VirtualCosts(compute="lognormal:0.001:0.5")}
        if self["event"] == "loses a worker":
            own["crashes"] = ((self.workers - 1, 0.002),)
        if self["event"] == "is killed":
            event = 60.0 if self.workers > 1 else 20.0  # in the middle
            own |= {"faults": (Fault("crash", (("rank", 0),), EVENT, event),), "restarts": 3}
        return Scenario(self.workers, hosts=self.hosts, **own | more)


def refused_by(levels: Mapping[str, str], rules: Sequence[Rule] = RULES) -> Rule | None:
    """Return the first rule that forbids levels, of some factors or of all."""
    for rule in rules:
        if all(it in levels for it in rule.factors) and rule.forbids(
            *(levels[it] for it in rule.factors)
        ):
            return rule
    return None


#: What levels are in kind, of the factors whose triples are covered.
KINDS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "mode": {
        "serial": ("serial",), "summed": ("allreduce",), "rounds": ("sync", "backup"),
        "stale": STALE, "averaged": (*AVERAGED, "streaming", "eager"),
        "learners": LEARNERS, "elastic": ("easgd", "easgd, asynchronous"), "mixed": MIXED,
    },
    "codec": {
        "none": ("none",), "rounds": ("float16", "int8"),
        "keeps back": ("sign", "top-k", "low-rank"), "momentum": ("dgc", "demo"),
    },
    "cut": {
        "whole": ("whole",), "shards": SHARDS, "stages": tuple(set(STAGES) - {"pipedream"}),
        "stale stages": ("pipedream",), "slices": ("tensor",),
    },
}  # fmt: skip
TABLE: Final = Path(__file__).with_name("jobs.tsv")
AGAIN: Final = "make the table of jobs again, in the folder tests: python -m support.jobs"


def kind_of(factor: str, level: str) -> str:
    """Return what a level is in kind."""
    found = [kind for kind, levels in KINDS[factor].items() if level in levels]
    assert found, f"{level} is of no kind of {factor}: add it to KINDS"
    return found[0]


def plain(**levels: str) -> Job:
    """Return the plainest job with these levels, of which there is one."""
    job = plainest(levels)
    assert job is not None, f"no job has {levels}"
    return job


def plainest(levels: Mapping[str, str], rules: Sequence[Rule] = RULES) -> Job | None:
    """Return the plainest job with these levels that no rule forbids; None if there is none.

    Level by level, back where a rule forbids what is chosen.
    """

    def completed(chosen: dict[str, str], left: list[str]) -> dict[str, str] | None:
        if refused_by(chosen, rules) is not None:
            return None
        if not left:
            return chosen
        for level in _FROM_PLAIN[left[0]]:
            if (found := completed(chosen | {left[0]: level}, left[1:])) is not None:
                return found
        return None

    found = completed(dict(levels), [it for it in FACTORS if it not in levels])
    return None if found is None else Job(tuple(found[it] for it in FACTORS))


#: By factor, its levels in the order in which ``plain`` tries them.
_FROM_PLAIN: Final = {
    name: [*sorted(levels, key=lambda it: it != "3")] if name == "copies" else list(levels)
    for name, levels in FACTORS.items()
}


@functools.cache
def covering() -> tuple[Job, ...]:
    """Return the jobs of the covering array."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    assert lines[0].split("\t") == list(FACTORS), AGAIN
    return tuple(Job(tuple(line.split("\t"))) for line in lines[1:])


def of_rows() -> Iterator[Job]:
    """Yield a job for every row of a registry that is no level of a factor."""
    served, summed = (
        plain(mode=it, way=way) for it, way in (("sync", "2 servers"), ("allreduce", "all-pairs"))
    )
    known = {
        str(it).partition(":")[0]
        for levels in FACTORS.values()
        for knobs in levels.values()
        for it in knobs.values()
    }

    def new(names: Iterable[str]) -> Iterator[str]:
        return (it for it in names if it not in known)

    for codec in new(CODEC_ROWS):
        for job in (served, summed, plain(mode="gossip")):
            if job["mode"] != "gossip" or CODEC_ROWS[codec].sends_differences:
                yield replace(job, more=(("codec", codec), ("codec_everywhere", True)))
    for name in new(OPTIMIZERS):
        for job in (served, plain(mode="allreduce", cut="optimizer")):
            yield replace(job, more=(("optimizer", name),))
    for name in new(STALENESS_RATES):
        yield replace(plain(mode="async", way="2 servers"), more=(("staleness_rate", name),))
    turns = itertools.cycle((plain(mode="allreduce"), plain(mode="local", copies="5")))
    for name, job in zip(new(ALGORITHMS), turns, strict=False):
        yield replace(job, more=(("allreduce", name),))
    for name in new(TOPOLOGIES):
        four = plain(mode="gossip", cut="gpipe", copies="2")  # stages: graphs are of four nodes
        yield replace(four, more=(("topology", name), ("parallel", "data:4,pipeline:1")))
    for tuned in (
        served, summed, plain(mode="allreduce", cut="optimizer"),
        plain(mode="local", event="is killed"), plain(mode="async", event="late"),
        plain(mode="teams"), plain(mode="easgd"),
    ):  # fmt: skip
        yield replace(tuned, more=(("tune", True),))
    for name in new(it.name for it in PIPELINES.values() if not it.chunked):
        yield replace(plain(mode="allreduce", cut="gpipe"), more=(("pipeline_schedule", name),))


#: The jobs of which the laws hold.
JOBS: Final = (*covering(), *of_rows()) if TABLE.exists() else ()


@dataclass(frozen=True)
class Ran:
    """What came of a job in virtual time."""

    #: The folder of its files.
    out: Path
    #: The run; None where it ended with an error.
    run: SimulatedRun | None
    error: PsrtError | None = None
    #: The lines for the user.
    said: Sequence[str] = ()


def ran(job: Job, out: Path, scenario: Scenario | None = None, **more: Any) -> Ran:
    """Run a job in virtual time.

    Args:
        job: the job.
        out: of its files.
        scenario: in place of its own.
        more: other knobs; None takes one away.
    """
    said: list[str] = []
    config = job.config(out, **{"record": True, **more})
    try:
        run = run_in_virtual_time(config, scenario or job.scenario(), say=said.append)
    except ConfigError:
        raise
    except PsrtError as error:
        return Ran(out, None, error, said)
    return Ran(out, run, None, said)


def make_covering() -> list[list[str]]:
    """Return the rows of the array, by a library; in a minute."""
    import covertable

    factors = {name: list(levels) for name, levels in FACTORS.items()}
    constraints = [
        {
            "operator": "fn",
            "requires": list(rule.factors),
            "evaluate": lambda row, rule=rule: not rule.forbids(*(row[it] for it in rule.factors)),
        }
        for rule in RULES
    ]
    for factor, kinds in KINDS.items():
        kind = f"kind of {factor}"
        factors[kind] = list(kinds)
        constraints.append({
            "operator": "fn",
            "requires": [factor, kind],
            "evaluate": lambda row, factor=factor, kind=kind: (
                kind_of(factor, row[factor]) == row[kind]
            ),
        })  # fmt: skip
    triple = {"fields": [f"kind of {factor}" for factor in KINDS], "strength": 3}
    rows = covertable.make(factors, strength=2, constraints=constraints, sub_models=[triple])
    return sorted([row[name] for name in FACTORS] for row in rows)


if __name__ == "__main__":
    found = make_covering()
    TABLE.write_text("".join("\t".join(row) + "\n" for row in [list(FACTORS), *found]))
    print(f"{TABLE.name} has {len(found)} jobs")
