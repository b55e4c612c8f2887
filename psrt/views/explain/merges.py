"""The merges of a small recorded job: who was in which, what it waited for, and its window.

Where several shards make the same merge, it is that of the shard that decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from psrt.history import Kind
from psrt.views.explain.recording import RecordedJob
from psrt.views.trace.marks import nanoseconds


class Member(NamedTuple):
    """A worker's push in a merge; times in virtual seconds."""

    worker: int
    #: Staleness, in merges.
    tau: int
    #: When it was pushed, when it came, and when its worker took the merge.
    sent: float
    came: float
    taken: float


class Merge(NamedTuple):
    """One merge; times in virtual seconds."""

    #: Number of the fragment.
    fragment: int
    #: That it makes.
    version: int
    #: When its first push came, when it had its quorum, and when it was made. Without a window, or
    #: if it never had its quorum because nobody else could come, the last two are the same.
    first: float
    opened: float
    made: float
    #: Whether it was made because its window was over. Else all had come that it waited for.
    is_over: bool
    #: In the order in which they came.
    members: tuple[Member, ...]


def merges_of(job: RecordedJob) -> list[Merge]:
    """Return the merges in order of time; none where nothing is merged by a quorum."""
    return list(_merges(job)) if job.config.scheme.quorum is not None else []


def _merges(job: RecordedJob) -> Iterator[Merge]:
    quorum = job.config.scheme.quorum or 1
    deciders = sorted({*job.deciders})
    #: By shard, the pushes that wait there; by worker, shard and clock, when it was pushed and, of
    #: the one before, when the answer was read.
    waiting: dict[int, dict[int, float]] = {it: {} for it in deciders}
    pushed: dict[tuple[int, int, int], float] = {}
    read = {
        (it.worker, it.shard, it.clock): nanoseconds(it.time) / 1e9 for it in job.of_kind(Kind.READ)
    }
    ticked: dict[int, float] = {}
    found: dict[int, list[tuple[int, int, int]]] = {it: [] for it in deciders}
    events = [it for it in job.events if it.shard in waiting]
    for i, it in enumerate(events):
        now = nanoseconds(it.time) / 1e9
        if it.kind == Kind.PUSH:
            pushed[it.worker, it.shard, it.clock] = now
        elif it.kind == Kind.RECEIVE:
            waiting[it.shard][it.worker] = now
        elif it.kind == Kind.DROP:
            waiting[it.shard].pop(it.worker, None)
        elif it.kind == Kind.TICK:
            ticked[it.shard] = it.seconds
        elif it.kind == Kind.APPLY:
            members = found[it.shard]
            members.append((it.worker, it.clock, it.tau))
            after = events[i + 1] if i + 1 < len(events) else None
            if after is not None and (after.kind, after.shard, after.version) == (
                Kind.APPLY, it.shard, it.version
            ):  # fmt: skip
                continue
            came = waiting[it.shard]
            whole = [
                Member(
                    worker, tau, pushed[worker, it.shard, clock], came.pop(worker),
                    read.get((worker, it.shard, clock + 1), now),
                )
                for worker, clock, tau in members
            ]  # fmt: skip
            whole.sort(key=lambda it: it.came)
            members.clear()
            opened = whole[quorum - 1].came if len(whole) >= quorum else now
            yield Merge(
                deciders.index(it.shard), it.version, whole[0].came, opened, now,
                ticked.pop(it.shard, 0.0) > 0.0, tuple(whole),
            )  # fmt: skip
