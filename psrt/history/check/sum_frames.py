"""Frames of sums: who encodes which chunk, how long it is, that all decode the same, what is kept.

In each round of a sum every worker that takes part encodes every chunk of the parameters. Either
its owner decodes what all have sent of it, encodes the mean, and all decode that; or a chunk has no
owner, and all decode what all have sent. Numbers are in no history, so digests stand for them; see
``frames``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.codec import Matrix, matrices_within
from psrt.config.names import by_hosts
from psrt.history.check.contract import Contract
from psrt.history.check.findings import FRAMES, RESIDUALS, Findings
from psrt.history.check.fragments import fragments_of
from psrt.history.check.frames import (
    FrameContract,
    check_conserved,
    check_no_sums,
    digest_of_zeros,
    frame_bounds,
)
from psrt.history.check.table import (
    Bools,
    Floats,
    Ints,
    Table,
    find,
    previous,
    repeats,
    same_as_before,
)
from psrt.history.events import Kind, parts
from psrt.history.header import Header
from psrt.partition import Span
from psrt.ways import Way

#: The owner of a chunk that all sum.
_ALL = -1


@dataclass(frozen=True, slots=True)
class Frames:
    """Events of one kind, with the chunk that each is of."""

    table: Table
    at: Ints
    #: Round, first element, elements, and 1 of means; of a part, its number.
    round: Ints
    start: Ints
    size: Ints
    back: Ints

    @classmethod
    def of(cls, table: Table, *kinds: Kind) -> Frames:
        """Return those of a table."""
        return cls._at(table, table.where(*kinds))

    @classmethod
    def _at(cls, table: Table, at: Ints) -> Frames:
        start = table.real("progress")[at].astype(np.int64)
        return cls(table, at, table["clock"][at], start, table["tau"][at], table["flag"][at])

    def only(self, back: int) -> Frames:
        """Return contributions, or with 1 means."""
        return self._at(self.table, self.at[self.back == back])

    def column(self, name: str) -> Ints:
        """Return a column of these events."""
        return self.table[name][self.at]

    def keys(self, n: int, *more: tuple[Ints, int]) -> Ints:
        """Return a number for each chunk of each round, and for further columns below a bound."""
        key = self.round * (n + 1) + self.start
        for column, bound in more:
            key = key * bound + column
        return key


def check_sum_frames(
    codec: FrameContract, contract: Contract, header: Header, table: Table, findings: Findings
) -> None:
    """Check every frame of a mode without servers.

    Args:
        codec: what it promises.
        contract: of the run.
        header: of its history.
        table: all events of all workers, worker after worker.
        findings: takes what is wrong.
    """
    sent, got = Frames.of(table, Kind.SUM_ENCODE), Frames.of(table, Kind.SUM_DECODE)
    team = team_of(contract, header)
    owners = range(_ALL, 0) if header.way == Way.GATHERED.value else range(contract.workers)
    sums = Sums.of(contract, header, table)
    _check_chunks(sent, table, header.n, sums, owners, team, findings)
    if findings.none:
        by_way = (codec, codec.reply or codec)
        for back, its in enumerate(by_way):
            _check_lengths(its, sums, sent.only(back), findings)
        _check_decoded(by_way, header.n, contract.workers, team, sent, got, findings)
        if findings.none:
            check_inside(got, sums, findings)  # to the fraction, by which it was not looked for
            _check_turns(header.n, contract.workers, sent, got, findings)
        kept = Frames.of(table, Kind.SUM_KEEP)
        for back, its in enumerate(by_way):
            _check_kept(its, header.n, table, sums, sent.only(back), kept.only(back), findings)


def team_of(contract: Contract, header: Header) -> int:
    """Return the number of workers that send what they make of a chunk; 0 if nobody does."""
    if header.way is None:
        return 0
    # Ranks of a host sum by themselves: of a chunk, each host sends once.
    return len(set(header.hosts)) if by_hosts(header.algorithm) else contract.workers


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums that are made in frames, and of what: all parameters, or a fragment in its turn.

    In a sum of fragments these lie side by side, and so the matrices in them.
    """

    #: The round of each, and the total of its weights.
    rounds: Ints
    totals: Floats
    #: Where each fragment begins, and the end of the last one; of a whole 0 and n.
    bounds: Ints
    matrices: tuple[Matrix, ...]

    @classmethod
    def of(cls, contract: Contract, header: Header, table: Table) -> Sums:
        """Return those of a run."""
        totals = _totals(table)
        made, matrices = np.flatnonzero(totals > 0), tuple(Matrix(*it) for it in header.matrices)
        if not contract.streams:
            return cls(np.arange(len(made)), totals[made], np.array([0, header.n]), matrices)
        # Those that end the differences between eager workers are of numbers as they are.
        made = made[made < len(totals) - contract.settles]
        bounds, places = [0], list[Matrix]()
        for spans in fragments_of(contract, header):
            at = bounds[-1]
            for start, stop in spans:
                within = matrices_within(matrices, Span(start, stop))
                places += [it._replace(start=at + it.start) for it in within]
                at += stop - start
            bounds.append(at)
        return cls(made, totals[made], np.array(bounds), tuple(places))

    def span(self, rounds: Ints) -> tuple[Ints, Ints]:
        """Return where that which is summed in each round begins and ends."""
        fragment = rounds % (len(self.bounds) - 1)
        return self.bounds[fragment], self.bounds[fragment + 1]


