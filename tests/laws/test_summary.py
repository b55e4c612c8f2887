"""Law: what a run says of itself is what its parameters, its messages and its events make it.

Promised in docs/library.md, "What a run leaves behind", and in docs/history.md. What the events do
say, ``psrt check`` adds up by the folds that a run has, by the law of contracts; here it is added
up plainly. Seen red: an accuracy of other data, bytes between stages that are counted at one end,
waiting that a report leaves out, a drop that is not counted.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from psrt.history.check.run import check_run
from psrt.history.reading import read_cells
from psrt.job.problems import supervised_problem
from psrt.simulation.cost_flags import VirtualCosts
from support.jobs import FACTORS, SERVED, SPLIT, Job, Ran, plain, ran, refused_by
from support.reference import Network

#: Kinds of events, as docs/history.md numbers them.
READ, REDUCED, LEAVE, OFFER, TAKE, MIX, APPLY, DROP, MESSAGE = 1, 5, 6, 13, 14, 15, 18, 19, 30
#: Flag of a READ after a stop for a checkpoint.
PARKED = 1
#: Flag of a MESSAGE that was received.
CAME = 2


def of(events: Any, *kinds: int) -> Any:
    return events[np.isin(events["kind"], kinds)]


def tells_others_by_hand(job: Job) -> bool:
    """Slices sum, and parts of a norm are added, without an event."""
    return job["cut"] == "tensor" or (job["cut"] in SPLIT and job["trim"] == "clip")


def quality_of(job: Job, ran: Ran) -> dict[str, Any]:
    """Return how good the parameters at the end are."""
    config = job.config(None)
    data = supervised_problem(config, workers=1).data
    knobs = {name: getattr(config, name) for name in ("hidden", "activation", "loss")}
    network = Network(knobs, data.x_train.shape[1], data.classes)
    loss, right = network.evaluate(ran.run.theta.astype(float), data.x_test, data.y_test)
    return {"test_loss": pytest.approx(loss, rel=1e-5), "test_accuracy": pytest.approx(right)}


def check_figures(job: Job, ran: Ran) -> None:
    """Check loss and accuracy, and the bytes and the waiting of what no server tells."""
    (header, parts), told = read_cells(ran.out), json.loads((ran.out / "summary.json").read_text())
    due = quality_of(job, ran)
    due["parameters_sha256"] = hashlib.sha256(ran.run.theta.astype("<f4").tobytes()).hexdigest()
    if not tells_others_by_hand(job):
        cells = parts[: max(1, len(header.cells))]  # the first workers of copies have servers, too
        messages = [of(it, MESSAGE) for part in cells for it in part.workers]
        reads = [of(it, READ) for it in parts[-1].workers if header.has_whole_servers]
        scattered = sum(np.count_nonzero(it["shard"] == 0) - 1 for it in reads)
        averaged = 2 * 4 * scattered * (header.n - parts[0].header.n)
        for name, came in (("cut_bytes_sent", 0), ("cut_bytes_received", CAME)):
            due[name] = averaged + int(
                sum(it["progress"][(it["flag"] & CAME) == came].sum() for it in messages)
            )
    assert {name: told[name] for name in due} == due
    if not job.served:
        # Of each worker, all parts of it.
        events = [it for own in zip(*(part.workers for part in parts), strict=True) for it in own]
        waits = (of(it, REDUCED, MIX, OFFER, LEAVE)["seconds"] for it in events)
        waited = pytest.approx([float(it.sum(dtype=float)) for it in waits], rel=1e-5)
        assert [it["seconds"] for it in told["waiting"]] == waited
        causes = [f"for_{it}" for it in ("workers", "server", "messages", "reduce")]
        assert [sum(it[cause] for cause in causes) for it in told["waiting"]] == waited


def of_ages(taus: list[int]) -> dict[str, Any]:
    return {
        "mean": pytest.approx(sum(taus) / len(taus) if taus else 0.0),
        "max": max(taus, default=0),
        "histogram": {str(tau): count for tau, count in Counter(taus).items()},
    }


def check_counts(job: Job, ran: Ran) -> None:
    """Check staleness, gaps, skew and drops against plain sums over the events.

    Where stages count how stale gradients are, events of servers say something else.
    """
    (header, parts), told = read_cells(ran.out), json.loads((ran.out / "summary.json").read_text())
    own = [it for part in parts for it in part.shards]
    assert told["dropped"] == sum(len(of(it, DROP)) for it in own)
    if job["cut"] == "pipedream":
        return
    used = [it[it["worker"] >= 0] for it in (of(it, APPLY) for it in own)]
    gaps, skews = [it["gap"] for it in used], []
    if job["mode"] == "pairs":
        workers = [it for part in parts for it in part.workers]
        used, gaps = [of(it, TAKE) for it in workers], [of(it, MIX)["gap"] for it in workers]
    else:
        assert told["staleness"]["by_shard"] == [of_ages(it["tau"].tolist()) for it in used]
    for part in parts[-1:] if header.has_whole_servers else parts:
        for events in part.workers:
            reads = of(events[(events["kind"] != READ) | (events["flag"] != PARKED)], READ)
            count = max(1, len(part.shards))
            edges = np.arange(count, len(reads), count)
            if job["mode"] == "fragments":  # one is adopted at a time
                edges = np.flatnonzero(np.diff(reads["time"])) + 1
            together = np.split(reads["version"], edges)[1:]
            skews += [int(np.ptp(it)) for it in together if len(it)]
    assert told["skew"] == of_ages(skews)
    assert told["skew_max"] == max(skews, default=0)
    taus = [tau for it in used for tau in it["tau"].tolist()]
    counts = Counter(taus)
    assert told["staleness"]["histogram"] == [counts[i] for i in range(1 + max(counts, default=-1))]
    assert told["staleness"]["mean"] == of_ages(taus)["mean"]
    measured = np.concatenate([*gaps, np.zeros(0)])
    measured = measured[~np.isnan(measured)]
    assert told["staleness"]["gap"] == {
        "count": len(measured),
        "mean": pytest.approx(measured.mean() if len(measured) else 0.0, rel=1e-5),
        "max": pytest.approx(measured.max(initial=0.0), rel=1e-5),
    }


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


@pytest.mark.parametrize("check", [check_figures, check_counts, check_saved])
def test_what_a_run_says_of_itself(job, result, check):
    ran = result(job)
    if ran.run is None:
        assert job["event"] == "loses a worker"
        return
    check(job, ran)


@pytest.mark.parametrize(("mode", "event"), [
    (mode, event) for mode in FACTORS["mode"] for event in ("late", "saves")
    if mode != "serial" and refused_by({"mode": mode, "event": event}) is None
])  # fmt: skip
def test_what_a_run_of_many_out_of_step_says(mode, event, tmp_path):
    """Its lines are not of the steps at which all are, or are saved."""
    ways = ("2 servers, 2 shards each", "2 servers", "nothing")
    way = next(it for it in ways if refused_by({"mode": mode, "way": it}) is None)
    way = {"way": way} if mode in SERVED else {}
    job = plain(mode=mode, copies="5", data="dirichlet", event=event, **way)
    out_of_step = ran(job, tmp_path / "run", log_every=3)
    check_figures(job, out_of_step)
    outcome = check_run(out_of_step.out)
    assert outcome.ok, "\n".join(outcome.lines())


def test_what_who_is_left_alone_does_in_no_time_is_in_no_window(tmp_path):
    job = plain(mode="gossip", copies="2", event="loses a worker")
    costs = VirtualCosts(compute="constant:0", link="1e-3:1e5")
    alone = ran(job, tmp_path / "run", job.scenario(costs=costs, crashes=((1, 0.02),)))
    outcome = check_run(alone.out)
    assert outcome.ok, "\n".join(outcome.lines())


def test_a_window_is_a_wait_for_workers_though_for_none_of_them(tmp_path):
    job = plain(mode="windows", copies="5", way="1 server")
    waits = ran(job, tmp_path / "run").run.summary.waiting
    waited = sum(it.for_workers for it in waits)
    assert sum(it.for_server for it in waits) < 0.01 * waited
    assert sum(sum(it.waiting_for.values()) for it in waits) < 0.9 * waited
