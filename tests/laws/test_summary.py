"""Law: the figures of a run are what its events and its parameters say.

Promised in docs/library.md, "What a run leaves behind", and in docs/history.md. They are added up
here once more, by nothing that psrt has: what ``psrt check`` asks shares its authors. Of the model
that is saved, so are loss and accuracy. Seen red: samples, staleness, drops, skew, clock spread and
bytes that are counted wrong by a worker, a shard or a port; waiting that a report leaves out, or
that a window has more of.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psrt.history.reading import read_cells
from psrt.job.problems import supervised_problem
from support.jobs import FACTORS, MIXED, SERVED, SPLIT, STALE, Job, Ran, plain, ran
from support.reference import Network, edges_of

#: Kinds of events, as docs/history.md numbers them.
READ, PUSH, STEP, REDUCED, LEAVE, ENCODE, OFFER, TAKE, MIX = 1, 2, 3, 5, 6, 7, 13, 14, 15
RECEIVE, APPLY, DROP, REPLY, LEFT, REPLY_ENCODE, PASS, MESSAGE = 16, 18, 19, 20, 21, 23, 29, 30
#: Flags: of READ and RECEIVE; of DROP; of OFFER and MIXED; of PASS; of MESSAGE.
PARKED, LOST, TRACKED, OF_HOST, FORWARD, CAME = 1, 2, 1, 4, 1, 2
#: Bytes of a message beside its vector.
ENVELOPE = 64

#: Modes whose neighbours send each other nothing but what OFFER tells, and farewells.
OFFERED = ("gossip", "adapt first", "tracking", "pairs")

Events = np.ndarray[Any, Any]


# --- what is not asked of which jobs ------------------------------------------------------------


def counts_in_stages(job: Job) -> bool:
    """Where servers wait for all, gradients are as stale as stages make them."""
    return job["cut"] == "pipedream" and job["mode"] not in STALE


def is_overtaken(job: Job) -> bool:
    """Whoever is overtaken past the end of an epoch tells of it with the next one."""
    return job["mode"] == "backup"


def tells_others_by_hand(job: Job) -> bool:
    """Slices sum, and parts of a norm are added, without an event."""
    return job["cut"] == "tensor" or (job["cut"] in SPLIT and job["trim"] == "clip")


# --- what the events say ------------------------------------------------------------------------


def of(events: Events, *kinds: int) -> Events:
    return events[np.isin(events["kind"], kinds)]


def counts(numbers: Iterable[Any]) -> dict[str, Any]:
    """Return how often each number occurs, as a summary has it."""
    found = Counter(int(it) for it in numbers)
    total = sum(found.values())
    return {
        "mean": pytest.approx(sum(k * v for k, v in found.items()) / max(1, total)),
        "max": max(found, default=0),
        "histogram": {str(k): found[k] for k in sorted(found)},
    }


def skew(read: dict[int, Any]) -> int:
    """Return by how much the versions of the shards differ in a read."""
    versions = [int(it["version"]) for it in read.values()]
    return max(versions) - min(versions)


@dataclass(frozen=True)
class Part:
    """The events of a part of a model that is cut, or of all of it."""

    job: Job
    workers: tuple[Events, ...]
    shards: tuple[Events, ...]
    #: Elements of each shard; of all without any.
    sizes: tuple[int, ...]
    #: On which neighbours are.
    topology: str | None

    @functools.cached_property
    def steps(self) -> list[dict[int, tuple[int, float]]]:
        """By worker and clock, the samples of a step that somebody was told of, and its progress.

        Workers tell of an epoch at its end; of the one that somebody died in nothing is known.
        """
        return [self._steps_of(events) for events in self.workers]

    def is_lost(self, events: Events) -> bool:
        """Return whether a worker has died: who comes to its end says so, where others ask."""
        return self.job.may_lose_a_member and not len(of(events, LEAVE))

    def _steps_of(self, events: Events) -> dict[int, tuple[int, float]]:
        found: dict[int, tuple[int, float]] = {}
        local = of(events, STEP)
        # Whoever is behind in a round with backups pushes a clock once more, without samples.
        for it in local if len(local) else of(events, PUSH):
            clock, samples = int(it["clock"]), int(it["samples"])
            found[clock] = max(samples, found.get(clock, (0,))[0]), float(it["progress"])
        if self.is_lost(events):
            last = int(max((at for _, at in found.values()), default=0.0))
            found = {clock: it for clock, it in found.items() if it[1] < last}
        return found

    @functools.cached_property
    def reads(self) -> list[tuple[int, int, dict[int, Any]]]:
        """Worker, clock and by shard the event of all that was read after a step."""
        found = []
        for worker, events in enumerate(self.workers):
            by_clock: dict[int, dict[int, Any]] = {}
            mine = of(events, READ)
            for it in mine[mine["flag"] != PARKED]:
                by_clock.setdefault(int(it["clock"]), {})[int(it["shard"])] = it
            found += [(worker, clock, read) for clock, read in by_clock.items() if clock > 0]
        return found

    @functools.cached_property
    def applied(self) -> list[Events]:
        """By shard, what was applied of whom."""
        found = [of(events, APPLY) for events in self.shards]
        return [it[it["worker"] >= 0] for it in found]

    def taus(self, worker: int, shard: int | None = None) -> list[int]:
        """Return the staleness of a worker's gradients, at one shard or all; or of its averages."""
        events = self.workers[worker]
        if self.job["mode"] == "pairs":
            return of(events, TAKE)["tau"].tolist()
        if counts_in_stages(self.job):
            passes = of(events, PASS)
            passes = passes[passes["flag"] == FORWARD]
            return (passes["clock"] - passes["version"]).tolist()
        shards = self.applied if shard is None else [self.applied[shard]]
        return [tau for it in shards for tau in it["tau"][it["worker"] == worker].tolist()]

    def gaps(self) -> list[float]:
        """Return how far parameters had moved under gradients, or were apart, as was measured."""
        pairs = [of(it, MIX) for it in self.workers] if self.job["mode"] == "pairs" else []
        if counts_in_stages(self.job):
            return []
        found = np.concatenate([it["gap"] for it in (*self.applied, *pairs)] or [np.zeros(0)])
        return found[~np.isnan(found)].tolist()

    def updates(self) -> int:
        """Return the updates of the shard, or worker, that has most."""
        if self.shards:
            return max(int(of(it, APPLY)["version"].max(initial=0)) for it in self.shards)
        if self.job["mode"] == "serial":
            return max(int((of(it, STEP)["samples"] > 0).sum()) for it in self.workers)
        if self.job["mode"] in MIXED:
            mixed = [of(it, MIX) for it in self.workers]
            return max(int(((it["flag"] & (TRACKED | OF_HOST)) == 0).sum()) for it in mixed)
        return max(int((of(it, REDUCED)["weight"] > 0).sum()) for it in self.workers)

    def spread(self) -> int:
        """Return how far a worker was ahead of the slowest, after a push and what it completed.

        In rounds nobody is behind: whom a round did not wait for goes on with the next one.
        """
        rounds, most = self.job["mode"] not in (*STALE, "easgd, asynchronous"), 0
        for events in self.shards:
            clocks, version, ahead = dict.fromkeys(range(len(self.workers)), 0), 0, 0
            for it in of(events, RECEIVE, APPLY, LEFT):
                if it["kind"] == APPLY:
                    version = int(it["version"]) * rounds
                elif it["kind"] == LEFT:
                    most = max(most, ahead)
                    clocks.pop(int(it["worker"]))
                elif it["flag"] != PARKED:
                    most = max(most, ahead)
                    # Whoever asks for the round after its own has not done a step.
                    asks = rounds and it["clock"] > it["version"]
                    clocks[int(it["worker"])] = int(it["clock"]) + (not asks)
                now = [max(clock, version) for clock in clocks.values()] or [0]
                ahead = max(now) - min(now)
            most = max(most, ahead)
        return most

    def torn(self) -> int:
        """Return the steps of the dead that some shards have and others lack."""
        total = 0
        for worker, mine in enumerate(self.workers):
            if not self.is_lost(mine):
                continue
            reached = []
            for events in self.shards:
                reached.append(0)
                for it in of(events[events["worker"] == worker], RECEIVE, DROP):
                    if it["kind"] == RECEIVE and it["samples"]:
                        reached[-1] = int(it["clock"]) + 1
                    elif it["kind"] == DROP and it["flag"] == LOST:
                        reached[-1] = int(it["clock"])
            total += max(reached, default=0) - min(reached, default=0)
        return total

    def served_bytes(self) -> int:
        """Return the bytes of all pushes, replies and farewells."""
        total = 0
        for events in self.workers:
            frames = {(it["shard"], it["clock"]): it["samples"] for it in of(events, ENCODE)}
            for it in of(events, PUSH):
                size = frames.get((it["shard"], it["clock"]), 4 * self.sizes[it["shard"]])
                total += ENVELOPE + int(size) * int(it["samples"] > 0)
            total += ENVELOPE * len(self.shards) * len(of(events, LEAVE))
        for size, events in zip(self.sizes, self.shards, strict=True):
            if self.job["mode"] == "backup":  # whoever asks for a newer version sends no push
                received = of(events, RECEIVE)
                total += ENVELOPE * int((received["clock"] > received["version"]).sum())
            frames = {(it["worker"], it["clock"]): it["samples"] for it in of(events, REPLY_ENCODE)}
            for it in of(events, REPLY):
                total += ENVELOPE + int(frames.get((it["worker"], it["clock"]), 4 * size))
        return total

    def offered_bytes(self) -> int:
        """Return the bytes of what neighbours sent each other, and of farewells."""
        total = 0
        for events in self.workers:
            offers = of(events, OFFER)
            total += int(offers["samples"].sum()) * 4 * self.sizes[0]
            total += int(offers["samples"][offers["flag"] != TRACKED].sum()) * ENVELOPE
        graphs = [edges_of(self.topology, len(self.workers), at) for at in range(9)]
        return total + ENVELOPE * int(np.any([it | it.T for it in graphs], axis=0).sum())

    def waited(self, worker: int) -> float:
        """Return the seconds that a worker waited."""
        events = self.workers[worker]
        if not self.shards:
            return float(of(events, REDUCED, MIX, OFFER, LEAVE)["seconds"].sum(dtype=float))
        pushes, total = of(events, PUSH), 0.0
        for one, clock, read in self.reads:
            if one == worker:
                pushed = pushes["time"][pushes["clock"] < clock].max()
                total += max(float(it["time"]) for it in read.values()) - pushed
        return total