def _check_chunks(
    sent: Frames,
    table: Table,
    n: int,
    sums: Sums,
    owners: range,
    team: int,
    findings: Findings,
) -> None:
    """Check that in each round chunks tile what is summed, who encodes them, and for whom.

    Args:
        sent: all that was encoded.
        table: of the events.
        n: elements of the parameters.
        sums: what is summed.
        owners: those for whom contributions may be.
        team: the number of those that take part.
        findings: takes what is wrong.
    """
    check_inside(sent, sums, findings)
    asked = findings.on(table, sent.at)
    owner, worker = sent.column("shard"), sent.column("worker")
    text = "worker {worker} encoded the mean of a chunk that is worker {shard}'s"
    asked.require(FRAMES, (sent.back == 0) | (owner == worker), text, counts=False)
    text = f"a chunk is that of worker {{shard}}, expected {owners.start} to {owners.stop - 1}"
    inside = (owner >= owners.start) & (owner < owners.stop)
    asked.require(FRAMES, inside, text, counts=False)
    if not findings.none:
        return
    workers = int(worker.max(initial=0)) + 1
    again = repeats(sent.keys(n, (sent.back, 2), (worker, workers)))
    text = "worker {worker} encoded the chunk from element {start} on twice in round {clock}"
    asked.require(FRAMES, ~again, text, start=sent.start, counts=False)
    key = sent.keys(n)
    order = np.argsort(key, kind="stable")
    unique, first, count = np.unique(key[order], return_index=True, return_counts=True)
    group = np.searchsorted(unique, key)
    leader = order[first]  # the first event of each chunk
    means = np.bincount(group, sent.back, minlength=len(unique)).astype(np.int64)
    alike = owner == owner[leader][group]
    alike &= sent.size == sent.size[leader][group]
    text = "worker {worker} takes a chunk of round {clock} to be another than the others do"
    asked.require(FRAMES, alike, text, counts=False)
    chunk = findings.on(table, sent.at[leader])
    text = (
        "in round {clock} the chunk from element {start} on was encoded by {forth} of {team} that "
        "take part, and its mean {means} times, expected {due}"
    )
    owned = int(owners.start != _ALL)
    chunk.require(
        FRAMES, (count - means == team) & (means == owned), text, due=owned,
        start=sent.start[leader], forth=count - means, team=team, means=means, counts=False,
    )  # fmt: skip
    check_tiles(sent, leader, sums, team, findings)


def check_inside(frames: Frames, sums: Sums, findings: Findings) -> None:
    """Check that the elements of all frames are some of what is summed in their rounds."""
    low, high = sums.span(frames.round)
    inside = (frames.size > 0) & (frames.start >= low) & (frames.start + frames.size <= high)
    inside &= frames.start == frames.table.real("progress")[frames.at]
    text = "{kind} of {size} elements from {start} on, expected some of those from {low} to {high}"
    findings.on(frames.table, frames.at).require(
        FRAMES, inside, text, size=frames.size, start=frames.start, low=low, high=high
    )


def check_tiles(sent: Frames, leader: Ints, sums: Sums, team: int, findings: Findings) -> None:
    """Check that in each round chunks tile what is summed, and that there are all rounds.

    Args:
        sent: the events.
        leader: which of them is the first of each chunk, by round and place.
        sums: what is summed when.
        team: the number of workers that take part.
        findings: takes what is wrong.
    """
    chunk = findings.on(sent.table, sent.at[leader])
    rounds, start = sent.round[leader], sent.start[leader]
    stop = start + sent.size[leader]
    low, high = sums.span(rounds)
    begins = ~same_as_before(rounds)
    due = np.where(begins, low, previous(stop, 0))
    ends = np.append(begins[1:], True)[: len(begins)]
    text = "in round {clock} a chunk begins at element {start}, expected {due}"
    chunk.require(FRAMES, start == due, text, start=start, due=due, counts=False)
    text = "in round {clock} the last chunk ends at element {stop}, expected {high}"
    chunk.require(FRAMES, ~ends | (stop == high), text, stop=stop, high=high, counts=False)
    made = sums.rounds if team else sums.rounds[:0]
    text = "{kind} in round {clock}, expected round {due}"
    number = np.cumsum(begins) - 1
    due = np.append(made, np.full(len(rounds), -1))[number]
    chunk.require(FRAMES, rounds == due, text, due=due, counts=False)
    if findings.none and int(begins.sum()) != len(made):
        findings.missing(FRAMES, f"{int(begins.sum())} rounds were encoded, expected {len(made)}")


