"""What ``psrt check`` takes on trust: what no event and no other figure says enough of.

Tests change each number of events, summaries and lines of metrics, of runs of all kinds: what is
not found out must be in a row here. The site's page on histories has a table of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from psrt.history.check.norms import LEAST

EVENTS, SUMMARY, METRICS = "events", "summary.json", "metrics.jsonl"


class Trusted(NamedTuple):
    """Numbers that are on trust."""

    where: str
    #: Of events ``KIND.field``; of figures the first names of their paths, which may have a point.
    names: tuple[str, ...]
    #: What of it, and why no more is known.
    why: str
    #: In which runs; empty in all.
    when: str = ""


#: Every row of the table.
ON_TRUST: Final = (
    Trusted(EVENTS, ("APPLY.gap",), "how far parameters moved: no event has parameters"),
    Trusted(
        EVENTS,
        ("OFFER.rms", "OWN.rms", "TRACK.rms", "TRACK.gradient_rms"),
        f"norms, by which rounding is judged: by their sums no more than {1 / LEAST:g} times off",
    ),
    Trusted(
        EVENTS,
        ("RESIDUAL.most", "SUM_KEEP.most", "DRAW.most_force", "DRAW.most", "CENTRE.most"),
        "the most that rounding may change, likewise; all weights of an elastic force together",
    ),
    Trusted(
        EVENTS,
        ("time", "seconds"),
        "times and durations, but that they follow each other and fit between each other",
        "by a real clock",
    ),
    Trusted(
        EVENTS,
        ("STEP.samples", "STEP.progress", "STEP.rate", "REDUCE.progress", "APPLY.rate"),
        "the place in the data of a step, and what follows from it",
        "where the problem deals out its data itself",
    ),
    Trusted(
        EVENTS, ("MIXED.gap",), "how far two were apart: both say the same",
        "in gossip by pairs",
    ),
    Trusted(
        EVENTS, ("OFFER.receivers",), "to how many a vector went", "where neighbours have left",
    ),
    Trusted(
        EVENTS, ("OWN.digests", "MIXED.digests", "TRACK.digests", "OFFER.digests"),
        "a digest of what nobody else has", "with OFFER and TRACK where no neighbour takes it",
    ),
    Trusted(
        EVENTS, ("DECODE.digests", "SUM_DECODE.digests"),
        "a digest of what a frame came to, where only one decodes it", "without error feedback",
    ),
    Trusted(
        EVENTS, ("SUM_ENCODE.digests",), "a digest of what nobody else has",
        "where a schedule adds what a codec makes",
    ),
    Trusted(EVENTS, ("LEFT.flag",), "whether it was missed, or had said so", "of who died"),
    Trusted(
        EVENTS, ("PARK.step",), "the step of a checkpoint",
        "where no other worker comes to it",
    ),
    Trusted(
        EVENTS, ("FINAL.time",), "when all was written",
        "after a death, in gossip by pairs and with shard=parameters",
    ),
    Trusted(
        EVENTS, ("READ.seconds", "READ.version"),
        "how long it stopped, and what a worker has read that it does not compute with",
        "at a checkpoint",
    ),
    Trusted(EVENTS, ("REDUCE.progress",), "the place in the data of one that brings no sample"),
    Trusted(SUMMARY, ("test_loss", "test_accuracy", "test_figures"), "no event has them"),
    Trusted(SUMMARY, ("environment",), "when, where and by what it was made"),
    Trusted(SUMMARY, ("parameters_sha256",), "held against model.safetensors", "without that file"),
    Trusted(SUMMARY, ("allreduce_why", "shards_why", "buckets"), "why a run chose what it did"),
    Trusted(
        SUMMARY,
        ("bytes_sent", "bytes_received"),
        "at least those of the last line of the metrics: no event has a message; known of pushes, "
        "replies, frames of servers, fragments and averages with neighbours",
        "with sums over all workers",
    ),
    Trusted(
        SUMMARY,
        ("memory", "model_cut.memory", "cut_bytes_sent", "cut_bytes_received"),
        "bytes of arrays; and between slices of a layer, or for norms that are clipped",
        "with --parallel",
    ),
    Trusted(
        SUMMARY,
        ("skew", "clock_spread_max", "staleness.by_shard", "waiting"),
        "there are no shards and no rounds, and workers wait for whom they meet",
        "in gossip by pairs",
    ),
    Trusted(
        SUMMARY,
        ("graph_averages.consensus_distance",),
        "within bounds: sums say how far apart workers are at least, norms at most",
        "in gossip",
    ),
    Trusted(
        SUMMARY, ("waiting",), "the cause of a wait; the causes add up to it", "by a real clock",
    ),
    Trusted(
        SUMMARY, ("seconds", "samples_per_second"), "how long after its last event it ended",
        "by a real clock",
    ),
    Trusted(METRICS, ("loss", "test_loss", "accuracy"), "no event has them"),
    Trusted(METRICS, ("evaluated_seconds", "gap_mean"), "no more than the lines around say"),
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
    """Return the names that are on trust in some runs."""
    return frozenset(name for it in ON_TRUST if it.where == where for name in it.names)
