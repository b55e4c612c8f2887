"""Law: what a job ends with is what its equations make of its data, in float64.

Promised in docs/modes.md, docs/staleness.md and docs/gossip.md, to the equation. Seen red: Nesterov
without its look-ahead; a sum for the mean of softsync; 1/(τ + 1); another memory of gap-aware
rates; tracked gradients that are mixed after the step; averages that are weighted wrong; a fragment
that comes a step late; eager steps that count their own part twice; a centre that draws to another
place; a codec that keeps nothing back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from psrt.codec import CODECS as ROWS
from psrt.config import TrainConfig
from psrt.history.reading import read_cells
from psrt.job.problems import dealt_out, initial_parameters, supervised_problem
from support.cases import some
from support.jobs import FACTORS, JOBS, LEARNERS, RATED, SPLIT, STALE, Job, Ran, plain, ran
from support.reference import CODECS, Batch, Network, Reference, named

#: Of how far the parameters have moved, the part that tens of steps in float32 may be off by: each
#: rounds some hundred times by 2⁻²⁴.
TOLERANCE = 1e-4
#: The part of a vector that the codecs lose which keep nothing back, the last by stochastic steps
#: of a 127th of a bucket of 64. What is pushed loses it, and a mean on its way back.
LOSS = {
    "none": 0.0, "nonzero": 0.0, "float16": 2**-11, "bfloat16": 2**-8, "float8-e4m3": 2**-4,
    "float8-e5m2": 2**-3, "int8": 64**0.5 / 127,
}  # fmt: skip


#: Codecs of which nothing is said here: where a job ends with them nobody reckons anew.
#: ``support.codecs`` alone says what a frame decodes to.
UNTOLD = {"float4-e3m0", "qsgd", "ternary", "ternary-base3", "random-k", "low-rank", "dgc", "demo"}


def batches_of(config: TrainConfig, problem, workers: int) -> list[list[Batch]]:
    """Return by worker the batches of its steps, as psrt deals the data out."""
    deal, found = dealt_out(config, problem, workers=workers), []
    for worker in range(workers):
        found.append([])
        for epoch in range(int(config.epochs)):
            own = () if deal is None else (deal.batches(worker, epoch),)
            dealt = problem.batches(worker, workers, epoch, *own)
            for step, (x, labels) in enumerate(dealt):
                progress = epoch + step / len(dealt)
                found[-1].append(Batch(progress, x.copy(), labels.copy()))
    return found


def reference_of(job: Job, ran: Ran) -> Reference:
    """Return the same job for the oracle."""
    header, cells = read_cells(ran.out)
    given = job.config(None)
    problem = supervised_problem(given, workers=job.copies)
    copies = len(header.workers) // max(1, len(header.cells))
    batches = batches_of(given, problem, copies)
    network = Network(header.config, problem.data.x_train.shape[1], problem.data.classes)
    hosts, first = [], 0
    for ranks in job.hosts:
        hosts.append(range(first, first + ranks))
        first += ranks
    one = cells[-1] if len(cells) == 1 or header.has_whole_servers else None
    config, knobs = named(header.config)
    return Reference(
        config,
        network,
        initial_parameters(problem).astype(float),
        batches,
        hosts or [range(copies)],
        job.may_lose_a_member,
        () if one is None else one.workers,
        () if one is None else one.shards,
        () if one is None else one.header.spans,
        knobs,
    )


def loses_much(job: Job) -> bool:
    """What is far from what was given decides by itself where a job ends.

    Known is what pushes to servers make of it, where they keep back what they do not send.
    """
    known = job.codec in CODECS and job["mode"] in (*STALE, "sync", "backup")
    return job.codec not in LOSS and not (known and job.served and job["cut"] not in SPLIT)


def forgets_weights(job: Job) -> bool:
    """Stages that go on with older weights are another algorithm."""
    return job["cut"] == "pipedream"


def is_a_job_a_part(job: Job) -> bool:
    """Each part of a model that is cut has an order of its own, unless copies are learners."""
    return job["cut"] in SPLIT and not job.in_order and job["mode"] not in LEARNERS


def mourns_in_rounds(job: Job) -> bool:
    """What others make of the round that somebody dies in depends on what had arrived by then."""
    recorded = (*RATED, "sync", "backup", "pairs")
    return job.may_lose_a_member and (job["mode"] not in recorded or job["cut"] in SPLIT)


def stops_between_fragments(job: Job) -> bool:
    """When a learner stopped for a checkpoint, and adopted the newest fragments, nobody tells."""
    return job["mode"] == "fragments" and job.saves


def has_other_fragments(job: Job) -> bool:
    """A rank's two chunks are dealt out together, so fragments have other layers."""
    return job["mode"] == "streaming" and job["cut"] == "interleaved"


