"""What ``psrt check`` takes on trust: values that no event or other figure determines.

Tests change each number of events, summaries and lines of metrics, in runs of all kinds: a change
that is not found must be in a row here. The site's page on histories has a table of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from psrt.history.check.norms import LEAST

EVENTS, SUMMARY, METRICS = "events", "summary.json", "metrics.jsonl"


class Trusted(NamedTuple):
    """Numbers that are taken on trust."""

    where: str
    #: For events ``KIND.field``; for figures the start of their paths, which may have a point.
    names: tuple[str, ...]
    #: What is taken on trust, and why no more is known.
    why: str
    #: In which runs; empty in all.
    when: str = ""


#: Every row of the table.
ON_TRUST: Final = (
    Trusted(EVENTS, ("APPLY.gap",), "the distance that parameters moved: no event has parameters"),
    Trusted(
        EVENTS,
        ("OFFER.rms", "OWN.rms", "TRACK.rms", "TRACK.gradient_rms"),
        f"norms, which bound rounding: by their sums at most {1 / LEAST:g} times off",
    ),
    Trusted(
        EVENTS, ("CENTRE.norm", "CENTRE.length"),
        "norms of a merge and of its step: bounded by those of its parts, and by its sum",
    ),
    Trusted(
        EVENTS,
        ("RESIDUAL.most", "SUM_KEEP.most", "DRAW.most_force", "DRAW.most", "CENTRE.most"),
        "bounds of rounding, likewise; the common scale of all weights of an elastic force",
    ),
    Trusted(
        EVENTS,
        ("time", "seconds"),
        "times and durations, except that they are in order and fit between each other",
        "by a real clock",
    ),
    Trusted(
        EVENTS,
        ("STEP.samples", "STEP.progress", "STEP.rate", "REDUCE.progress", "APPLY.rate"),
        "the progress of a step, and what follows from it",
        "if the problem partitions its data itself",
    ),
    Trusted(
        EVENTS, ("STEP.rate", "REDUCED.rate", "APPLY.rate"), "the rate, of which a header has "
        "only the scheduler's name", "with a scheduler of torch",
    ),
    Trusted(
        EVENTS, ("MIXED.gap",), "the distance of two workers: both record the same",
        "in gossip by pairs",
    ),
    Trusted(
        EVENTS, ("OFFER.receivers",), "the number of receivers", "if neighbours have left",
    ),
    Trusted(
        EVENTS, ("OWN.digests", "MIXED.digests", "TRACK.digests", "OFFER.digests"),
        "a digest that no other worker has", "with OFFER and TRACK if no neighbour takes it",
    ),
    Trusted(
        EVENTS, ("DECODE.digests", "SUM_DECODE.digests"),
        "a digest of a decoded frame, if only one worker decodes it", "without error feedback",
    ),
    Trusted(
        EVENTS, ("SUM_ENCODE.digests",), "a digest that no other worker has",
        "if a schedule adds what a codec makes",
    ),
    Trusted(
        EVENTS, ("LEAVE.time",), "when a rank that talks to no server ends",
        "with learners of several ranks",
    ),
    Trusted(EVENTS, ("RESIDUAL.digests",), "a residual that no later frame includes"),
    Trusted(
        EVENTS, ("CENTRE.digests",), "the digest of the initial parameters of a shard",
        "where servers merge",
    ),
    Trusted(
        EVENTS, ("STEP.samples", "REDUCE.weight", "REDUCED.weight"),
        "steps that the ranks of a learner took together", "if it died",
    ),
    Trusted(
        EVENTS, ("TICK.time",), "that a merge was made because nobody else could come",
        "where learners stop for a checkpoint",
    ),
    Trusted(EVENTS, ("LEFT.flag",), "whether it was missed or left by itself", "of dead workers"),
    Trusted(
        EVENTS, ("PARK.step",), "the step of a checkpoint",
        "if no other worker reaches it",
    ),
    Trusted(
        EVENTS, ("FINAL.time",), "when all was written",
        "after a death, in gossip by pairs, with shard=parameters and by learners of several ranks",
    ),
    Trusted(
        EVENTS, ("READ.seconds", "READ.version"),
        "the duration of the stop, and what a worker has read but does not compute with",
        "at a checkpoint",
    ),
    Trusted(EVENTS, ("REDUCE.progress",), "the progress of a worker without samples"),
    Trusted(SUMMARY, ("test_loss", "test_accuracy", "test_figures"), "no event has them"),
    Trusted(SUMMARY, ("environment",), "when, where and by what it was made"),
    Trusted(SUMMARY, ("parameters_sha256",), "matches model.safetensors", "without that file"),
    Trusted(SUMMARY, ("allreduce_why", "shards_why", "buckets"), "the reasons of a run's choices"),
    Trusted(
        SUMMARY,
        ("bytes_sent", "bytes_received"),
        "at least those of the last line of the metrics: no event has a message; known for pushes, "
        "replies, frames of servers, fragments and averages with neighbours",
        "with sums over workers",
    ),
    Trusted(
        SUMMARY, ("tuned.tried",), "the choice follows from these times, which no event has",
        "with --tune",
    ),
    Trusted(
        SUMMARY,
        ("memory", "model_cut.memory", "cut_bytes_sent", "cut_bytes_received"),
        "bytes of arrays, also between slices of a layer, or for norms of clipped gradients",
        "with --parallel",
    ),
    Trusted(
        SUMMARY,
        ("skew", "clock_spread_max", "staleness.by_shard", "waiting"),
        "there are no shards and no rounds, and workers wait for any neighbour",
        "in gossip by pairs",
    ),
    Trusted(
        SUMMARY,
        ("graph_averages.consensus_distance",),
        "within bounds: sums give the least distance of workers, norms the largest",
        "in gossip",
    ),
    Trusted(
        SUMMARY, ("waiting",), "the cause of a wait; the causes add up to it", "by a real clock",
    ),
    Trusted(
        SUMMARY, ("seconds", "samples_per_second"), "the time from the last event to the end",
        "by a real clock",
    ),
    Trusted(METRICS, ("loss", "test_loss", "accuracy"), "no event has them"),
    Trusted(METRICS, ("evaluated_seconds", "gap_mean"), "within what the lines around allow"),
    Trusted(METRICS, ("bytes_sent", "bytes_received"), "never less than in the line before"),
    Trusted(
        METRICS, ("samples_per_second", "waiting_share", "measured_seconds"),
        "all windows of time together add up", "by a real clock, and with --parallel",
    ),
    Trusted(
        METRICS, ("consensus_distance",), "within bounds, as in the summary", "in gossip",
    ),
)  # fmt: skip


def on_trust(where: str) -> frozenset[str]:
    """Return the names that are taken on trust in some runs."""
    return frozenset(name for it in ON_TRUST if it.where == where for name in it.names)
