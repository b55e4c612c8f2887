"""Sums by a linear codec through a schedule: what is added, that all know its mean, what is kept.

In each round every worker that takes part makes the same parts of each span, which are as long as
the codec says; a schedule adds them, and all end with the same means: numbers are in no history, so
digests stand for them. Of a schedule the checker knows only that every element of a vector travels
as many times as any other: from all but one to where it is added, and back, at least, and at most
from each to each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.codec import Matrix, matrices_within
from psrt.codec.linear import Linear
from psrt.history.check.contract import Contract
from psrt.history.check.findings import FRAMES, RESIDUALS, Findings
from psrt.history.check.frames import FrameContract
from psrt.history.check.sum_frames import (
    Frames,
    Sums,
    check_chain,
    check_inside,
    check_tiles,
    team_of,
)
from psrt.history.check.table import Ints, Table, find, repeats
from psrt.history.events import OF_ALL, Kind, parts
from psrt.history.header import Header
from psrt.partition import Span
from psrt.ways import Way

#: Parts of a codec at most.
_PARTS = 2


def goes_straight(header: Header) -> bool:
    """Return whether a run's schedule added what its codec made."""
    return header.way == Way.STRAIGHT.value


def part_bytes(contract: FrameContract, n: int, matrices: Sequence[Matrix]) -> dict[int, int]:
    """Return the bytes of each part of n elements that has any, by its number."""
    codec = contract.codec(n, matrices)
    assert isinstance(codec, Linear), "what goes straight is linear"
    size = np.dtype(codec.dtype).itemsize
    return {i: size * many for i, many in enumerate(codec.parts) if many}


def check_straight_sums(
    codec: FrameContract, contract: Contract, header: Header, table: Table, findings: Findings
) -> None:
    """Check every part that was added, and its mean.

    Args:
        codec: what it promises.
        contract: of the run.
        header: of its history.
        table: all events of all workers, worker after worker.
        findings: takes what is wrong.
    """
    n, team, sums = header.n, team_of(contract, header), Sums.of(contract, header, table)
    sent, got = Frames.of(table, Kind.SUM_ENCODE), Frames.of(table, Kind.SUM_DECODE)
    kept = Frames.of(table, Kind.SUM_KEEP)
    for frames in (sent, got, kept):
        _check_places(frames, sums, findings)
    if findings.none:
        _check_parts(codec, n, contract.workers, team, sums, sent, findings)
    if findings.none:
        _check_means(codec, n, contract.workers, team, sent, got, findings)
    if findings.none:
        _check_kept(codec, n, contract.workers, table, sums, sent, kept, findings)


def _check_places(frames: Frames, sums: Sums, findings: Findings) -> None:
    """Check that spans are in what is summed, and that nobody owns them."""
    check_inside(frames, sums, findings)
    text = "{kind} of a chunk of worker {shard}, where a schedule adds what all have of it"
    of_all = frames.column("shard") == OF_ALL
    findings.on(frames.table, frames.at).require(FRAMES, of_all, text, counts=False)


def _check_parts(
    codec: FrameContract,
    n: int,
    workers: int,
    team: int,
    sums: Sums,
    sent: Frames,
    findings: Findings,
) -> None:
    """Check that spans tile what is summed, and that all that take part make all parts of each."""
    table = sent.table
    asked = findings.on(table, sent.at)
    places, which = np.unique(np.stack([sent.start, sent.size], 1), axis=0, return_inverse=True)
    found = [
        part_bytes(codec, size, matrices_within(sums.matrices, Span(start, start + size)))
        for start, size in places.tolist()
    ]
    bounds = np.array([[it.get(i, -1) for i in range(_PARTS)] for it in found], np.int64)
    due = bounds.reshape(-1, _PARTS)[which.ravel(), sent.back]
    text = (
        "worker {worker} made part {flag} of {samples} bytes in round {clock}, "
        f"{codec.row.name} makes {{due}}"
    )
    asked.require(FRAMES, sent.column("samples") == due, text, due=due)
    again = repeats(sent.keys(n, (sent.back, _PARTS), (sent.column("worker"), workers)))
    text = "worker {worker} made part {flag} from element {start} on twice in round {clock}"
    asked.require(FRAMES, ~again, text, start=sent.start, counts=False)
    if not findings.none:
        return
    chunk, leader, count = np.unique(sent.keys(n), return_index=True, return_counts=True)
    group = np.searchsorted(chunk, sent.keys(n))
    text = "worker {worker} takes a span of round {clock} to be another than the others do"
    alike = sent.size == sent.size[leader][group]
    asked.require(FRAMES, alike, text, counts=False)
    many = np.array([len(it) for it in found], np.int64)[which.ravel()][leader]
    text = (
        "in round {clock} {count} parts were made of the span from element {start} on, expected "
        "{due} by each of {team} that take part"
    )
    findings.on(table, sent.at[leader]).require(
        FRAMES, count == many * team, text,
        count=count, start=sent.start[leader], due=many, team=team, counts=False,
    )  # fmt: skip
    check_tiles(sent, leader, sums, team, findings)


