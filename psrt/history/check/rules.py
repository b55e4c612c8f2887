"""The names of the rules, in the words of the consistency literature, and what each demands."""

from __future__ import annotations

FIELDS = "well-formed events"
STEPS = "steps"
BATCHES = "batches"
VERSIONS = "versions"
ALTERNATION = "request-reply alternation"
MEMBERSHIP = "membership"
DELIVERY = "reliable delivery"
READS = "reads"
ONCE = "exactly once"
FIFO = "per-worker FIFO"
STALENESS = "staleness"
GAPS = "gaps"
QUORUM = "quorum"
ROUND = "rounds"
ORDER = "summation order"
REPLIES = "prompt replies"
PROGRESS = "progress"
GUARANTEE = "bounded-staleness read"
OWN = "read-your-writes"
SAVED = "saved gradients"
RATES = "rates"
AVERAGING = "averaging"
SUMS = "sums"
CAUSALITY = "causality"
FINAL = "final version"
SUMMARY = "summary"
DIGESTS = "digests"

#: Rule → its promise. ``python -m psrt.history.check`` makes the table in docs/history.md of it.
RULES = {
    FIELDS: "every event is possible by itself, and timestamps never decrease",
    STEPS: "every worker counts its steps one by one, from the first of its run to the last",
    BATCHES: "every step has the progress and the samples that the data is cut into",
    VERSIONS: "versions increase by one, and a reply carries the newest version",
    ALTERNATION: "a shard receives a push and replies to it before the worker's next, at the "
    "clock that it gave",
    MEMBERSHIP: "every worker leaves every shard once, at its last clock, and is silent after it",
    DELIVERY: "a shard receives exactly what was pushed, once, in order, after it was sent",
    READS: "a worker reads the whole of the reply that it got, and computes with what it read",
    ONCE: "every gradient is applied once, or dropped once for a reason that its mode has",
    FIFO: "a worker's gradients are applied in the order of its steps",
    STALENESS: "recorded staleness is the version met minus the version read",
    GAPS: "gaps are measured in asynchronous modes only, and are 0 where no update came between",
    QUORUM: "an update has as many gradients as its mode asks for, as soon as they have arrived",
    ROUND: "an update of a round is made of gradients of its version only",
    ORDER: "gradients are summed in the order of workers in a round, of arrival in a quorum",
    REPLIES: "a worker is answered as soon as its mode allows, and not before",
    PROGRESS: "no worker is further ahead of the slowest than the bound",
    GUARANTEE: "a read contains every update older than the bound, on every shard",
    OWN: "a read contains all of the reader's own updates",
    SAVED: "a gradient is saved if its worker continues before its update, and is summed first",
    RATES: "every gradient has the scheduled rate of its progress times its staleness factor",
    AVERAGING: "averages follow their period, weighted by the samples since the one before",
    SUMS: "every worker takes part in every sum and gets the same result",
    CAUSALITY: "a sum ends only after every worker has contributed",
    FINAL: "the parameters written at the end are the last version",
    SUMMARY: "the figures of the summary follow from the events",
    DIGESTS: "the saved parameters have the digest in the summary",
}


def table() -> str:
    """Return the rules as a table in Markdown."""
    rows = [f"| {rule} | {promise} |" for rule, promise in RULES.items()]
    return "\n".join(["| rule | what holds |", "|---|---|", *rows])
