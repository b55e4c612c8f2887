"""Frames of sums: which worker encodes which chunk, lengths, decoding, and residuals.

In each round of a sum every participating worker encodes every chunk. Then there are three ways.
The owner of a chunk decodes all contributions and encodes the mean, which all decode. Or chunks
have no owner, and all decode all contributions. Or a schedule adds the parts that a linear codec
makes (``straight_sums``). A history has no numbers, so digests stand for them; see ``frames``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.codec import Matrix, matrices_within
from psrt.codec.linear import Linear
from psrt.config.names import by_hosts
from psrt.core.partition import Span
from psrt.core.ways import Way
from psrt.history.check.contract import Contract
from psrt.history.check.findings import FRAMES, RESIDUALS, Findings
from psrt.history.check.fragments import fragment_spans
from psrt.history.check.frames import (
    FrameContract,
    check_conserved,
    check_no_sums,
    digest_of_zeros,
    frame_bounds,
)
from psrt.history.check.table import (
    Floats,
    Ints,
    Table,
    find,
    previous,
    repeats,
    same_as_before,
)
from psrt.history.events import OF_ALL, Kind, parts
from psrt.history.header import Header
from psrt.history.kinds import OfSum, Reduced, SumFrame

#: Flags of a frame: a contribution or a mean, or the number of a part.
_FLAGS = 2


@dataclass(frozen=True, slots=True)
class Frames:
    """Events of some kinds, with the chunk of each."""

    table: Table
    at: Ints
    #: Elements of the parameters, and workers.
    n: int
    workers: int
    #: Round, first element, number of elements; flag: 1 for means, or the number of a part.
    round: Ints
    start: Ints
    size: Ints
    flag: Ints

    @classmethod
    def of(cls, table: Table, at: Ints, n: int, workers: int) -> Frames:
        """Return the events at these positions."""
        start = table.real(OfSum.start)[at].astype(np.int64)
        clock, size, flag = (table[it][at] for it in (OfSum.updates, OfSum.size, OfSum.flag))
        return cls(table, at, n, workers, clock, start, size, flag)

    def only(self, flag: int) -> Frames:
        """Return the events with a flag."""
        return Frames.of(self.table, self.at[self.flag == flag], self.n, self.workers)

    def column(self, name: str) -> Ints:
        """Return a column of these events."""
        return self.table[name][self.at]

    def keys(self, *more: str) -> Ints:
        """Return a key for each chunk of each round, with further columns."""
        key = self.round * (self.n + 1) + self.start
        for name in more:
            bound = _FLAGS if name == OfSum.flag else self.workers
            key = key * bound + np.clip(self.column(name), 0, bound - 1)
        return key


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums that are made in frames: of all parameters, or of fragments in turn.

    In a sum of a fragment its layers lie side by side, and so do the matrices in them.
    """

    table: Table
    n: int
    workers: int
    #: The number of workers that send their frame of a chunk; 0 if none does. If hosts sum inside,
    #: one worker per host does.
    team: int
    #: Whether chunks have owners, which encode their means; and whether a schedule adds parts.
    owned: bool
    straight: bool
    #: The promises of the codec of contributions and of that of means.
    codecs: tuple[FrameContract, FrameContract]
    #: The round of each sum, and the total of its weights.
    rounds: Ints
    totals: Floats
    #: The start of each fragment, and the end of the last one; 0 and n without fragments.
    bounds: Ints
    matrices: tuple[Matrix, ...]

    @classmethod
    def of(cls, codec: FrameContract, contract: Contract, header: Header, table: Table) -> Sums:
        """Return the sums of a run."""
        ends = table.where(Kind.REDUCED)
        totals = table.real(Reduced.weight)[ends[table["worker"][ends] == 0]]
        made = np.flatnonzero(totals > 0)
        rounds, bounds = np.arange(len(made)), [0, header.n]
        matrices = [Matrix(*it) for it in header.matrices]
        if contract.streams:
            # The sums that settle the differences of eager workers are uncompressed.
            rounds = made = made[made < len(totals) - contract.settles]
            bounds, within, matrices = [0], matrices, []
            for spans in fragment_spans(contract, header):
                at = bounds[-1]
                for span in spans:
                    own = matrices_within(within, span)
                    matrices += [it._replace(start=at + it.start) for it in own]
                    at += span.size
                bounds.append(at)
        team = len(set(header.hosts)) if by_hosts(header.algorithm) else contract.workers
        return cls(
            table,
            header.n,
            contract.workers,
            team if header.way is not None else 0,
            header.way not in (Way.GATHERED.value, Way.STRAIGHT.value),
            header.way == Way.STRAIGHT.value,
            (codec, codec.reply or codec),
            rounds,
            totals[made],
            np.array(bounds),
            tuple(matrices),
        )

    def frames(self, kind: Kind) -> Frames:
        """Return the events of a kind."""
        return Frames.of(self.table, self.table.where(kind), self.n, self.workers)

    def span(self, rounds: Ints) -> tuple[Ints, Ints]:
        """Return the start and end of the summed span of each round."""
        fragment = rounds % (len(self.bounds) - 1)
        return self.bounds[fragment], self.bounds[fragment + 1]

    def due(self, start: int, size: int) -> list[tuple[int, int, int]]:
        """Return by flag the least and the most bytes of a chunk's frame, and their number."""
        matrices = matrices_within(self.matrices, Span(start, start + size))
        if not self.straight:
            numbers = self.team, int(self.owned)
            return [
                (*frame_bounds(codec, size, matrices), number)
                for codec, number in zip(self.codecs, numbers, strict=True)
            ]
        codec = self.codecs[0].codec(size, matrices)
        assert isinstance(codec, Linear), "only linear codecs are summed by schedules"
        many = [*codec.parts, *[0] * _FLAGS][:_FLAGS]
        nbytes = [np.dtype(codec.dtype).itemsize * it for it in many]
        return [(it, it, self.team if it else 0) for it in nbytes]