@functools.lru_cache(maxsize=4)
def parts_of(job: Job, out: Path) -> list[Part]:
    """Return the events of each part."""
    return [
        Part(
            job,
            it.workers,
            it.shards,
            tuple(b - a for a, b in it.header.spans) or (it.header.n,),
            it.header.config["topology"],
        )
        for it in read_cells(out)[1]
    ]


def by_worker(parts: list[Part]) -> Iterator[tuple[Part, int]]:
    """Yield the part of each worker of the job, and its number there."""
    for worker in range(len(parts[0].workers)):
        for part in parts:
            yield part, worker


# --- the summary --------------------------------------------------------------------------------


def summary_of(job: Job, ran: Ran, parts: list[Part]) -> dict[str, Any]:
    """Return what the events say of what a summary has."""
    steps = [it for rows in parts[0].steps for it in rows.items()]
    samples, clocks = sum(it for _, (it, _) in steps), [clock for clock, _ in steps]
    seconds = max(float(it["time"].max()) for part in parts for it in part.workers)
    return {
        "workers": len(parts) * len(parts[0].workers),
        "samples": samples,
        "steps": max(clocks) + 1,
        "epochs": int(max(progress for _, (_, progress) in steps)) + 1,
        "updates": max(part.updates() for part in parts),
        "dropped": sum(len(of(it, DROP)) for part in parts for it in part.shards),
        "torn": sum(part.torn() for part in parts),
        "clock_spread_max": max(part.spread() for part in parts),
        "seconds": pytest.approx(seconds, abs=2e-6),
        "samples_per_second": pytest.approx(samples / seconds, rel=1e-3),
        "parameters": ran.run.theta.size,
        "parameters_sha256": hashlib.sha256(ran.run.theta.astype("<f4").tobytes()).hexdigest(),
    }


