"""Each rule on a history of a few lines: as it is it is kept, with one thing changed it is not.

That one event is left out, doubled, or has another number, is a law; here is what takes more to be
broken, and the words that say which of several promises it was.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import psrt
from psrt.codec import CODECS
from psrt.collective.registry import ALGORITHMS
from psrt.config import MODES
from psrt.history.check import check
from psrt.optim import OPTIMIZERS, STALENESS_RATES
from psrt.pipeline import PIPELINES
from psrt.topology.names import TOPOLOGIES
from support.histories import written

#: Worker 0 is two ahead, and has to wait for its second answer.
SSP_1 = """
    READ w0 c0 v0; READ w1 c0 v0; PUSH w0 c0 v0; RECEIVE w0 c0 v0; APPLY w0 c0 v1 t0
    REPLY w0 c1 v1; READ w0 c1 v1 t0; PUSH w0 c1 v1; RECEIVE w0 c1 v1; APPLY w0 c1 v2 t0
    PUSH w1 c0 v0; RECEIVE w1 c0 v0; APPLY w1 c0 v3 t2; REPLY w0 c2 v3; REPLY w1 c1 v3
    READ w0 c2 v3 t0; LEAVE w0 c2; LEFT w0 c2; READ w1 c1 v3 t2; PUSH w1 c1 v3; RECEIVE w1 c1 v3
    APPLY w1 c1 v4 t0; REPLY w1 c2 v4; READ w1 c2 v4 t0; LEAVE w1 c2; LEFT w1 c2; FINAL v4
"""

#: The first push of worker 1 is dropped, and its second one has no gradient.
ASYNC_DROP_0 = """
    READ w0 c0 v0; READ w1 c0 v0; PUSH w0 c0 v0; PUSH w1 c0 v0; RECEIVE w0 c0 v0
    APPLY w0 c0 v1 t0; REPLY w0 c1 v1; RECEIVE w1 c0 v0; DROP w1 c0 v0 t1 f1; REPLY w1 c1 v1
    READ w0 c1 v1 t0; READ w1 c1 v1 t-1; PUSH w1 c1 v1 m0
    RECEIVE w1 c1 v1 m0; REPLY w1 c2 v1; READ w1 c2 v1 t-1; LEAVE w0 c1; LEAVE w1 c2; LEFT w0 c1
    LEFT w1 c2; FINAL v1
"""

#: Of two that are there two are needed; at last one is left, so one will do.
SOFTSYNC_1 = """
    READ w0 c0 v0; READ w1 c0 v0; PUSH w0 c0 v0; RECEIVE w0 c0 v0; SAVE w0 c0; REPLY w0 c1 v0
    READ w0 c1 v0 t0; PUSH w0 c1 v0; RECEIVE w0 c1 v0; APPLY w0 c0 v1 t0; APPLY w0 c1 v1 t0
    REPLY w0 c2 v1; PUSH w1 c0 v0; RECEIVE w1 c0 v0; SAVE w1 c0; REPLY w1 c1 v1; READ w1 c1 v1 t1
    LEAVE w1 c1; READ w0 c2 v1 t0; LEAVE w0 c2; LEFT w1 c1; APPLY w1 c0 v2 t1
    LEFT w0 c2; FINAL v2
"""

#: A gradient that was kept is summed with one that was not.
SOFTSYNC_MIXED = """
    READ w0 c0 v0; READ w1 c0 v0; PUSH w0 c0 v0; PUSH w1 c0 v0; RECEIVE w1 c0 v0; SAVE w1 c0
    REPLY w1 c1 v0; RECEIVE w0 c0 v0; APPLY w1 c0 v1 t0; APPLY w0 c0 v1 t0; REPLY w0 c1 v1
    READ w0 c1 v1 t0; READ w1 c1 v0 t0; LEAVE w0 c1; LEAVE w1 c1; LEFT w0 c1; LEFT w1 c1; FINAL v1
"""

SYNC = """
    READ w0 c0 v0; READ w1 c0 v0; PUSH w1 c0 v0; RECEIVE w1 c0 v0; PUSH w0 c0 v0; RECEIVE w0 c0 v0
    APPLY w0 c0 v1 t0; APPLY w1 c0 v1 t0; REPLY w1 c1 v1; REPLY w0 c1 v1; READ w1 c1 v1 t0
    READ w0 c1 v1 t0; PUSH w0 c1 v1; LEAVE w1 c1; RECEIVE w0 c1 v1; LEFT w1 c1; APPLY w0 c1 v2 t0
    REPLY w0 c2 v2; READ w0 c2 v2 t0; LEAVE w0 c2; LEFT w0 c2; FINAL v2