def check_sum_frames(sums: Sums, findings: Findings) -> None:
    """Check every frame of a mode without servers, in which each is for another worker."""
    sent, got = sums.frames(Kind.SUM_ENCODE), sums.frames(Kind.SUM_DECODE)
    check_chunks(sums, sent, findings)
    if findings.none:
        _check_decoded(sums, sent, got, findings)
        if findings.none:
            check_inside(sums, got, findings)  # including their fields that matching did not use
            _check_turns(sent, got, findings)
        kept = sums.frames(Kind.SUM_KEEP)
        for flag, codec in enumerate(sums.codecs):
            check_kept(codec, sums, sent.only(flag), kept.only(flag), findings)


def check_inside(sums: Sums, frames: Frames, findings: Findings) -> None:
    """Check that the elements of all frames are within the summed span of their rounds."""
    low, high = sums.span(frames.round)
    inside = (frames.size > 0) & (frames.start >= low) & (frames.start + frames.size <= high)
    inside &= frames.start == frames.table.real(OfSum.start)[frames.at]
    text = "{kind} of {size} elements from {start} on, expected a part of {low} to {high}"
    findings.on(frames.table, frames.at).require(
        FRAMES, inside, text, size=frames.size, start=frames.start, low=low, high=high
    )


def check_chunks(sums: Sums, sent: Frames, findings: Findings) -> None:
    """Check that in each round chunks tile the summed span, and their encoders and owners."""
    check_inside(sums, sent, findings)
    asked = findings.on(sent.table, sent.at)
    owner, worker = sent.column(OfSum.peer), sent.column("worker")
    text = "worker {worker} encoded the mean of a chunk that worker {peer} owns"
    mine = (sent.flag == 0) | (owner == worker) | (not sums.owned)
    asked.require(FRAMES, mine, text, counts=False)
    low, high = (0, sums.workers) if sums.owned else (OF_ALL, OF_ALL + 1)
    text = f"a chunk belongs to worker {{peer}}, expected {low} to {high - 1}"
    asked.require(FRAMES, (owner >= low) & (owner < high), text, counts=False)
    if not findings.none:
        return
    again = repeats(sent.keys(OfSum.flag, "worker"))
    text = "worker {worker} encoded the chunk from element {start} on twice in round {clock}"
    asked.require(FRAMES, ~again, text, start=sent.start, counts=False)
    key = sent.keys()
    chunks, leader = np.unique(key, return_index=True)  # the first event of each chunk
    group = np.searchsorted(chunks, key)
    alike = (owner == owner[leader][group]) & (sent.size == sent.size[leader][group])
    text = "worker {worker} has another chunk in round {clock} than the others"
    asked.require(FRAMES, alike, text, counts=False)
    places, which = np.unique(np.stack([sent.start, sent.size], 1), axis=0, return_inverse=True)
    due = np.array([sums.due(*it) for it in places.tolist()], np.int64).reshape(-1, _FLAGS, 3)
    due = due[which.ravel()]
    least, most, _ = due[np.arange(len(due)), sent.flag].T
    said = sent.column(SumFrame.nbytes)
    text = (
        "worker {worker} made a frame of {nbytes} bytes in round {clock}, "
        f"{sums.codecs[0].row.name} makes {{least}} to {{most}}"
    )
    asked.require(FRAMES, (said >= least) & (said <= most), text, least=least, most=most)
    count = np.bincount(_FLAGS * group + sent.flag, minlength=_FLAGS * len(chunks))
    count, number = count.reshape(-1, _FLAGS), due[leader, :, 2]
    text = (
        "in round {clock} the chunk from element {start} on was encoded {first} and {second} times "
        f"by {sums.team} workers that take part, expected {{due}} and {{after}}"
    )
    findings.on(sent.table, sent.at[leader]).require(
        FRAMES, (count == number).all(1), text, start=sent.start[leader], first=count[:, 0],
        second=count[:, 1], due=number[:, 0], after=number[:, 1], counts=False,
    )  # fmt: skip
    _check_tiles(sums, sent, leader, findings)