def is_told(job: Job) -> bool:
    """Return whether the oracle knows all that a job does, but for what a codec loses."""
    unknown = (
        *(forgets_weights, is_a_job_a_part, mourns_in_rounds),
        *(stops_between_fragments, has_other_fragments),
    )
    return not any(it(job) for it in unknown)


def is_told_with_its_codec(job: Job) -> bool:
    """Return whether it knows that, too."""
    return is_told(job) and not loses_much(job)


def holds(job: Job, ran: Ran) -> bool:
    """Hold the parameters at the end against the oracle's; return whether there are any."""
    if ran.run is None:
        return False
    reference = reference_of(job, ran)
    found, due = ran.run.theta.astype(float), reference.end()
    moved = np.linalg.norm(due - reference.start)
    assert moved > 1e-3, "nothing is learnt"
    off = np.linalg.norm(found - due) / moved
    most = TOLERANCE + 2 * LOSS.get(job.codec, 0.0)
    assert off < most, f"{off:.1e} of what the parameters have moved by"
    return True


def test_of_every_codec_it_is_said_whether_the_oracle_knows_it():
    """A new one wants a line in ``LOSS``, or in ``CODECS`` of ``support.reference``."""
    assert UNTOLD.isdisjoint({*LOSS, *CODECS})
    assert {*LOSS, *CODECS, *UNTOLD} == {"none", *ROWS}


@pytest.mark.of(which=is_told_with_its_codec)
def test_the_parameters_at_the_end(job, result):
    assert holds(job, result(job)) or job["event"] == "loses a worker"


def others() -> Iterator[Job]:
    """Yield jobs beside those of the array, of which half have one worker, or a codec."""
    turns = itertools.cycle(FACTORS["optimizer"])
    for mode, rate in itertools.product(RATED, FACTORS["rate"]):
        way = "2 servers" if mode in LEARNERS else "2 servers, 2 shards each"
        # Gap-aware rates would divide what Adam makes of gradients that are nearly 0 by it.
        optimizer = "nesterov" if mode in LEARNERS else next(turns)
        yield plain(mode=mode, rate=rate, copies="5", way=way, optimizer=optimizer)
    own = "mode", "local-sgd:local-steps=3,quorum=3"
    for it in MERGES:
        learners = plain(mode="learners", copies="5", data="dirichlet")
        more = (own[0], f"{own[1]},{it}"), ("staleness_rate", "power:power=0.8")
        yield replace(learners, more=more)
    fragments = "local-sgd:local-steps=4,fragments=2,sync-delay=1,quorum=2,learner-ranks=2"
    for data in ("iid", "dirichlet"):
        yield replace(plain(mode="teams", copies="5", data=data), more=(("mode", fragments),))
    for mode in FACTORS["mode"]:
        if mode not in (*RATED, "serial"):
            yield plain(mode=mode, copies="5", data="dirichlet", optimizer=next(turns))


#: How learners are merged, if not by the mean of their samples.
MERGES = (
    *("merge-weights=equal", "merge-weights=quality", "merge=radial", "merge=median"),
    "merge=radial,merge-weights=quality,outer=nesterov", "merge=trimmed,merge.trim=1",
    "merge=trimmed,merge.trim=0,grace=0.002,outer=plain,outer.lr=0.5",
)  # fmt: skip
OTHERS = dict.fromkeys(it for it in others() if it not in JOBS)
#: Jobs of the array whose codecs lose too much, without them.
UNCODED = dict.fromkeys(
    it
    for job in JOBS
    if is_told(job) and loses_much(job)
    if (it := Job(job.but(codec="none").levels)) not in (*JOBS, *OTHERS)
)


@pytest.mark.parametrize("other", [*OTHERS, *some(UNCODED, one_in=3)], ids=str)
def test_the_parameters_at_the_end_of_other_jobs(other, tmp_path):
    assert holds(other, ran(other, tmp_path / "run")) or other["event"] == "loses a worker"


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_every_activation_and_loss(activation, loss, tmp_path):
    for cut in ("whole", "tensor"):
        job = replace(
            plain(mode="allreduce", cut=cut), more=(("activation", activation), ("loss", loss))
        )
        assert holds(job, ran(job, tmp_path / cut))