def staleness_of(job: Job, parts: list[Part]) -> dict[str, Any]:
    """Return the same of staleness, by worker, by shard and of all."""
    counted = bool(parts[0].shards) or job["mode"] == "pairs" or counts_in_stages(job)
    taus = [part.taus(worker) for part, worker in by_worker(parts)]
    every, gaps = [it for own in taus for it in own], [it for part in parts for it in part.gaps()]
    shards = [] if counts_in_stages(job) else [it for part in parts for it in part.applied]
    return {
        "mean": pytest.approx(float(np.mean(every)) if every else 0.0),
        "max": max(every, default=0),
        "histogram": np.bincount(every).tolist() if every else [],
        "by_worker": [counts(it) for it in taus] if counted else [],
        "by_shard": [counts(it["tau"]) for it in shards],
        "gap": {
            "count": len(gaps),
            "mean": pytest.approx(float(np.mean(gaps)) if gaps else 0.0),
            "max": pytest.approx(max(gaps, default=0.0)),
        },
    }


def bytes_of(job: Job, parts: list[Part]) -> dict[str, Any]:
    """Return the same of bytes, where events have them."""
    found: dict[str, Any] = {}
    if job.served:
        found["frame_bytes"] = sum(
            int(of(it, ENCODE)["samples"].sum()) for part in parts for it in part.workers
        )
        if not job.stops_alone:
            found["bytes_sent"] = sum(part.served_bytes() for part in parts)
    # The frames between neighbours, and what is said at a stop, are no events of so many bytes.
    elif job["mode"] in OFFERED and not (
        job.codec != "none" or job.stops_alone or job.may_lose_a_member
    ):
        found["bytes_sent"] = sum(part.offered_bytes() for part in parts)
    if "bytes_sent" in found and not job.may_lose_a_member:
        found["bytes_received"] = found["bytes_sent"]
    if not tells_others_by_hand(job):
        sent = [of(it, MESSAGE) for part in parts for it in part.workers]
        for name, came in (("cut_bytes_sent", 0), ("cut_bytes_received", CAME)):
            found[name] = int(sum(it["progress"][(it["flag"] & CAME) == came].sum() for it in sent))
    return found


