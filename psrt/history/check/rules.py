"""The names of the rules, and what each says, for the report."""

from __future__ import annotations

FIELDS = "fields"
VERSIONS = "versions"
TURNS = "turns"
MEMBERSHIP = "membership"
DELIVERY = "delivery"
READS = "reads"
ONCE = "exactly once"
FIFO = "first in, first out"
STALENESS = "staleness"
QUORUM = "quorum"
ROUND = "rounds"
ANSWERS = "answers"
PROGRESS = "progress"
GUARANTEE = "read guarantee"
OWN = "read my writes"
KEPT = "kept gradients"
RATES = "rates"
STEPS = "steps"
AVERAGING = "averaging"
REDUCES = "sums"
FINAL = "checkpoints"
SUMMARY = "summary"

#: Rule → what holds if it is kept.
RULES = {
    FIELDS: "every event says something that can be, and time goes on",
    STEPS: "every worker counts its steps one by one, as many as it was told",
    VERSIONS: "versions go up by one, and an answer carries the version of its moment",
    TURNS: "a worker is taken up, answered, taken up, with the clock it was given",
    MEMBERSHIP: "every worker leaves once, everywhere, at the clock it said, and is gone",
    DELIVERY: "what a shard takes up is what was pushed, each once and in order",
    READS: "what a worker reads is what it was answered, whole, and what it computes with",
    ONCE: "every gradient is applied once, or dropped once for a reason of its mode",
    FIFO: "a worker's gradients are applied in the order of its steps",
    STALENESS: "staleness as recorded is versions met minus version read",
    QUORUM: "an update is made of as many pushes as its mode says, as soon as they are there",
    ROUND: "an update is one round: gradients of its version, in the order of workers",
    ANSWERS: "a worker is answered as soon as its mode allows, and not before",
    PROGRESS: "no worker is further ahead of the slowest than the bound",
    GUARANTEE: "a read holds every update older than the bound, on every shard",
    OWN: "a read holds all of the reader's own updates",
    KEPT: "a gradient is kept if its worker goes on before its update, and summed first",
    RATES: "all gradients of an update have its rate times what their staleness is worth",
    AVERAGING: "averages come when their period says",
    REDUCES: "all workers take part in every sum and take the same from it",
    FINAL: "what was saved at the end is the last version",
    SUMMARY: "the summary tells of the same updates, drops and staleness",
}
