"""Frames of a codec: their length, that each is decoded as it was sent, and the residuals.

A history has no gradients, so it cannot be checked that a frame represents its gradient. Digests
show that a frame arrived whole, that the server decoded it to what the worker recorded, and that
the residual of one gradient was added to the next. Sums show that error feedback loses nothing. The
codec says the length of frames.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from psrt.codec import Codec, CodecRow, Matrix, matrices_within
from psrt.core.partition import Span
from psrt.history.check.findings import FRAMES, RESIDUALS, Findings
from psrt.history.check.norms import are_near, may_be_norms
from psrt.history.check.table import (
    Bools,
    Floats,
    Ints,
    Table,
    find,
    previous,
    rank_in_run,
    same_as_before,
)
from psrt.history.events import Kind, parts
from psrt.history.header import Header
from psrt.history.kinds import Encode, Kept

#: Bytes of zeros whose checksum is computed at a time.
_CHUNK = 1 << 20
#: Kinds of events that only a run with a codec has: between workers and servers, and all.
SERVED = (Kind.ENCODE, Kind.RESIDUAL, Kind.DECODE, Kind.REPLY_ENCODE, Kind.REPLY_DECODE)
KINDS = (*SERVED, Kind.SUM_ENCODE, Kind.SUM_KEEP, Kind.SUM_DECODE)
#: The kinds of residuals.
KEPT = (Kind.RESIDUAL, Kind.SUM_KEEP)
#: Their fields.
_SUMS = (Kept.given, Kept.decoded, Kept.kept, Kept.most)
#: The largest rounding error of a float32: relative, and absolute for the smallest numbers.
_ROUNDING, _TINY = 2.0**-24, 2.0**-149
#: The smallest normal number, which bounds include for each element.
_NORMAL = 2.0**-126


@dataclass(frozen=True, slots=True)
class FrameContract:
    """What a run's codec promises."""

    row: CodecRow
    #: Whether it has a residual, and whether that is error feedback.
    keeps: bool
    feeds_back: bool
    #: By shard: its elements, and the matrices in it.
    sizes: tuple[int, ...]
    matrices: tuple[tuple[Matrix, ...], ...]
    #: Whether anything was computed.
    numerics: bool
    #: What the codec of replies promises; None if parameters are sent.
    reply: FrameContract | None = None

    def codec(self, n: int, matrices: Sequence[Matrix]) -> Codec:
        """Return a codec that makes frames of n elements."""
        return self.row.codec(n, matrices=matrices)

    def bounds(self, shard: int, epoch: int) -> tuple[int, int]:
        """Return the least and the most bytes of a frame of a shard in an epoch."""
        codec = self.codec(self.sizes[shard], self.matrices[shard])
        codec.begin_epoch(epoch)
        return (codec.shortest if self.numerics else codec.longest), codec.longest


def frames_of(header: Header) -> FrameContract | None:
    """Return what the codec of a run promises; None where none was in effect."""
    if not (header.knob("codec") and header.knob("codec_everywhere")):
        return None
    row, feeds_back = header.chosen("codec"), bool(header.knob("error_feedback"))
    matrices = [Matrix(*it) for it in header.matrices]
    pushes = FrameContract(
        row=row,
        keeps=(feeds_back or "momentum" in row.knobs) and header.numerics,
        feeds_back=feeds_back and header.numerics,
        sizes=tuple(stop - start for start, stop in header.spans),
        matrices=tuple(matrices_within(matrices, Span(*span)) for span in header.spans),
        numerics=header.numerics,
    )
    back = header.chosen("codec_reply")
    if back is None:
        return pushes
    row = back.of_differences()
    # What a difference to a worker's parameters loses is part of the next difference.
    kept = not header.servers and row.is_fed_back and header.numerics
    reply = replace(pushes, row=row, keeps=kept, feeds_back=kept)
    return replace(pushes, reply=reply)


def frame_bounds(contract: FrameContract, n: int, matrices: Sequence[Matrix]) -> tuple[int, int]:
    """Return the least and the most bytes of a frame of n elements in any epoch."""
    codec, bounds = contract.codec(n, matrices), []
    for epoch in (0, int(contract.row.knobs.get("warmup_epochs") or 0)):
        codec.begin_epoch(epoch)
        bounds.append((codec.shortest, codec.longest))
    return min(least for least, _ in bounds), max(most for _, most in bounds)