def _totals(table: Table) -> Floats:
    """Return the total of all weights in each sum, as the first worker was told."""
    ends = table.where(Kind.REDUCED)
    found: Floats = table.real("weight")[ends[table["worker"][ends] == 0]]
    return found


def _check_lengths(codec: FrameContract, sums: Sums, sent: Frames, findings: Findings) -> None:
    """Check the bytes of frames against the formula."""
    places, which = np.unique(np.stack([sent.start, sent.size], 1), axis=0, return_inverse=True)
    bounds = [
        frame_bounds(codec, size, matrices_within(sums.matrices, Span(start, start + size)))
        for start, size in places.tolist()
    ]
    low, high = np.array(bounds, np.int64).reshape(-1, 2)[which.ravel()].T
    said = sent.column("samples")
    text = (
        "worker {worker} made a frame of {samples} bytes in round {clock}, "
        f"{codec.row.name} makes {{low}} to {{high}}"
    )
    findings.on(sent.table, sent.at).require(
        FRAMES, (said >= low) & (said <= high), text, low=low, high=high
    )


def _check_decoded(
    codecs: tuple[FrameContract, FrameContract],
    n: int,
    workers: int,
    team: int,
    sent: Frames,
    got: Frames,
    findings: Findings,
) -> None:
    """Check that each frame was decoded by those that it is for, to the same numbers.

    Args:
        codecs: what that of contributions and that of means promise.
        n: elements of the parameters.
        workers: their number.
        team: of those that take part.
        sent: all that was encoded.
        got: all that was decoded.
        findings: takes what is wrong.
    """
    asked = findings.on(got.table, got.at)
    if not codecs[0].numerics:
        asked.forbid(FRAMES, "{kind} where nothing was computed")
        return
    keys = sent.keys(n, (sent.back, 2), (sent.column("worker"), workers))
    order = np.argsort(keys, kind="stable")
    source, reader = got.column("shard"), got.column("worker")
    theirs = got.keys(n, (got.back, 2), (np.clip(source, 0, workers - 1), workers))
    found = find(keys[order], theirs)
    there = (found >= 0) & (source >= 0) & (source < workers)
    text = "worker {worker} decoded a frame of worker {shard} in round {clock}, which it never made"
    asked.require(FRAMES, there, text)
    if not findings.none:
        return
    its = order[found] if len(order) else found
    owner = sent.column("shard")[its]
    text = "worker {worker} decoded a contribution to a chunk that is not its own in round {clock}"
    for_all = (sent.back == 1) | (sent.column("shard") == _ALL)
    asked.require(FRAMES, for_all[its] | (reader == owner), text, counts=False)
    text = "worker {worker} decoded a frame of worker {shard} twice in round {clock}"
    asked.require(FRAMES, ~repeats(theirs * workers + reader), text, counts=False)
    text = "worker {worker} decoded a frame of its own in round {clock} before it had made it"
    made_before = (source != reader) | (sent.at[its] < got.at)
    asked.require(FRAMES, made_before, text, because=[sent.at[its]], counts=False)
    times = np.bincount(its, minlength=len(sent.at))
    due = np.where(for_all, team, 1)
    text = "the frame of worker {worker} in round {clock} was decoded {times} times, expected {due}"
    made = findings.on(sent.table, sent.at)
    made.require(FRAMES, times == due, text, times=times, due=due, counts=False)
    (frame, numbers), (due_frame, due_numbers) = (
        parts(it) for it in (got.column("version"), sent.column("version")[its])
    )
    same: Bools = (frame == due_frame) & (got.column("samples") == sent.column("samples")[its])
    same &= got.size == sent.size[its]
    because = [sent.at[its]]
    text = "the frame of worker {shard} in round {clock} is not the one that worker {worker} got"
    asked.require(FRAMES, same, text, because=because, counts=False)
    feeds_back = np.array([it.feeds_back for it in codecs])
    text = (
        "worker {worker} says in round {clock} what its frame decodes to, which it did not look at"
    )
    unknown = parts(sent.column("version"))[1] == 0
    made.require(FRAMES, feeds_back[sent.back] | unknown, text, counts=False)
    # Then only the others say what it decodes to.
    first = np.full(len(sent.at), -1)
    first[its[::-1]] = np.arange(len(its))[::-1]
    due_numbers = np.where(feeds_back[got.back], due_numbers, numbers[first[its]])
    text = (
        "worker {worker} decoded the frame of worker {shard} in round {clock} to other numbers "
        "than the others"
    )
    asked.require(FRAMES, numbers == due_numbers, text, because=because, counts=False)


