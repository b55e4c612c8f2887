"""Sums by a linear codec through a schedule: the parts, their means, and the residuals.

In each round every participating worker makes the same parts of each span, with the lengths that
the codec sets. A schedule adds them, and all end with the same means. Of the schedule this checks
only that every element of a vector travels equally often: at least from all but one to where it is
added, and back; at most from each to each.
"""

from __future__ import annotations

import numpy as np

from psrt.core.ways import Way
from psrt.history.check.findings import FRAMES, Findings
from psrt.history.check.sum_frames import Frames, Sums, check_chunks, check_inside, check_kept
from psrt.history.check.table import Ints, Table, find, repeats
from psrt.history.events import OF_ALL, Kind, parts
from psrt.history.header import Header
from psrt.history.kinds import OfSum, SumFrame


def goes_straight(header: Header) -> bool:
    """Return whether a run's schedule added what its codec made."""
    return header.way == Way.STRAIGHT.value


def check_straight_sums(sums: Sums, findings: Findings) -> None:
    """Check every part that was added, and its mean."""
    sent, got = sums.frames(Kind.SUM_ENCODE), sums.frames(Kind.SUM_DECODE)
    kept = sums.frames(Kind.SUM_KEEP)
    for frames in (got, kept):
        check_inside(sums, frames, findings)
        text = "{kind} of a chunk of worker {peer}, where a schedule adds what all have of it"
        of_all = frames.column(OfSum.peer) == OF_ALL
        findings.on(frames.table, frames.at).require(FRAMES, of_all, text, counts=False)
    if findings.none:
        check_chunks(sums, sent, findings)
    if findings.none:
        _check_means(sums, sent, got, findings)
    if findings.none:
        check_kept(sums.codecs[0], sums, sent, kept, findings)


def _check_means(sums: Sums, sent: Frames, got: Frames, findings: Findings) -> None:
    """Check that each worker that made a part gets its mean, the same as all others."""
    made, asked = findings.on(sent.table, sent.at), findings.on(got.table, got.at)
    ours, theirs = (it.keys(OfSum.flag, "worker") for it in (sent, got))
    order = np.argsort(theirs, kind="stable")
    text = "worker {worker} ended the sum of part {flag} from element {start} on twice"
    asked.require(FRAMES, ~repeats(theirs), text, start=got.start, counts=False)
    begun = np.isin(theirs, ours)
    text = "worker {worker} ended a sum in round {clock} to which it contributed nothing"
    asked.require(FRAMES, begun, text)
    if not findings.none:
        return
    its = find(theirs[order], ours)
    text = "worker {worker} made part {flag} in round {clock}, but never ended its sum"
    made.require(FRAMES, its >= 0, text, counts=False)
    if not findings.none:
        return
    its = order[its]
    ends = got.at[its]
    text = "worker {worker} ended the sum of part {flag} in round {clock} before it began"
    made.require(FRAMES, (ends > sent.at) & (got.size[its] == sent.size), text, counts=False)
    # The next part depends on the mean of the previous one: in order of parts, each worker's mean
    # must have arrived before it made the next.
    same = sent.keys("worker")
    follows = np.lexsort((sent.flag, same))
    before, after = follows[:-1], follows[1:]
    late = (same[before] != same[after]) | (ends[before] < sent.at[after])
    text = "worker {worker} made part {flag} in round {clock} before it had the mean of the last"
    findings.on(sent.table, sent.at[after]).require(FRAMES, late, text, counts=False)
    _, leader, which = np.unique(got.keys(OfSum.flag), return_index=True, return_inverse=True)
    which = which.ravel()
    mean, result = parts(got.column(SumFrame.digests))
    if not sums.codecs[0].numerics:
        text = "{kind} with digests {digests}, where nothing was computed"
        asked.require(FRAMES, got.column(SumFrame.digests) == 0, text, counts=False)
    because = [got.at[leader][which]]
    text = "worker {worker} has another mean of part {flag} in round {clock} than the others"
    asked.require(FRAMES, mean == mean[leader][which], text, because=because, counts=False)
    text = "worker {worker} has other means in round {clock} than the others"
    asked.require(FRAMES, result == result[leader][which], text, because=because, counts=False)
    part = np.empty(len(got.at), np.int64)
    part[its] = sent.column(SumFrame.nbytes)
    _check_sent(sums, got, part[leader], leader, which, findings)


def _check_sent(
    sums: Sums, got: Frames, nbytes: Ints, leader: Ints, which: Ints, findings: Findings
) -> None:
    """Check how often an element of each part was sent, equally in all sums.

    Args:
        sums: what is summed in each round.
        got: the ends of sums.
        nbytes: by sum, the bytes of its part.
        leader: by sum, the first of its ends.
        which: by end, the index of its sum.
        findings: takes what is wrong.
    """
    total = np.bincount(which, got.column(SumFrame.nbytes), minlength=len(leader)).astype(np.int64)
    times = total // nbytes
    # Least: each of p − 1 contributions must leave its rank or be folded into one that does, and
    # p − 1 ranks must receive the result; see the bandwidth bound in
    # ``collective/analysis/cost.py``. Most: every rank sends its part to all others. In between, it
    # depends on the schedule, but must be the same in all rounds.
    least, most = 2 * (sums.team - 1), sums.team * (sums.team - 1)
    holds = (times * nbytes == total) & (least <= times) & (times <= most)
    holds &= times == times[:1]
    text = (
        "in round {clock} workers sent {total} bytes to add part {flag} of {nbytes}, expected "
        "{least} to {most} times its bytes, as in earlier rounds"
    )
    findings.on(got.table, got.at[leader]).require(
        FRAMES, holds, text, total=total, nbytes=nbytes, least=least, most=most, counts=False
    )


def straight_bytes(table: Table) -> tuple[int, int]:
    """Return the bytes sent to other workers, and those of the uncompressed numbers."""
    sent, got = (
        Frames.of(table, table.where(it), 1, 1) for it in (Kind.SUM_ENCODE, Kind.SUM_DECODE)
    )
    if not len(sent.at):
        return 0, 0
    total = int(got.column(SumFrame.nbytes).sum())
    # An element would travel equally often uncompressed.
    first, made = (
        (it.round == got.round[0]) & (it.start == got.start[0]) & (it.flag == got.flag[0])
        for it in (got, sent)
    )
    times = int(got.column(SumFrame.nbytes)[first].sum()) // int(
        sent.column(SumFrame.nbytes)[made][0]
    )
    chunks = np.unique(np.stack([sent.round, sent.start, sent.size], 1), axis=0)
    return total, 4 * times * int(chunks[:, 2].sum())