def without_frames(table: Table) -> Table:
    """Return a table without the events of codecs, which the other rules do not expect."""
    framed = table.are(*KINDS)
    return Table(table.events[~framed], table.name) if framed.any() else table


def check_frames(
    codec: FrameContract | None,
    workers: Table,
    shards: Sequence[Table],
    unreported: Sequence[int],
    findings: Findings,
) -> None:
    """Check every frame and every residual.

    Args:
        codec: what it promises; None if none was in effect.
        workers: all events of all workers, worker after worker.
        shards: all events of each shard.
        unreported: workers whose own events are unknown.
        findings: takes what is wrong.
    """
    if codec is None:
        for table in (workers, *shards):
            text = "{kind} of worker {worker} in a run without a codec"
            findings.on(table, table.where(*KINDS)).forbid(FRAMES, text)
        return
    _check_places(workers, Kind.PUSH, Kind.ENCODE, findings)
    for number, table in enumerate(shards):
        if codec.numerics:
            _check_places(table, Kind.RECEIVE, Kind.DECODE, findings)
        else:
            text = "shard {shard} decoded a frame where nothing was computed"
            findings.on(table, table.where(Kind.DECODE)).forbid(FRAMES, text)
        if findings.none:
            at, its = table.where(Kind.DECODE), _of_shard(workers, Kind.ENCODE, number)
            at = at[~np.isin(table["worker"][at], unreported)]
            _check_delivery(table, at, workers, its, findings, knows=codec.feeds_back)
    if findings.none:
        at = workers.where(Kind.ENCODE)
        epoch = np.floor(workers.real("progress")[at - 1]).astype(np.int64)
        _check_lengths(codec, workers, at, epoch, findings)
        if not codec.feeds_back:
            text = "{kind} of worker {worker} at clock {clock} records what its frame decodes to, "
            text += "but did not decode it"
            unknown = parts(workers[Encode.digests][at])[1] == 0
            findings.on(workers, at).require(FRAMES, unknown, text, counts=False)
        _check_residuals(codec, workers, findings)
    if findings.none:
        _check_replies(codec.reply, workers, shards, findings)


def _check_replies(
    codec: FrameContract | None, workers: Table, shards: Sequence[Table], findings: Findings
) -> None:
    """Check the frames of replies; with None there must be none."""
    if codec is None or not codec.numerics:
        text = "{kind} of worker {worker} where replies are parameters, or nothing is computed"
        findings.on(workers, workers.where(Kind.REPLY_DECODE)).forbid(FRAMES, text)
    for number, table in enumerate(shards):
        at = table.where(Kind.REPLY_ENCODE)
        if codec is None:
            text = "shard {shard} encoded a reply where replies are parameters"
            findings.on(table, at).forbid(FRAMES, text)
            continue
        _check_places(table, Kind.REPLY, Kind.REPLY_ENCODE, findings, always=True)
        if not findings.none:
            return
        _check_lengths(codec, table, at, np.zeros_like(at), findings)
        if codec.numerics:
            decoded = _of_shard(workers, Kind.REPLY_DECODE, number)
            _check_delivery(workers, decoded, table, at, findings, knows=True)
            _check_all_read(workers, decoded, table, at, findings)


def _check_all_read(
    workers: Table, decoded: Ints, shard: Table, sent: Ints, findings: Findings
) -> None:
    """Check that every worker that has left had decoded every reply of a shard, once."""
    leaves = workers.where(Kind.LEAVE)
    owner = workers["worker"][leaves]
    most = int(max(owner.max(initial=0), shard["worker"].max(initial=0))) + 1
    read = np.bincount(workers["worker"][decoded], minlength=most)
    due = np.bincount(shard["worker"][sent], minlength=most)
    text = "worker {worker} left after decoding {read} of {due} replies"
    findings.on(workers, leaves).require(
        FRAMES, read[owner] == due[owner], text, read=read[owner], due=due[owner], counts=False
    )


def _of_shard(table: Table, kind: Kind, number: int) -> Ints:
    """Return the positions of the events of a kind about a shard."""
    at = table.where(kind)
    found: Ints = at[table["shard"][at] == number]
    return found


def _same(table: Table, at: Ints, other: Ints) -> Bools:
    """Return whether pairs of events have equal worker, shard and clock; either may be missing."""
    inside = (other >= 0) & (other < len(table))
    other = np.where(inside, other, 0)
    for name in ("worker", "shard", "clock"):
        inside = inside & (table[name][at] == table[name][other])
    return inside


