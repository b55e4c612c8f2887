"""Histories of small runs in virtual time, and histories written as text.

A written history is a text with an event a line: its kind, then fields by their first letter, as in
``RECEIVE w1 c0 v0 m1``. Time goes on by a millisecond a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from psrt.config import TrainConfig, resolve
from psrt.core.partition import Span, even_spans
from psrt.history import EVENT, EventLog, Header, History, Kind
from psrt.history.events import UNUSED
from psrt.history.kinds import KINDS, Final
from psrt.history.log import Events
from psrt.history.reading import assemble
from psrt.job.gossip import topology_for
from psrt.job.provenance import history_header
from psrt.job.virtual import SimulatedRun, simulate
from support.knobs import together
from support.recording import COSTS as ALL_COSTS

#: What computing and sending may take.
COSTS = {name: costs for name, costs in ALL_COSTS.items() if name != "the last rank is slow"}

#: A row each: mode, knobs of the run, and the numbers of servers that it may have.
MODES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "sync": ("sync", {}, (1, 2, 3)),
    "sync, 2 shards each": ("sync", {"shards_per_server": 2}, (1, 2)),
    "one backup": ("sync:backup=1", {}, (1, 2, 3)),
    "one backup, 3 shards each": ("sync:backup=1", {"shards_per_server": 3}, (1,)),
    "two backups": ("sync:backup=2", {}, (1, 2)),
    "async": ("async", {}, (1, 2)),
    "async, drops": ("async", {"staleness_rate": "drop:limit=1"}, (1, 2)),
    "async, inverse": ("async", {"staleness_rate": "inverse"}, (1,)),
    "async, mean": ("async", {"staleness_rate": "mean-inverse"}, (1,)),
    "softsync 1, mean": ("softsync:k=1", {"staleness_rate": "mean-inverse"}, (2,)),
    "ssp 1, exponential": ("ssp:staleness=1", {"staleness_rate": "exponential"}, (1,)),
    "ssp 0": ("ssp:staleness=0", {}, (1, 2)),
    "ssp 1": ("ssp:staleness=1", {}, (1, 3)),
    "ssp 1, 2 shards each": ("ssp:staleness=1", {"shards_per_server": 2}, (2,)),
    "ssp 2, drops": ("ssp:staleness=2", {"staleness_rate": "drop:limit=1"}, (2,)),
    "softsync 1": ("softsync:k=1", {}, (1, 2)),
    "softsync 2": ("softsync:k=2", {"staleness_rate": "power"}, (1, 2)),
    "softsync 2, drops": ("softsync:k=2", {"staleness_rate": "drop:limit=1"}, (2,)),
    "local-sgd over servers": ("local-sgd:local-steps=2", {}, (1, 2)),
    "post-local over servers": ("local-sgd:local-steps=3,post-local-epoch=1", {}, (2,)),
    "local-sgd over 2 shards": ("local-sgd:local-steps=2", {"shards_per_server": 2}, (1,)),
    "local-sgd": ("local-sgd:local-steps=3", {}, (0,)),
    "post-local": ("local-sgd:local-steps=3,post-local-epoch=1", {}, (0,)),
    "outer": ("local-sgd:local-steps=2,outer=nesterov,outer.lr=0.7", {}, (0,)),
    "fragments": ("local-sgd:local-steps=3,fragments=2", {}, (0,)),
    "fragments, late": (
        "local-sgd:local-steps=4,fragments=3,sync-delay=2,outer=nesterov", {}, (0,),
    ),
    "late, post-local": ("local-sgd:local-steps=3,sync-delay=3,post-local-epoch=1", {}, (0,)),
    "eager": ("local-sgd:local-steps=2,eager=true,outer=nesterov,outer.lr=0.7", {}, (0,)),
    "eager, fragments, post-local": (
        "local-sgd:local-steps=3,eager=true,fragments=2,post-local-epoch=1", {}, (0,),
    ),
    "easgd": ("easgd:local-steps=2", {}, (1, 2)),
    "easgd over 2 shards": ("easgd:local-steps=3", {"shards_per_server": 2}, (1,)),
    "easgd, asynchronous": ("easgd:local-steps=2,asynchronous=true", {}, (1, 2)),
    "allreduce": ("allreduce", {}, (0,)),
    "serial": ("serial", {}, (0,)),
    "gossip": ("gossip", {}, (0,)),
    "gossip, adapt first": (
        "gossip:topology=one-peer-exponential,order=adapt-then-combine", {}, (0,),
    ),
    "gossip, pairs": ("gossip:topology=star,variant=pairs", {}, (0,)),
    "gossip, int8": ("gossip", {"codec": "int8", "codec_everywhere": True}, (0,)),
    "gossip, tracking": ("gossip:variant=gradient-tracking", {}, (0,)),
    "push-sum": ("gossip:topology=exponential,variant=push-sum,order=adapt-then-combine", {}, (0,)),
}  # fmt: skip


#: Codecs with knobs with which small problems do not diverge, and which show what it is.
SMALL_CODECS = {
    "random-k": "random-k:scaled=false,density=0.1",
    "top-k": "top-k:density=0.1",
    "dgc": "dgc:density=0.1,warmup-epochs=1",
    "demo": "demo:chunk=8,kept=4",
}


def codec_knobs(codec: str | None) -> dict[str, Any]:
    """Return the knobs of a small run with a codec; none without one."""
    return {} if codec is None else {"codec": SMALL_CODECS.get(codec, codec)}


class Kept(EventLog):
    """A log in memory."""

    def __init__(self) -> None:
        self.origin, self.queue = 0.0, []
        self.rows: list[tuple[Any, ...]] = []
        self._at, self._buffer = 0, cast(Any, self.rows)  # which is never so long as to be full

    @staticmethod
    def pack(rows: list[tuple[Any, ...]], at: int, *columns: Any) -> None:
        rows.append(columns)

    def kept(self) -> np.ndarray:
        self.drain()
        return np.array(self.rows, EVENT)


def record(
    kind: int, time: float, worker: int, clock: int, version: int, shard: int = -1,
    samples: int = 0, **columns: float,
) -> Events:  # fmt: skip
    """Return one event, of any kind, with any columns; ``EventLog.keep`` writes it."""
    own = {"kind": kind, "time": time, "worker": worker, "clock": clock, "version": version}
    values = UNUSED | own | {"shard": shard, "samples": samples} | columns
    return np.array([tuple(values[name] for name in EVENT.names or ())], EVENT)


class Recorded(NamedTuple):
    history: History
    run: SimulatedRun


def recorded(
    config: TrainConfig,
    problem: Any,
    *,
    workers: int,
    seed: int = 0,
    costs: str = "exponential",
    crashes: Sequence[tuple[int, float]] = (),
    hosts: Sequence[int] = (),
) -> Recorded:
    """Train in virtual time and return the history, with what was saved at the end.

    Args:
        config: need not be resolved.
        problem: the model and data.
        workers: their number.
        seed: of the order of events.
        costs: a name in ``COSTS``.
        crashes: (worker, seconds) each.
        hosts: the number of workers of each; empty for one.
    """
    log = Kept()
    if config.scheme.streams:
        problem = _InLayers(problem)
    run = simulate(
        config, problem, workers=workers, seed=seed, costs=COSTS[costs] if not hosts else None,
        log=log, crashes=crashes, hosts=hosts,
    )  # fmt: skip
    final = log.adder((False, 0), Final)
    for shard, server in enumerate(run.servers):
        final(run.seconds, -1, server.shard.version, shard)
    if not run.servers:
        final(run.seconds, 0, run.workers[0].strategy.updates)
    role_map = run.world.role_map
    chosen = resolve(config, ranks=role_map.size)
    if chosen.shards_per_server is not None:
        chosen = replace(chosen, shards_per_server=run.summary.shards_per_server)
    places = [host for host, ranks in enumerate(hosts) for _ in range(ranks)] or [0] * workers
    header = history_header(
        chosen, role_map, initial=np.zeros(role_map.n, np.float32),
        problem=None, files=(), simulated=True,
        topology=topology_for(chosen, places, edges=None),
        crashes=tuple({worker for worker, _ in crashes}),
        hosts=tuple(places) if hosts else (),
    )  # fmt: skip
    if config.scheme.streams:
        layers = tuple((it.start, it.stop) for it in even_spans(role_map.n, 4))
        header = replace(header, layers=layers)
    return Recorded(assemble(header, [log.kept()]), run)


class _InLayers:
    """A problem whose parameters are those of four layers."""

    def __init__(self, problem: Any) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def gradient_spans(self) -> Sequence[Span]:
        return even_spans(self._problem.initial().size, 4)[::-1]

    def loss_and_grad(self, theta: Any, batch: Any, out: Any, ready: None) -> float:
        loss: float = self._problem.loss_and_grad(theta, batch, out)
        return loss


def config_of(name: str, servers: int, **more: Any) -> TrainConfig:
    """Return the config of a row of ``MODES``."""
    mode, own, _ = MODES[name]
    knobs: dict[str, Any] = (
        {"optimizer": "sgd", "lr": 0.5, "epochs": 2, "batch_size": 1} | own | more
    )
    return TrainConfig(servers=servers, **together({"mode": mode} | knobs))


def shards_of(config: TrainConfig) -> int:
    """Return the number of shards of a config; 1 without servers or a number."""
    each = config.shards_per_server
    return max(1, (config.servers or 0) * (each if isinstance(each, int) else 1))


def written(
    text: str,
    mode: str,
    *,
    workers: int,
    servers: int = 1,
    simulated: bool = True,
    crashes: tuple[int, ...] = (),
    **knobs: Any,
) -> History:
    """Return the history that a text tells of; no knob is checked, so that any can be tried."""
    config = resolve(
        TrainConfig(servers=servers, lr=0.1, batch_size=1, **together({"mode": mode} | knobs)),
        ranks=workers + servers,
    )
    header = header_of(config, workers, servers, simulated=simulated, crashes=crashes)
    return assemble(header, [events_of(text)])


def header_of(config: Any, workers: int, servers: int, **more: Any) -> Header:
    """Return a header of so many ranks, the servers first."""

    spans = tuple((shard, shard + 1) for shard in range(servers))
    return Header(
        config=config.plain() | ({"shards_per_server": 1} if servers else {}),
        n=max(servers, 1),
        workers=tuple(range(servers, servers + workers)),
        servers=tuple(range(servers)),
        spans=spans,
        initial_sha256="",
        data_sha256="",
        code_sha256="",
        psrt="0",
        numpy="0",
        files=(),
        **more,
    )


#: Kind that has a duration → the kind since which it counts.
_SINCE = {Kind.READ: Kind.PUSH, Kind.PUSH: Kind.READ, Kind.REDUCED: Kind.REDUCE}
_FIELDS = {
    "w": "worker", "c": "clock", "v": "version", "s": "shard", "m": "samples", "t": "tau",
    "r": "rate", "f": "flag", "p": "progress", "x": "weight", "g": "gap", "d": "seconds",
    "@": "time",
}  # fmt: skip


def events_of(text: str) -> np.ndarray:
    """Return the events that a text tells of."""
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    lines = [words for words in lines if words]
    events = np.zeros(len(lines), EVENT)
    for i, (kind, *fields) in enumerate(lines):
        event = events[i : i + 1]
        event["kind"], event["gap"], event["time"] = Kind[kind], math.nan, i / 1000
        for field, unused in UNUSED.items():
            if field not in KINDS[Kind[kind]].columns():
                event[field] = unused
        if kind in ("REDUCE", "REDUCED"):
            event["shard"] = UNUSED["shard"]  # but for fragments
        if "w-1" not in fields and kind in ("PUSH", "RECEIVE", "APPLY", "STEP", "DROP", "REDUCE"):
            event["samples"] = 1
        if "w-1" not in fields and kind in ("APPLY", "STEP", "REDUCED"):
            event["rate"] = 0.1
        if kind == "FINAL" and i:  # all is written when the run ends
            event["time"] = events["time"][:i][events["kind"][:i] != Kind.FINAL].max()
        if kind == "FINAL":
            event["worker"] = 0 if "s-1" in fields else -1
        for field in fields:
            event[_FIELDS[field[0]]] = float(field[1:]) if "." in field else int(field[1:])
        _fill_duration(events, i)
    return events


def _fill_duration(events: np.ndarray, i: int) -> None:
    """Say how long an event took, if it says nothing and its kind says so."""
    event, kind = events[i], Kind(int(events[i]["kind"]))
    before = events[:i]
    if kind == Kind.STEP:  # since whatever its worker did before, or the beginning
        before = before[(before["worker"] == event["worker"]) & (before["kind"] <= Kind.LEAVE)]
        since = before["time"][-1:].sum()
    else:
        before = before[before["kind"] == _SINCE.get(kind)]
        for field in ("worker", "shard"):
            before = before[before[field] == event[field]]
        since = before["time"][-1] if len(before) else event["time"]
    if not event["seconds"]:
        event["seconds"] = event["time"] - since


def altered(events: Events, at: int, how: str) -> Events:
    """Return events of which one is changed: gone, twice there, or another number in a column.

    Args:
        events: of a run with 3 workers.
        at: which one.
        how: ``gone``, ``twice``, or a column's name.
    """
    if how == "gone":
        return np.delete(events, at)
    if how == "twice":
        return np.insert(events, at, events[at])
    changed = events.copy()
    if how == "worker":
        changed[how][at] = (changed[how][at] + 1) % 3
    elif how == "flag":
        changed[how][at] ^= 1
    else:
        changed[how][at] += 1
    return changed