def _check_tiles(sums: Sums, sent: Frames, leader: Ints, findings: Findings) -> None:
    """Check that in each round chunks tile the summed span, and that all rounds exist.

    Args:
        sums: what is summed in each round.
        sent: the events.
        leader: the index of the first event of each chunk, by round and place.
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
    made = sums.rounds if sums.team else sums.rounds[:0]
    text = "{kind} in round {clock}, expected round {due}"
    number = np.cumsum(begins) - 1
    due = np.append(made, np.full(len(rounds), -1))[number]
    chunk.require(FRAMES, rounds == due, text, due=due, counts=False)
    if findings.none and int(begins.sum()) != len(made):
        findings.missing(FRAMES, f"{int(begins.sum())} rounds were encoded, expected {len(made)}")


def _check_decoded(sums: Sums, sent: Frames, got: Frames, findings: Findings) -> None:
    """Check that each frame was decoded by all of its receivers, to the same numbers."""
    asked = findings.on(got.table, got.at)
    if not sums.codecs[0].numerics:
        asked.forbid(FRAMES, "{kind} where nothing was computed")
        return
    keys = sent.keys(OfSum.flag, "worker")
    order = np.argsort(keys, kind="stable")
    source, reader = got.column(OfSum.peer), got.column("worker")
    theirs = got.keys(OfSum.flag, OfSum.peer)
    found = find(keys[order], theirs)
    there = (found >= 0) & (source >= 0) & (source < sums.workers)
    text = "worker {worker} decoded a frame of worker {peer} in round {clock}, which it never made"
    asked.require(FRAMES, there, text)
    if not findings.none:
        return
    its = order[found] if len(order) else found
    owner = sent.column(OfSum.peer)[its]
    text = "worker {worker} decoded a contribution to a chunk that is not its own in round {clock}"
    for_all = (sent.flag == 1) | (sent.column(OfSum.peer) == OF_ALL)
    asked.require(FRAMES, for_all[its] | (reader == owner), text, counts=False)
    text = "worker {worker} decoded a frame of worker {peer} twice in round {clock}"
    asked.require(FRAMES, ~repeats(theirs * sums.workers + reader), text, counts=False)
    text = "worker {worker} decoded a frame of its own in round {clock} before it had made it"
    because = [sent.at[its]]
    made_before = (source != reader) | (sent.at[its] < got.at)
    asked.require(FRAMES, made_before, text, because=because, counts=False)
    times = np.bincount(its, minlength=len(sent.at))
    due = np.where(for_all, sums.team, 1)
    text = "the frame of worker {worker} in round {clock} was decoded {times} times, expected {due}"
    made = findings.on(sent.table, sent.at)
    made.require(FRAMES, times == due, text, times=times, due=due, counts=False)
    (frame, numbers), (due_frame, due_numbers) = (
        parts(it) for it in (got.column("version"), sent.column("version")[its])
    )
    same = (frame == due_frame) & (got.column(SumFrame.nbytes) == sent.column(SumFrame.nbytes)[its])
    same &= got.size == sent.size[its]
    text = "the frame of worker {peer} in round {clock} is not the one that worker {worker} got"
    asked.require(FRAMES, same, text, because=because, counts=False)
    feeds_back = np.array([it.feeds_back for it in sums.codecs])
    text = (
        "worker {worker} records in round {clock} what its frame decodes to, but did not decode it"
    )
    unknown = parts(sent.column(SumFrame.digests))[1] == 0
    made.require(FRAMES, feeds_back[sent.flag] | unknown, text, counts=False)
    # Then only the others record what it decodes to.
    first = np.full(len(sent.at), -1)
    first[its[::-1]] = np.arange(len(its))[::-1]
    due_numbers = np.where(feeds_back[got.flag], due_numbers, numbers[first[its]])
    text = (
        "worker {worker} decoded the frame of worker {peer} in round {clock} to other numbers "
        "than the others"
    )
    asked.require(FRAMES, numbers == due_numbers, text, because=because, counts=False)


def _check_turns(sent: Frames, got: Frames, findings: Findings) -> None:
    """Check that a worker that encodes a mean has decoded all contributions."""
    means, contributions = sent.only(1), got.only(0)
    keys = means.keys("worker")
    order = np.argsort(keys, kind="stable")
    found = find(keys[order], contributions.keys("worker"))
    mean = np.append(means.at[order], len(sent.table))[found]
    text = "worker {worker} encoded the mean of a chunk in round {clock} before it had decoded all"
    because = [np.where(found >= 0, mean, -1)]
    findings.on(got.table, contributions.at).require(
        FRAMES, contributions.at < mean, text, because=because, counts=False
    )


def check_kept(
    codec: FrameContract, sums: Sums, sent: Frames, kept: Frames, findings: Findings
) -> None:
    """Check that each frame, or sum of parts, is followed by one record of its residual.

    Args:
        codec: what it promises.
        sums: what is summed when.
        sent: what was encoded.
        kept: what was kept back.
        findings: takes what is wrong.
    """
    asked, made = findings.on(sums.table, kept.at), findings.on(sums.table, sent.at)
    if not codec.keeps:
        asked.forbid(RESIDUALS, "worker {worker} kept a residual, but its codec has none")
        return
    check_inside(sums, kept, findings)
    ours, theirs = sent.keys("worker"), kept.keys("worker")
    text = "worker {worker} kept a residual in round {clock} without a frame, or twice"
    once = np.isin(theirs, ours) & ~repeats(theirs)
    asked.require(RESIDUALS, once & ((kept.flag == 0) | (not sums.straight)), text, counts=False)
    text = "worker {worker} encoded in round {clock} without recording its residual"
    made.require(RESIDUALS, np.isin(ours, theirs), text, counts=False)
    if not findings.none:
        return
    order = np.argsort(theirs, kind="stable")
    its = order[find(theirs[order], ours)]
    # If a schedule adds parts, the residual is known once all parts are made.
    behind = kept.at[its] > sent.at if sums.straight else kept.at[its] == sent.at + 1
    same = (kept.size[its] == sent.size) & (kept.column(OfSum.peer)[its] == sent.column(OfSum.peer))
    text = "worker {worker} did not record the residual right after its frame in round {clock}"
    made.require(RESIDUALS, behind & same, text, because=[kept.at[its]], counts=False)
    if findings.none:
        _check_chain(codec, sums, kept, findings)


def _check_chain(codec: FrameContract, sums: Sums, kept: Frames, findings: Findings) -> None:
    """Check that the residual of a chunk is used in the next round, and that nothing is lost.

    Args:
        codec: what it promises.
        sums: what is summed when.
        kept: the records of residuals.
        findings: takes what is wrong.
    """
    owner = (kept.column("worker") * (sums.n + 1) + kept.start) * _FLAGS + kept.flag
    order = np.lexsort((kept.round, owner))
    before, after = parts(kept.column(OfSum.digests)[order])
    first = ~same_as_before(owner[order])
    zeros = {size: digest_of_zeros(size) for size in np.unique(kept.size).tolist()}
    nothing = np.array([zeros[size] for size in kept.size[order].tolist()], np.int64)
    due = np.where(first, nothing, previous(after, 0))
    # If the divisor changes, residuals of contributions are scaled by the same factor.
    total = sums.totals[np.searchsorted(sums.rounds, kept.round[order])]
    factors = np.where(first | (kept.flag[order] == 1), 1.0, total / previous(total, 1.0))
    text = "worker {worker} encoded in round {clock} without its last residual"
    at = kept.at[order]
    last = np.where(first, -1, previous(at, -1))
    findings.on(kept.table, at).require(RESIDUALS, before == due, text, because=[last])
    if codec.feeds_back:
        check_conserved(kept.table, at, last, factors, sums.n, findings)
    else:
        check_no_sums(kept.table, at, findings)


def sent_bytes(header: Header, table: Table) -> tuple[int, int]:
    """Return the bytes of all frames sent to other workers, and of their numbers."""
    sent = Frames.of(table, table.where(Kind.SUM_ENCODE), header.n, len(header.workers))
    if not len(sent.at):
        return 0, 0
    # Each participant contributes to every chunk, and does not send the one to its own chunk. A
    # mean, and a contribution that all sum, goes to all others.
    team = int((sent.flag == 0).sum()) // len(np.unique(sent.keys()))
    owner = sent.column(OfSum.peer)
    for_all = (sent.flag == 1) | (owner == OF_ALL)
    copies = np.where(for_all, team - 1, sent.column("worker") != owner)
    return int((copies * sent.column(SumFrame.nbytes)).sum()), int(4 * (copies * sent.size).sum())