def _check_places(
    table: Table, what: Kind, framed: Kind, findings: Findings, *, always: bool = False
) -> None:
    """Check that events with samples, or all, are followed by their frame, and no others are."""
    kind, samples = np.append(table["kind"], 0), table["samples"]
    messages, frames = table.where(what), table.where(framed)
    follows = _same(table, messages, messages + 1) & (kind[messages + 1] == framed)
    text = (
        f"{{kind}} of worker {{worker}} at clock {{clock}} with {{samples}} samples: {framed.name} "
    )
    findings.on(table, messages).require(
        FRAMES,
        follows == (always | (samples[messages] > 0)),
        text + "must follow it if there are samples",
    )
    belongs = _same(table, frames, frames - 1) & (kind[frames - 1] == what)
    text = "{kind} of worker {worker} at clock {clock} follows no " + what.name
    findings.on(table, frames).require(FRAMES, belongs, text, counts=False)


def _check_lengths(
    codec: FrameContract, table: Table, at: Ints, epoch: Ints, findings: Findings
) -> None:
    """Check the bytes of frames against the formula.

    Args:
        codec: whose they are.
        table: of the events.
        at: positions of the encodings.
        epoch: of each.
        findings: takes what is wrong.
    """
    # There are few different ones: at most shards times epochs.
    shard = table["shard"][at]
    places, which = np.unique(np.stack([shard, epoch], axis=1), axis=0, return_inverse=True)
    bounds = np.array([codec.bounds(*place) for place in places.tolist()], np.int64).reshape(-1, 2)
    low, high = bounds[which.ravel()].T
    said = table[Encode.nbytes][at]
    text = (
        f"{{kind}} of worker {{worker}} and shard {{shard}} at clock {{clock}}: a frame of "
        f"{{nbytes}} bytes, {codec.row.name} makes {{low}} to {{high}}"
    )
    findings.on(table, at).require(FRAMES, (said >= low) & (said <= high), text, low=low, high=high)


def _check_delivery(
    got: Table, at: Ints, sent: Table, its: Ints, findings: Findings, *, knows: bool
) -> None:
    """Check that frames were decoded as they were sent, to the numbers that the sender recorded.

    Args:
        got: the table of decodings.
        at: their positions.
        sent: the table of encodings, for the same shard.
        its: their positions.
        findings: takes what is wrong.
        knows: whether the sender knows what its frames decode to.
    """
    wide = int(max(it["clock"].max(initial=0) for it in (got, sent))) + 1
    keys = _numbered(sent["worker"][its] * wide + sent["clock"][its])
    order = np.argsort(keys, kind="stable")
    found = find(keys[order], _numbered(got["worker"][at] * wide + got["clock"][at]))
    text = "{kind} of worker {worker} and shard {shard} for clock {clock}: no such frame was sent"
    findings.on(got, at).require(FRAMES, found >= 0, text)
    if not findings.none or not len(at):
        return
    its = its[order][found]
    (frame, made), (due_frame, due_made) = (
        parts(table[Encode.digests][where]) for table, where in ((got, at), (sent, its))
    )
    whole = (frame == due_frame) & (got[Encode.nbytes][at] == sent[Encode.nbytes][its])
    text = (
        "{kind} of worker {worker} and shard {shard} for clock {clock}: not the frame that was sent"
    )
    findings.on(got, at).require(FRAMES, whole, text, because=[(sent, its)])
    text = (
        "{kind} of worker {worker} and shard {shard} for clock {clock} decoded to other numbers "
        "than its sender recorded"
    )
    same = made == due_made
    if knows:
        findings.on(got, at).require(FRAMES, same, text, because=[(sent, its)], counts=False)


def _numbered(keys: Ints) -> Ints:
    """Return distinct keys: a worker that stopped was answered twice for the same clock."""
    order = np.argsort(keys, kind="stable")
    found = np.empty_like(keys)
    found[order] = 2 * keys[order] + np.minimum(rank_in_run(keys[order]), 1)
    return found