def _check_turns(n: int, workers: int, sent: Frames, got: Frames, findings: Findings) -> None:
    """Check that who encodes a mean has decoded what it is of.

    Args:
        n: elements of the parameters.
        workers: their number.
        sent: all that was encoded.
        got: all that was decoded.
        findings: takes what is wrong.
    """
    means, parts_of_it = sent.only(1), got.only(0)
    keys = means.keys(n, (means.column("worker"), workers))
    order = np.argsort(keys, kind="stable")
    theirs = parts_of_it.keys(n, (parts_of_it.column("worker"), workers))
    found = find(keys[order], theirs)
    mean = np.append(means.at[order], len(sent.table))[found]
    text = "worker {worker} encoded the mean of a chunk in round {clock} before it had decoded all"
    findings.on(got.table, parts_of_it.at).require(
        FRAMES, parts_of_it.at < mean, text, because=[np.where(found >= 0, mean, -1)], counts=False
    )


def _check_kept(
    codec: FrameContract,
    n: int,
    table: Table,
    sums: Sums,
    sent: Frames,
    kept: Frames,
    findings: Findings,
) -> None:
    """Check that each frame takes up what was kept back of its chunk before it."""
    asked = findings.on(table, kept.at)
    if not codec.keeps:
        asked.forbid(RESIDUALS, "worker {worker} kept something back, which its codec does not")
        return
    kind = np.append(table["kind"], 0)
    follows = kind[sent.at + 1] == Kind.SUM_KEEP
    belongs = (kept.at > 0) & (kind[kept.at - 1] == Kind.SUM_ENCODE)
    for name in ("worker", "shard", "clock", "tau", "flag", "progress"):
        column = table.column(name)
        follows &= column[sent.at] == np.append(column, 0)[sent.at + 1]
        belongs &= column[kept.at] == column[kept.at - 1]
    text = "worker {worker} encoded in round {clock} and did not say what it kept back"
    findings.on(table, sent.at).require(RESIDUALS, follows, text, counts=False)
    text = "worker {worker} kept something back in round {clock}, of no frame"
    asked.require(RESIDUALS, belongs, text, counts=False)
    if findings.none:
        check_chain(codec, n, table, sums, kept, findings)


def check_chain(
    codec: FrameContract, n: int, table: Table, sums: Sums, kept: Frames, findings: Findings
) -> None:
    """Check that what is kept back of a chunk is what is taken up again, and that none is lost.

    Args:
        codec: what it promises.
        n: elements of the parameters.
        table: of all events.
        sums: what is summed when.
        kept: what was kept back, when.
        findings: takes what is wrong.
    """
    owner = (kept.column("worker") * (n + 1) + kept.start) * 2 + kept.back
    order = np.lexsort((kept.round, owner))
    before, after = parts(kept.column("version")[order])
    first = ~same_as_before(owner[order])
    zeros = {size: digest_of_zeros(size) for size in np.unique(kept.size).tolist()}
    nothing = np.array([zeros[size] for size in kept.size[order].tolist()], np.int64)
    due = np.where(first, nothing, previous(after, 0))
    # Where the divisor changes, what is kept back of contributions is then scaled by as much.
    total = sums.totals[np.searchsorted(sums.rounds, kept.round[order])]
    factors = np.where(first | (kept.back[order] == 1), 1.0, total / previous(total, 1.0))
    text = "worker {worker} encoded in round {clock} without what it had kept back before"
    at = kept.at[order]
    last = np.where(first, -1, previous(at, -1))
    findings.on(table, at).require(RESIDUALS, before == due, text, because=[last])
    if codec.feeds_back:
        check_conserved(table, at, last, factors, n, findings)
    else:
        check_no_sums(table, at, findings)


def sent_bytes(header: Header, table: Table) -> tuple[int, int]:
    """Return the bytes of all frames that went to other workers, and of their numbers."""
    sent = Frames.of(table, Kind.SUM_ENCODE)
    if not len(sent.at):
        return 0, 0
    # Of one chunk each that takes part makes a contribution, and keeps its own to itself; a mean,
    # and what all sum, goes to all others.
    chunks = np.unique(np.stack([sent.round, sent.start], 1), axis=0)
    team = int((sent.back == 0).sum()) // len(chunks)
    owner = sent.column("shard")
    for_all = (sent.back == 1) | (owner == _ALL)
    copies = np.where(for_all, team - 1, sent.column("worker") != owner)
    return int((copies * sent.column("samples")).sum()), int(4 * (copies * sent.size).sum())