def quality_of(job: Job, ran: Ran) -> dict[str, Any]:
    """Return how good the parameters at the end are."""
    config = job.config(None)
    data = supervised_problem(config, workers=1).data
    knobs = {name: getattr(config, name) for name in ("hidden", "activation", "loss")}
    network = Network(knobs, data.x_train.shape[1], data.classes)
    loss, right = network.evaluate(ran.run.theta.astype(float), data.x_test, data.y_test)
    return {"test_loss": pytest.approx(loss, rel=1e-5), "test_accuracy": pytest.approx(right)}


def causes_of(waiting: dict[str, Any]) -> float:
    return sum(waiting[f"for_{it}"] for it in ("workers", "server", "messages", "reduce"))


def check_summary(job: Job, ran: Ran) -> None:
    parts, told = parts_of(job, ran.out), json.loads((ran.out / "summary.json").read_text())
    reads = [] if counts_in_stages(job) else [read for it in parts for _, _, read in it.reads]
    due = {
        **summary_of(job, ran, parts),
        **bytes_of(job, parts),
        **quality_of(job, ran),
        "staleness": staleness_of(job, parts),
        "skew": counts(map(skew, reads)),
        "skew_max": max(map(skew, reads), default=0),
    }
    assert {name: told[name] for name in due} == due
    waited = pytest.approx([it.waited(worker) for it, worker in by_worker(parts)], rel=1e-5)
    assert [it["seconds"] for it in told["waiting"]] == waited
    assert [causes_of(it) for it in told["waiting"]] == waited