"""

#: Worker 1 dies with its push of round 1 at the server: that is lost, and worker 0 goes on.
SYNC_DEATH = """
    READ w0 c0 v0; READ w1 c0 v0; PUSH w1 c0 v0; RECEIVE w1 c0 v0; LEFT w1 c0; DROP w1 c0 v0 t0 f2
    PUSH w0 c0 v0; RECEIVE w0 c0 v0; APPLY w0 c0 v1 t0; REPLY w0 c1 v1; READ w0 c1 v1 t0
    LEAVE w0 c1; LEFT w0 c1; FINAL v1
"""

#: Worker 1 is late on both shards, and has to ask shard 1 for the version that shard 0 is at.
BACKUP_1 = """
    READ w0 s0 c0 v0; READ w0 s1 c0 v0; READ w1 s0 c0 v0; READ w1 s1 c0 v0; PUSH w0 s0 c0 v0
    PUSH w0 s1 c0 v0; PUSH w1 s0 c0 v0; PUSH w1 s1 c0 v0; RECEIVE s0 w0 c0 v0
    APPLY s0 w0 c0 v1 t0; REPLY s0 w0 c1 v1; RECEIVE s1 w0 c0 v0; APPLY s1 w0 c0 v1 t0
    REPLY s1 w0 c1 v1; READ w0 s0 c1 v1 t0; READ w0 s1 c1 v1 t0; RECEIVE s1 w1 c0 v0
    DROP s1 w1 c0 v0 t1 f1; REPLY s1 w1 c1 v1; PUSH w0 s0 c1 v1; PUSH w0 s1 c1 v1
    RECEIVE s0 w0 c1 v1; APPLY s0 w0 c1 v2 t0; REPLY s0 w0 c2 v2; RECEIVE s0 w1 c0 v0
    DROP s0 w1 c0 v0 t2 f1; REPLY s0 w1 c2 v2; RECEIVE s1 w1 c2 v1 m0
    RECEIVE s1 w0 c1 v1; APPLY s1 w0 c1 v2 t0; REPLY s1 w1 c2 v2; REPLY s1 w0 c2 v2
    READ w0 s0 c2 v2 t0; READ w0 s1 c2 v2 t0; READ w1 s0 c2 v2 t-1; READ w1 s1 c2 v2 t-1
    LEAVE w0 c2; LEAVE w1 c2; LEFT s0 w0 c2; LEFT s1 w0 c2; LEFT s0 w1 c2; LEFT s1 w1 c2
    FINAL s0 v2; FINAL s1 v2
"""

#: Workers 0 and 2 make round 1 of shard 0 and die; shard 1, which worker 1 has asked for version 2,
#: has nothing to make it of: both pushes of worker 0 to it are lost.
BACKUP_NOTHING = """
    READ w0 s0 c0 v0; READ w0 s1 c0 v0; READ w1 s0 c0 v0; READ w1 s1 c0 v0; READ w2 s0 c0 v0
    READ w2 s1 c0 v0; PUSH w0 s0 c0 v0; PUSH w0 s1 c0 v0; PUSH w1 s0 c0 v0; PUSH w1 s1 c0 v0
    PUSH w2 s0 c0 v0; PUSH w2 s1 c0 v0; RECEIVE s0 w0 c0 v0; RECEIVE s0 w2 c0 v0
    APPLY s0 w0 c0 v1 t0; APPLY s0 w2 c0 v1 t0; REPLY s0 w0 c1 v1; REPLY s0 w2 c1 v1
    RECEIVE s1 w1 c0 v0; RECEIVE s1 w0 c0 v0; APPLY s1 w0 c0 v1 t0; APPLY s1 w1 c0 v1 t0
    REPLY s1 w1 c1 v1; REPLY s1 w0 c1 v1; RECEIVE s1 w2 c0 v0; DROP s1 w2 c0 v0 t1 f1
    REPLY s1 w2 c1 v1; READ w0 s0 c1 v1 t0; READ w0 s1 c1 v1 t0; READ w2 s0 c1 v1 t0
    READ w2 s1 c1 v1 t-1; PUSH w0 s0 c1 v1; PUSH w0 s1 c1 v1
    PUSH w2 s0 c1 v1; PUSH w2 s1 c1 v1; RECEIVE s0 w0 c1 v1; RECEIVE s0 w2 c1 v1
    APPLY s0 w0 c1 v2 t0; APPLY s0 w2 c1 v2 t0; REPLY s0 w0 c2 v2; REPLY s0 w2 c2 v2
    RECEIVE s0 w1 c0 v0; DROP s0 w1 c0 v0 t2 f1; REPLY s0 w1 c2 v2; RECEIVE s1 w1 c2 v1 m0
    LEFT s0 w0 c2; LEFT s0 w2 c2; LEFT s1 w0 c2; LEFT s1 w2 c2; APPLY s1 w-1 c-1 v2
    REPLY s1 w1 c2 v2; READ w1 s0 c2 v2 t-1; READ w1 s1 c2 v2 t0; LEAVE w1 c2; LEFT s0 w1 c2
    LEFT s1 w1 c2; FINAL s0 v2; FINAL s1 v2