def _check_means(
    codec: FrameContract,
    n: int,
    workers: int,
    team: int,
    sent: Frames,
    got: Frames,
    findings: Findings,
) -> None:
    """Check that whoever made a part knows its mean afterwards, the same as all others."""
    made, asked = findings.on(sent.table, sent.at), findings.on(got.table, got.at)
    ours = sent.keys(n, (sent.back, _PARTS), (sent.column("worker"), workers))
    theirs = got.keys(n, (got.back, _PARTS), (got.column("worker"), workers))
    order = np.argsort(theirs, kind="stable")
    text = "worker {worker} ended the sum of part {flag} from element {start} on twice"
    asked.require(FRAMES, ~repeats(theirs), text, start=got.start, counts=False)
    begun = np.isin(theirs, ours)
    text = "worker {worker} ended a sum in round {clock} to which it contributed nothing"
    asked.require(FRAMES, begun, text)
    if not findings.none:
        return
    its = find(theirs[order], ours)
    text = "worker {worker} made part {flag} in round {clock}, and never ended its sum"
    made.require(FRAMES, its >= 0, text, counts=False)
    if not findings.none:
        return
    ends = got.at[order[its]]
    text = "worker {worker} ended the sum of part {flag} in round {clock} before it began"
    made.require(FRAMES, (ends > sent.at) & (got.size[order[its]] == sent.size), text, counts=False)
    # The next part depends on the mean of the one before.
    same = sent.keys(n, (sent.column("worker"), workers))
    follows = np.lexsort((sent.back, same))
    before, after = follows[:-1], follows[1:]
    late = (same[before] != same[after]) | (ends[before] < sent.at[after])
    text = "worker {worker} made part {flag} in round {clock} before it knew the one before"
    findings.on(sent.table, sent.at[after]).require(FRAMES, late, text, counts=False)
    group = got.keys(n, (got.back, _PARTS))
    groups, leader, which = np.unique(group, return_index=True, return_inverse=True)
    which = which.ravel()
    mean, result = parts(got.column("version"))
    if not codec.numerics:
        text = "{kind} with digests {version}, where nothing was computed"
        asked.require(FRAMES, got.column("version") == 0, text, counts=False)
    because = [got.at[leader][which]]
    text = "worker {worker} knows another mean of part {flag} in round {clock} than the others"
    asked.require(FRAMES, mean == mean[leader][which], text, because=because, counts=False)
    text = "worker {worker} has other means in round {clock} than the others"
    asked.require(FRAMES, result == result[leader][which], text, because=because, counts=False)
    _check_sent(team, sent, got, order[its], groups, leader, which, findings)


def _check_sent(
    team: int,
    sent: Frames,
    got: Frames,
    its: Ints,
    groups: Ints,
    leader: Ints,
    which: Ints,
    findings: Findings,
) -> None:
    """Check how often an element of each part was sent: alike in all sums."""
    part = np.empty(len(got.at), np.int64)
    part[its] = sent.column("samples")
    total = np.bincount(which, got.column("samples"), minlength=len(groups)).astype(np.int64)
    nbytes = part[leader]
    times = total // nbytes
    least, most = 2 * (team - 1), team * (team - 1)
    holds = (times * nbytes == total) & (least <= times) & (times <= most)
    holds &= times == times[:1]
    text = (
        "in round {clock} workers sent {total} bytes to add part {flag} of {nbytes}, expected them "
        "{least} to {most} times, and as often as before"
    )
    findings.on(got.table, got.at[leader]).require(
        FRAMES, holds, text, total=total, nbytes=nbytes, least=least, most=most, counts=False
    )


def _check_kept(
    codec: FrameContract,
    n: int,
    workers: int,
    table: Table,
    sums: Sums,
    sent: Frames,
    kept: Frames,
    findings: Findings,
) -> None:
    """Check that each span's sum takes up what was kept back of it before."""
    asked = findings.on(table, kept.at)
    if not codec.keeps:
        asked.forbid(RESIDUALS, "worker {worker} kept something back, which its codec does not")
        return
    ours = sent.keys(n, (sent.column("worker"), workers))
    theirs = kept.keys(n, (kept.column("worker"), workers))
    text = "worker {worker} kept something back in round {clock}, of no sum, or twice"
    holds = np.isin(theirs, ours) & ~repeats(theirs) & (kept.back == 0)
    asked.require(RESIDUALS, holds, text, counts=False)
    text = "worker {worker} took part in round {clock} and did not say what it kept back"
    made = findings.on(table, sent.at)
    made.require(RESIDUALS, np.isin(ours, theirs), text, counts=False)
    if not findings.none:
        return
    order = np.argsort(theirs, kind="stable")
    its = order[find(theirs[order], ours)]
    text = "worker {worker} kept back in round {clock} before it had made part {flag}"
    holds = (kept.at[its] > sent.at) & (kept.size[its] == sent.size)
    made.require(RESIDUALS, holds, text, counts=False)
    if findings.none:
        check_chain(codec, n, table, sums, kept, findings)


def straight_bytes(table: Table) -> tuple[int, int]:
    """Return the bytes that went to other workers, and those that the numbers would have been."""
    sent, got = Frames.of(table, Kind.SUM_ENCODE), Frames.of(table, Kind.SUM_DECODE)
    if not len(sent.at):
        return 0, 0
    total = int(got.column("samples").sum())
    # An element travels as often whatever is made of it.
    first = (got.round == got.round[0]) & (got.start == got.start[0]) & (got.back == got.back[0])
    made = (sent.round == got.round[0]) & (sent.start == got.start[0]) & (sent.back == got.back[0])
    times = int(got.column("samples")[first].sum()) // int(sent.column("samples")[made][0])
    chunks = np.unique(np.stack([sent.round, sent.start, sent.size], 1), axis=0)
    return total, 4 * times * int(chunks[:, 2].sum())