def check_saved(job: Job, ran: Ran) -> None:
    data = (ran.out / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:start])
    tensors.pop("__metadata__", None)
    for k in range(len(tensors) // 2):
        for name in ("weight", "bias"):
            a, b = tensors[f"layers.{k}.{name}"]["data_offsets"]
            tensors[k, name] = np.frombuffer(data[start + a : start + b], "<f4")
    saved = [it for name, it in tensors.items() if isinstance(name, tuple)]
    np.testing.assert_array_equal(np.concatenate(saved), ran.run.theta)


# --- the lines of the metrics -------------------------------------------------------------------


def line_of(job: Job, parts: list[Part], after: int, step: int) -> dict[str, Any]:
    """Return what the events say of a line.

    Args:
        job: of the line.
        parts: the events.
        after: the step of the line before.
        step: of this one.
    """
    found: dict[str, Any] = {}
    if not is_overtaken(job):
        rows = [it for rows in parts[0].steps for it in rows.items()]
        found["samples"] = sum(samples for clock, (samples, _) in rows if clock < step)
        ends = {int(at): clock for clock, (_, at) in sorted(rows)}
        found["epoch"] = sum(clock < step for clock in ends.values())
    if job["mode"] in (*STALE, "sync", "backup") and not counts_in_stages(job):
        reads = [it for part in parts for _, clock, it in part.reads if after < clock <= step]
        taus = [int(it["tau"]) for read in reads for it in read.values() if it["tau"] >= 0]
        found["staleness_mean"] = pytest.approx(np.mean(taus)) if taus else None
        found["staleness_max"] = max(taus, default=None)
        found["skew_max"] = max(map(skew, reads)) if taus else None
    return found


def check_lines(job: Job, ran: Ran) -> None:
    parts, told = parts_of(job, ran.out), json.loads((ran.out / "summary.json").read_text())
    lines = [json.loads(it) for it in (ran.out / "metrics.jsonl").read_text().splitlines()]
    after, since, samples, waited, sent = 0, 0.0, 0.0, 0.0, 0
    for line in lines:
        due = line_of(job, parts, after, line["step"])
        assert {name: line[name] for name in due} == due, line["step"]
        length = line["measured_seconds"] - since
        samples += (line["samples_per_second"] or 0.0) * length
        waited += (line["waiting_share"] or 0.0) * length * told["workers"]
        assert line["step"] > after
        assert sent <= line["bytes_sent"] <= told["bytes_sent"]
        after, since, sent = line["step"], line["measured_seconds"], line["bytes_sent"]
    names = ("step", "samples", "loss", "epoch")
    of_summary = [told[it] for it in ("steps", "samples", "train_loss", "epochs")]
    assert [lines[-1][it] for it in names] == of_summary
    assert samples == pytest.approx(told["samples"])
    if not job.may_lose_a_member:
        assert waited == pytest.approx(sum(it["seconds"] for it in told["waiting"]), rel=1e-5)


# --- of which jobs ------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [check_summary, check_saved, check_lines])
def test_what_a_run_says_of_itself(job, result, check):
    ran = result(job)
    if ran.run is None:
        assert job["event"] == "loses a worker"
        return
    check(job, ran)


@pytest.mark.parametrize("mode", [it for it in FACTORS["mode"] if it != "serial"])
def test_what_a_run_of_many_out_of_step_says(mode, tmp_path):
    way = {"way": "2 servers, 2 shards each"} if mode in SERVED else {}
    job = plain(mode=mode, copies="5", data="dirichlet", event="late", **way)
    out_of_step = ran(job, tmp_path / "run", log_every=3)
    for check in (check_summary, check_saved, check_lines):
        check(job, out_of_step)