"""

ALLREDUCE = """
    STEP w0 c0 r0.0; REDUCE w0 c0 v0 x1.0 f1; STEP w1 c0 r0.0; REDUCE w1 c0 v0 x1.0 f1
    REDUCED w0 c0 v1 x2.0 f1; STEP w0 c1 r0.0; REDUCE w0 c1 v1 x1.0 f1; REDUCED w1 c0 v1 x2.0 f1
    LEAVE w1 c1 v-1; REDUCE w1 c1 v1 x0.0 m0; REDUCED w0 c1 v2 x1.0 f1; REDUCED w1 c1 v2 x1.0 f1
    LEAVE w0 c2 v-1; REDUCE w0 c2 v2 x0.0 m0; REDUCE w1 c1 v2 x0.0 m0; REDUCED w0 c2 v2 x0.0 r0.0
    REDUCED w1 c1 v2 x0.0 r0.0; FINAL s-1 v2
"""

LOCAL_2 = """
    STEP w0 c0 p0.0; STEP w0 c1 p0.5; REDUCE w0 c0 v0 x1.0 f1 m2 p0.5; STEP w1 c0 p0.0
    REDUCE w1 c0 v0 x0.5 f1 m1 p0.0  # what is left over
    REDUCED w0 c0 v1 x1.5 r1.0 f1; REDUCED w1 c0 v1 x1.5 r1.0 f1; LEAVE w1 c1
    REDUCE w1 c1 v1 x0.0 m0; LEAVE w0 c1; REDUCE w0 c1 v1 x0.0 m0; REDUCED w0 c1 v1 x0.0 r0.0
    REDUCED w1 c1 v1 x0.0 r0.0; FINAL s-1 v1
"""

SERIAL = """
    STEP w0 c0; STEP w0 c1 m0 r0.0; STEP w0 c2; LEAVE w0 c3; FINAL s-1 v2