def _check_residuals(codec: FrameContract, table: Table, findings: Findings) -> None:
    """Check that each frame includes the residual of the frame before."""
    at = table.where(Kind.RESIDUAL)
    if not codec.keeps:
        text = "worker {worker} kept a residual, but its codec has none"
        findings.on(table, at).forbid(RESIDUALS, text)
        return
    kind, frames = np.append(table["kind"], 0), table.where(Kind.ENCODE)
    follows = _same(table, frames, frames + 1) & (kind[frames + 1] == Kind.RESIDUAL)
    text = "worker {worker} encoded at clock {clock} without recording its residual"
    findings.on(table, frames).require(RESIDUALS, follows, text, counts=False)
    belongs = _same(table, at, at - 1) & (kind[at - 1] == Kind.ENCODE)
    text = "worker {worker} kept a residual at clock {clock} without a frame"
    findings.on(table, at).require(RESIDUALS, belongs, text, counts=False)
    owner = table["worker"][at] * len(codec.sizes) + table["shard"][at]
    order = np.argsort(owner, kind="stable")
    at, owner = at[order], owner[order]
    before, after = parts(table[Encode.digests][at])
    nothing = np.array([digest_of_zeros(size) for size in codec.sizes], np.int64)
    first = ~same_as_before(owner)
    due = np.where(first, nothing[table["shard"][at]], previous(after, 0))
    text = (
        "worker {worker} encoded at clock {clock} for shard {shard} without the residual of its "
        "frame before"
    )
    last = np.where(first, -1, previous(at, -1))
    findings.on(table, at).require(RESIDUALS, before == due, text, because=[last])
    if codec.feeds_back:
        check_conserved(table, at, last, np.ones(len(at)), max(codec.sizes), findings)
    else:
        check_no_sums(table, at, findings)


def check_no_sums(table: Table, at: Ints, findings: Findings) -> None:
    """Check that no sums are recorded if the codec conserves nothing.

    Args:
        table: of the events.
        at: positions of what was kept back.
        findings: takes what is wrong.
    """
    sums = np.array([table.real(it)[at] for it in _SUMS])
    text = "{kind} of worker {worker} at clock {clock} with sums, which its codec does not conserve"
    findings.on(table, at).require(RESIDUALS, (sums == 0).all(axis=0), text, counts=False)


def check_conserved(
    table: Table, at: Ints, last: Ints, factor: Floats, n: int, findings: Findings
) -> None:
    """Check that input plus last residual equals what was sent plus the new residual.

    By sums over their elements with random signs, which differ only by rounding. The roundings to
    float32 in the addition and the subtraction are bounded by ``most``; that of the factor by three
    units of what it multiplies. Each sum is recorded as a float32.

    Args:
        table: of the events.
        at: positions of what was kept back.
        last: for each, the position of the residual before; −1 for none.
        factor: by which the last residual was multiplied since.
        n: the most elements of a vector.
        findings: takes what is wrong.
    """
    given, decoded, kept, most = (table.real(it) for it in _SUMS)
    with np.errstate(invalid="ignore"):  # numbers that are not finite have no sum
        had = np.where(last >= 0, factor * kept[last], 0.0)
        scaled = np.where((last >= 0) & (factor != 1.0), factor * most[last], 0.0)
        there, due = decoded[at] + kept[at], given[at] + had
        least = np.abs(decoded[at]) + 2 * np.abs(kept[at])
        sums = np.abs(given[at]) + np.abs(had) + np.abs(decoded[at]) + np.abs(kept[at])
        # The factor 1.01 covers the roundings of these bounds, and products of roundings.
        slack = 1.01 * _ROUNDING * (most[at] + 3 * scaled + sums) + 4 * _TINY
        # A codec may overflow, as float16 does: the residual then overflows, too.
        lost = ~np.isfinite(decoded[at]) & ~np.isfinite(kept[at])
        holds = are_near(there, due, slack) | lost
        bounded = may_be_norms(least, most[at], n) | (most[at] <= 2 * n * _NORMAL)
    text = (
        "what worker {worker} sent at clock {clock} and its new residual add up to {there:.9g}, "
        "its input and last residual to {due:.9g}, which rounding changes by at most {slack:.2g}"
    )
    findings.on(table, at).require(
        RESIDUALS, holds, text, because=[last], there=there, due=due, slack=slack, counts=False
    )
    text = "worker {worker} records a bound of rounding of its residual of {seconds:g} units"
    text += ", which does not fit sums of {least:g}"
    findings.on(table, at).require(RESIDUALS, bounded, text, least=least, counts=False)


def digest_of_zeros(size: int) -> int:
    """Return the digest of that many float32 zeros."""
    crc, left = 0, 4 * size
    while left:
        crc = zlib.crc32(bytes(min(left, _CHUNK)), crc)
        left -= min(left, _CHUNK)
    return crc & 0x7FFFFFFF