"""

#: History → its mode and knobs.
GOOD = {
    "ssp": (SSP_1, "ssp", {"staleness": 1, "workers": 2, "steps": 2}),
    "drops": (
        ASYNC_DROP_0, "async", {"workers": 2, "staleness_rate": "drop:limit=0"},
    ),
    "softsync": (SOFTSYNC_1, "softsync", {"workers": 2, "k": 1}),
    "softsync of two": (SOFTSYNC_MIXED, "softsync", {"workers": 2, "k": 1}),
    "sync": (SYNC, "sync", {"workers": 2}),
    "death": (SYNC_DEATH, "sync", {"workers": 2}),
    "backups": (BACKUP_1, "sync", {"workers": 2, "servers": 2, "backup": 1}),
    "out of nothing": (BACKUP_NOTHING, "sync", {"workers": 3, "servers": 2, "backup": 1}),
    "allreduce": (ALLREDUCE, "allreduce", {"workers": 2, "servers": 0}),
    "local-sgd": (LOCAL_2, "local-sgd", {"workers": 2, "servers": 0, "local_steps": 2}),
    "serial": (SERIAL, "serial", {"workers": 1, "servers": 0, "steps": 3}),
}  # fmt: skip


def changed(text, changes):
    """Replace events; a change is ``what begins one > what stands there instead``, | is between."""
    events = [it.strip() for it in text.replace("\n", ";").split(";")]
    instead = [*events]
    for change in filter(None, changes.split(" | ")):
        begin, _, other = change.partition(" >")
        found = [i for i, it in enumerate(events) if it.startswith(begin)]
        assert len(found) == 1, (begin, found)
        instead[found[0]] = other
    return "\n".join(instead).replace(";", "\n")


def checked(name, changes=""):
    text, mode, knobs = GOOD[name]
    # Anyone may have died, so that a missing LEAVE alone is no violation.
    crashes = tuple(range(knobs["workers"])) if knobs.get("servers", 1) else ()
    return check(written(changed(text, changes), mode, crashes=crashes, **knobs))


@pytest.mark.parametrize("name", GOOD)
def test_as_it_is_it_is_kept(name):
    outcome = checked(name)
    assert outcome.ok, "\n".join(outcome.lines())


#: Rule → histories, what is said of them, and what is changed for that.
BAD = {
    "well-formed events": [
        ("ssp", "expected at least 0", "PUSH w0 c1 > PUSH w0 c1 v1 p-0.5"),
        ("ssp", "clock 4611686018427387904 in a history of 27 events",
         "REPLY w1 c2 v4 > REPLY w1 c4611686018427387904 v4"),
        ("ssp", "after one at", "LEFT w1 c2 > LEFT w1 c2 @0.0"),
        ("ssp", "STEP which mode ssp does not have", "FINAL > STEP w1 c2"),
        ("ssp", "of shard 7 of 1", "READ w0 c0 > READ w0 c0 v0 s7"),
        ("out of nothing", "APPLY samples 2, which it does not have",
         "APPLY s1 w-1 > APPLY s1 w-1 c-1 v2 m2"),
        ("ssp", "gap -0.5", "APPLY w0 c1 > APPLY w0 c1 v2 t0 g-0.5"),
        ("ssp", "of worker -1 at clock 1", "RECEIVE w0 c1 > RECEIVE w-1 c1 v1"),
    ],
    "steps": [
        ("serial", "goes back", "STEP w0 c1 > STEP w0 c1 m0 r0.0 p0.5"),
        ("serial", "after its end", "LEAVE > STEP w0 c3; LEAVE w0 c4 | FINAL > FINAL s-1 v3"),
    ],
    "versions": [
        ("ssp", "made version 2 after version 2", "APPLY w1 c0 > APPLY w1 c0 v2 t1"),
    ],
    "request-reply alternation": [
        ("ssp", "before it had answered the last one", "REPLY w0 c1 v1 >"),
        ("ssp", "which had left it", "LEFT w0 > LEFT w0 c2; LEFT w0 c2"),
        ("ssp", "while its last push was unanswered", "REPLY w1 c2 v4 >"),
        ("ssp", "acts before any message arrived", "READ w0 c0 > REPLY w0 c0 v0; READ w0 c0 v0"),
    ],
    "membership": [
        ("ssp", "continues after it has left",
         "READ w1 c2 v4 > | LEAVE w1 c2 > LEAVE w1 c2; READ w1 c2 v4 t0"),
    ],
    "reliable delivery": [
        ("ssp", "samples 2, which pushed samples 1",
         "RECEIVE w0 c1 > RECEIVE w0 c1 v1 m2 | APPLY w0 c1 > APPLY w0 c1 v2 t0 m2"),
        ("ssp", "never received it",
         "RECEIVE w1 c1 > | APPLY w1 c1 > | REPLY w1 c2 > | FINAL > FINAL v3"),
        ("ssp", "before it was sent",
         "PUSH w1 c1 v3 > | REPLY w1 c2 v4 > REPLY w1 c2 v4; PUSH w1 c1 v3"),
        ("ssp", "of worker 1, which pushed only 1 times",
         "PUSH w1 c1 > | READ w1 c2 > | LEAVE w1 >"),
        ("ssp", "progress 0.5, which pushed progress 0.0",
         "RECEIVE w0 c1 > RECEIVE w0 c1 v1 p0.5 | APPLY w0 c1 > APPLY w0 c1 v2 t0 p0.5"),
    ],
    "reads": [
        ("ssp", "which answered version 3", "READ w0 c2 v3 > READ w0 c2 v2"),
        ("drops", "got staleness 1 from shard 0, expected -1 for its push",
         "READ w1 c1 v1 > READ w1 c1 v1 t1"),
        ("ssp", "read a reply of shard 0 that it never gave",
         "APPLY w0 c1 > APPLY w0 c1 v2 t0; LEFT w0 c2 | REPLY w0 c2 > | LEAVE w0 > | LEFT w0 >"),
        ("ssp", "before that had answered",
         "REPLY w1 c2 > READ w1 c2 v4 t0; REPLY w1 c2 v4 | READ w1 c2 >"),
    ],
    "exactly once": [
        ("drops", "neither applied nor dropped", "DROP >"),
        ("drops", "applied clock 0 of worker 1 with staleness 1, the most is 0",
         "DROP > APPLY w1 c0 v2 t1 | REPLY w1 c1 v1 > REPLY w1 c1 v2 | FINAL > FINAL v2 | "
         "READ w1 c1 v1 > READ w1 c1 v2 t1 | PUSH w1 c1 > PUSH w1 c1 v2 m0 | "
         "RECEIVE w1 c1 > RECEIVE w1 c1 v2 m0 | REPLY w1 c2 > REPLY w1 c2 v2 | "
         "READ w1 c2 v1 > READ w1 c2 v2 t0"),
        ("drops", "which had no gradient",
         "RECEIVE w1 c1 v1 m0 > RECEIVE w1 c1 v1 m0; DROP w1 c1 v1 m0 t0 f1"),
        ("ssp", "its mode does not allow that",
         "APPLY w1 c1 v4 > DROP w1 c1 v3 t0 f1 | REPLY w1 c2 v4 > REPLY w1 c2 v3 | "
         "READ w1 c2 v4 > READ w1 c2 v3 t0 | FINAL > FINAL v3"),
        ("death", "as late", "DROP > DROP w1 c0 v0 t0 f1"),
        ("death", "which had left before and whose gradient was not saved",
         "DROP > APPLY w1 c0 v1 t0 | APPLY w0 > APPLY w0 c0 v2 t1 | REPLY > REPLY w0 c2 v2 | "
         "READ w0 c1 > READ w0 c2 v2 t0 | LEAVE > LEAVE w0 c2 | LEFT w0 > LEFT w0 c2 | "
         "FINAL > FINAL v2"),
        ("backups", "neither applied nor dropped", "DROP s1 >"),
        ("softsync", "saved the gradient of worker 1 at clock 0 again",
         "SAVE w1 > SAVE w1 c0; SAVE w1 c0"),
    ],
    "quorum": [
        ("ssp", "of 2 gradients when 1 had arrived",
         "APPLY w1 c1 v4 > APPLY w1 c1 v4 t0; APPLY w0 c1 v4 t2"),
        ("softsync", "made version 1 of 1 gradients with 2 live workers, expected 2",
         "SAVE w0 c0 > APPLY w0 c0 v1 t0 | REPLY w0 c1 v0 > REPLY w0 c1 v1 | "
         "READ w0 c1 v0 > READ w0 c1 v1 t0 | PUSH w0 c1 v0 > PUSH w0 c1 v1 | "
         "RECEIVE w0 c1 v0 > RECEIVE w0 c1 v1 | APPLY w0 c0 v1 > APPLY w0 c1 v2 t0 | "
         "APPLY w0 c1 v1 > | REPLY w0 c2 v1 > REPLY w0 c2 v2 | "
         "READ w0 c2 v1 > READ w0 c2 v2 t0 | REPLY w1 c1 v1 > REPLY w1 c1 v2 | "
         "READ w1 c1 v1 > READ w1 c1 v2 t2 | APPLY w1 c0 v2 > APPLY w1 c0 v3 t2 | "
         "FINAL > FINAL v3"),
        ("softsync", "1 gradients and 1 live workers, but makes no update",
         "APPLY w1 c0 > | LEFT w0 c2 > LEFT w0 c2; APPLY w1 c0 v2 t1"),
        ("sync", "1 gradients and 1 live workers",
         "APPLY w0 c1 > | REPLY w0 c2 > | READ w0 c2 > | LEAVE w0 c2 > | "
         "LEFT w0 c2 > LEFT w0 c2; DROP w0 c1 v1 t0 f2 | FINAL > FINAL v1"),
        ("out of nothing", "shard 1 leaves all of its 1 live workers waiting",
         "APPLY s1 w-1 > | REPLY s1 w1 c2 > | READ w1 s0 c2 > | READ w1 s1 c2 > | LEAVE w1 > | "
         "FINAL s1 > FINAL s1 v1"),
        ("out of nothing", "of 0 gradients with 2 live workers, expected 1",
         "LEFT s1 w2 > APPLY s1 w-1 c-1 v2; REPLY s1 w1 c2 v2; LEFT s1 w2 c2 | APPLY s1 w-1 > | "
         "REPLY s1 w1 c2 >"),
    ],
    "per-worker FIFO": [
        ("softsync", "clock 1 of worker 0 before its clock 0",
         "APPLY w0 c0 > | APPLY w0 c1 v1 > APPLY w0 c1 v1 t0; APPLY w0 c0 v1 t0"),
    ],
    "staleness": [
        ("ssp", "for clock 0 of worker 1, computed on version 0, which met version 2: it is 2",
         "APPLY w1 c0 > APPLY w1 c0 v3 t1"),
        ("softsync", "recorded version 1 for a push that was computed on version 0",
         "SAVE w1 > SAVE w1 c0 v1"),
    ],
    "summation order": [
        ("sync", "summed worker 0 after worker 1 in round 0, expected the order",
         "APPLY w0 c0 > | APPLY w1 c0 v1 > APPLY w1 c0 v1 t0; APPLY w0 c0 v1 t0"),
    ],
    "prompt replies": [
        ("ssp", "later than it could have",
         "REPLY w0 c2 v3 > | READ w0 c2 v3 > | LEAVE w0 c2 > | LEFT w0 c2 > | "
         "RECEIVE w1 c1 > RECEIVE w1 c1 v3; REPLY w0 c2 v3; READ w0 c2 v3 t0 | "
         "LEFT w1 c2 > LEFT w1 c2; LEAVE w0 c2; LEFT w0 c2"),
        ("drops", "never answered worker 1 at clock 1",
         "REPLY w1 c2 > | READ w1 c2 > | LEAVE w1 >"),
    ],
    "progress": [
        ("ssp", "although worker 1 had finished 0 steps: 2 ahead, the most is 1",
         "REPLY w0 c2 v3 > | APPLY w0 c1 v2 > APPLY w0 c1 v2 t0; REPLY w0 c2 v2 | "
         "READ w0 c2 v3 > READ w0 c2 v2 t0"),
    ],
    "bounded-staleness read": [
        ("ssp", "before every gradient of clocks up to 0 was applied",
         "REPLY w0 c2 v3 > | APPLY w1 c0 v3 > REPLY w0 c2 v2; APPLY w1 c0 v3 t2 | "
         "READ w0 c2 v3 > READ w0 c2 v2 t0"),
    ],
    "read-your-writes": [
        ("ssp", "lack its own gradient",
         "APPLY w1 c1 v4 > | REPLY w1 c2 v4 > REPLY w1 c2 v3; APPLY w1 c1 v4 t0 | "
         "READ w1 c2 v4 > READ w1 c2 v3 t0"),
    ],
    "saved gradients": [
        ("softsync", "was neither applied nor saved", "SAVE w1 >"),
        ("ssp", "did not continue before", "APPLY w1 c1 > SAVE w1 c1 v3; APPLY w1 c1 v4 t0"),
        ("softsync of two", "of worker 1 after one that was not saved",
         "APPLY w1 > APPLY w0 c0 v1 t0 | APPLY w0 > APPLY w1 c0 v1 t0"),
    ],
    "rates": [
        ("ssp", "clock 1, of staleness 0, had rate 0.2, expected 0.1",
         "APPLY w1 c1 > APPLY w1 c1 v4 t0 r0.2"),
        ("allreduce", "clock 1 had rate 0.1, expected 0", "STEP w0 c1 > STEP w0 c1 r0.1"),
        ("serial", "clock 1 had rate 0.1, expected 0", "STEP w0 c1 > STEP w0 c1 m0 r0.1"),
    ],
    "averaging": [
        ("local-sgd", "averages with 3 samples",
         "REDUCE w0 c0 > REDUCE w0 c0 v0 x1.5 f1 m3 p0.5 | "
         "REDUCED w0 c0 > REDUCED w0 c0 v1 x2.0 r1.0 f1 | "
         "REDUCED w1 c0 > REDUCED w1 c0 v1 x2.0 r1.0 f1"),
        ("local-sgd", "averages after 3 steps, expected after 2; the period is 2",
         "STEP w0 c1 > STEP w0 c1 p0.5; STEP w0 c2 p0.5 | "
         "REDUCE w0 c0 > REDUCE w0 c0 v0 x1.5 f1 m3 p0.5 | "
         "REDUCED w0 c0 > REDUCED w0 c0 v1 x2.0 r1.0 f1 | "
         "REDUCED w1 c0 > REDUCED w1 c0 v1 x2.0 r1.0 f1"),
        ("local-sgd", "averages although nothing is due", "STEP w1 >"),
    ],
    "sums": [
        ("allreduce", "took part in 3 sums, worker 1 in 2",
         "REDUCE w1 c1 v2 > | REDUCED w1 c1 v2 x0.0 >"),
        ("allreduce", "did not share its step 1", "REDUCE w0 c1 > REDUCE w0 c1 v1 x1.0"),
        ("allreduce", "no worker training", "REDUCED w1 c1 v2 x1.0 > REDUCED w1 c1 v2 x1.0"),
        ("allreduce", "as present, after it left",
         "REDUCE w1 c1 v1 > REDUCE w1 c1 v1 x0.0 m0 f1"),
        ("allreduce", "only the last should have no worker",
         "REDUCE w0 c2 > | REDUCE w1 c1 v2 > | REDUCED w0 c2 > | REDUCED w1 c1 v2 x0.0 >"),
        ("allreduce", "which is not its last step",
         "STEP w0 c1 > | LEAVE w0 > LEAVE w0 c1 | REDUCE w0 c2 > REDUCE w0 c1 v2 x0.0 m0 | "
         "REDUCED w0 c2 > REDUCED w0 c1 v2 x0.0 r0.0"),
    ],
    "durations": [
        ("ssp", "READ of worker 0 says it took 0.5 s, it is 0.004 s since PUSH",
         "READ w0 c1 v1 > READ w0 c1 v1 t0 d0.5"),
        ("ssp", "APPLY of worker 1 says it took 0.5 s, it is only 0.001 s since RECEIVE",
         "APPLY w1 c1 > APPLY w1 c1 v4 t0 d0.5"),
        ("serial", "STEP of worker 0 says it took 0.001 s, it is 0.002 s since STEP",
         "STEP w0 c2 > STEP w0 c2 d0.001 @0.003"),
        ("serial", "says it took 0.5 s, it is 0 s since the beginning",
         "STEP w0 c0 > STEP w0 c0 d0.5"),
    ],
    "causality": [
        ("allreduce", "worker 0 took sum 0 before worker 1 had contributed",
         "REDUCE w0 c0 > REDUCE w0 c0 v0 x1.0 f1; REDUCED w0 c0 v1 x2.0 f1 | REDUCED w0 c0 >"),
        ("local-sgd", "worker 0 took sum 0 before worker 1 had contributed",
         "REDUCE w0 c0 > REDUCE w0 c0 v0 x1.0 f1 m2 p0.5; REDUCED w0 c0 v1 x1.5 r1.0 f1 | "
         "REDUCED w0 c0 >"),
    ],
    "gaps": [
        ("ssp", "measured a gap of 0.25", "APPLY w0 c0 > APPLY w0 c0 v1 t0 g0.25"),
    ],
    "final version": [
        ("ssp", "never written", "FINAL >"),
        ("ssp", "written at 0.020000 s, expected 0.025000 s or later", "FINAL v4 > FINAL v4 @0.02"),
        ("serial", "written at 0.005000 s, expected 0.003000 s", "FINAL > FINAL s-1 v2 @0.005"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("rule", BAD)
def test_with_something_changed_it_is_broken(rule):
    for name, text, changes in BAD[rule]:
        outcome = checked(name, changes)
        told = "\n".join([changes, *outcome.lines()])
        assert not outcome.ok, told
        assert outcome.violation.rule == rule, told
        assert text in outcome.violation.text, told


#: Names of rows that are those of knobs, or of their usual values, too.
WORDS = {"allreduce", "constant", "momentum", "power"}


def test_the_check_names_no_row():
    """It reads rows, so that what a row elsewhere adds is checked: see ``test_elsewhere``."""
    rows = (MODES, OPTIMIZERS, STALENESS_RATES, CODECS, ALGORITHMS, TOPOLOGIES, PIPELINES)
    names = re.compile("|".join(f'"(node\\+)?{it}"' for row in rows for it in row))
    for file in (Path(psrt.__file__).parent / "history" / "check").glob("*.py"):
        found = [
            line
            for line in file.read_text().splitlines()
            if names.search(line) and not line.strip().startswith((">>>", "..."))
            and not any(f'"{it}"' in line for it in WORDS)
        ]  # fmt: skip
        assert not found, (file.name, found)
