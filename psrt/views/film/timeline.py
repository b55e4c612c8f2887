"""A mode's timeline as a film: workers and servers are lanes, a frame is a moment.

There is a frame whenever a worker begins or ends a step, and when learners are merged. Events
within a small part of a usual step form one frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from psrt.core.messages import LATE, Leave, Mix, Params, Push, Relay
from psrt.core.units import plural
from psrt.views.explain.merges import Merge
from psrt.views.explain.recording import Passage, described
from psrt.views.explain.timeline import (
    COMPUTE,
    MESSAGES,
    WAITING,
    WINDOW,
    WORKERS,
    Stretch,
    Timeline,
    Transfer,
    lesson,
)
from psrt.views.film.film import (
    EMPTY,
    Bar,
    Cell,
    Change,
    Cost,
    Film,
    Frame,
    Lane,
    Lanes,
    Look,
    Message,
    SoFar,
    Strip,
)
from psrt.views.film.moments import InOrder, moments

#: Events closer than this form one frame, in usual steps: a few latencies.
_APART = 0.1
#: Most usual steps that are visible at once.
_WINDOW = 16.0
#: Colours of messages to servers, from them, and of sums; and of waits for messages.
_PUSH, _REPLY, _SUM, _GREY = 0, 2, 4, 6
#: Computing, waiting for a worker, waiting for messages; for a fragment: some parts have yet to be
#: sent, and all have been sent. The colour is that of the worker.
_COMPUTES = Look(0, 0.55, 1.0, "█", joint="▌")
_WAITS = Look(0, 0.4, 0.3, "·{}")
_TRAVELS = Look(_GREY, 0.7, 0.08, "-")
_IS_OPEN = Look(_GREY, 0.7, 0.2, "=")
_PARTIAL = Look(0, 0.45, 0.12, "·")
_WHOLE = Look(0, 0.8, 0.3, "─")
#: At a server: a merge lacks its quorum; its window is open, or is as soon as it has one.
_LACKS = Look(_REPLY, 0.4, 0.12, "·")
_MERGES = Look(_REPLY, 0.8, 0.5, "─")
_KEY = "█ computes (▌ end of a step)   ·0· waits for worker 0   - waits for messages"
_KEY_OF_FRAGMENTS = "├ sends its part of a mean   · others missing   ─ all sent   ┤ mixes it in"
_KEY_OF_PUSHES = "├ pushes a fragment   · waits for its merge   ─ merged   ┤ mixes it in"
_KEY_OF_MERGES = "server: ├ a push comes   · a merge lacks its quorum   ┤ merges"
_KEY_OF_WINDOWS = "server: ─ a merge's window is open   worker: = waits until it is over"
#: One character for each worker, for waits in a text; and characters of a row.
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ACROSS = 76
_WAITED_FOR = {MESSAGES: "messages", WINDOW: "the end of a window"}
#: Most messages that have a label each in a frame.
_LABELLED = 12
#: Most merges that have a line each in a text.
_LISTED = 24
#: A merge takes no time: it is drawn this long, in usual steps.
_MOMENT = 0.08


def film_of(timeline: Timeline) -> Film:
    """Return the film of a timeline."""
    servers = timeline.config.servers or 0
    names = [f"worker {i}" for i in range(timeline.workers)]
    names += [f"server {i}" for i in range(servers)]
    lanes, lane_of = _lanes(timeline, names)
    heading, *rest = described(timeline.config, timeline.slow)
    last = max([timeline.seconds, *(it.stop for it in timeline.passages)])
    columns = ("steps", "version") if servers else ("steps",)
    return Film(
        title=f"{heading}: who computes, and who waits",
        lead=" · ".join(rest),
        names=tuple(names),
        start=tuple(
            (Cell("0" if rank < timeline.workers else ""), Cell(""))[: len(columns)]
            for rank in range(len(names))
        ),
        frames=tuple(_frames(timeline, names, last)),
        scene=Lanes(
            lanes=tuple(lanes),
            lane_of=tuple(lane_of),
            bars=tuple(_bars(timeline, lane_of)),
            strip=Strip(44.0, 22.0, len(columns)),
            columns=columns,
            window=min(_WINDOW, last),
            end=last,
            unit="usual steps",
            key="\n".join(_key(timeline)),
            across=_ACROSS,
        ),
        heading=" · ".join([heading, *rest]),
        costs=tuple(_costs(timeline)),
        legend=(
            ("computes a step", 0, _COMPUTES.strength),
            ("thin: waits; the colour is that of the awaited worker", 1, _WAITS.strength),
            *[("a merge: thin without its quorum, thick while its window is open", *_MERGES[:2])]
            * bool(timeline.merges),
        ),
        facts=(
            *((f"worker {i}", _shares_text(timeline, i)) for i in range(timeline.workers)),
            *_merges_text(timeline, timeline.merges[:_LISTED]),
            *_left_out(timeline),
        ),
        lesson=lesson(timeline),
    )  # fmt: skip


def _key(timeline: Timeline) -> Iterator[str]:
    yield _KEY
    if timeline.sums:
        yield _KEY_OF_PUSHES if timeline.merges else _KEY_OF_FRAGMENTS
    if timeline.merges:
        yield _KEY_OF_MERGES
    if timeline.config.scheme.grace is not None:
        yield _KEY_OF_WINDOWS


def _lanes(timeline: Timeline, names: Sequence[str]) -> tuple[list[Lane], list[int]]:
    """Return the lanes, and the first one of each rank; lanes of its fragments follow."""
    fragments = timeline.config.scheme.fragments if timeline.sums else 0
    lanes: list[Lane] = []
    lane_of: list[int] = []
    for i, name in enumerate(names):
        lane_of.append(len(lanes))
        parts = ["average"] if fragments == 1 else [f"fragment {part}" for part in range(fragments)]
        if i < timeline.workers:
            lanes.append(Lane(name, "computes" if parts else ""))
        elif i > timeline.workers or not timeline.merges:  # the first one decides
            parts = [""]
        elif len(parts) < 2:
            parts = ["merges"] if parts else [""]
        lanes += [Lane(name, part) for part in parts]
    return lanes, lane_of


def _shares_text(timeline: Timeline, worker: int) -> str:
    """Return how a worker spent its time, and what it waited for most."""
    shares = [(timeline.share(worker, WORKERS, waiting_for=i), -i) for i in range(timeline.workers)]
    share, waiting_for = max(shares)
    texts = [f"{share:.0%} for worker {-waiting_for}"] if share >= 0.005 else []
    for what, name in (WINDOW, "windows"), (MESSAGES, "messages"):
        rest = timeline.share(worker, what)
        texts += [f"{rest:.0%} for {name}"] if rest >= 0.005 else []
    computing, waiting = timeline.share(worker, COMPUTE), timeline.share(worker, *WAITING)
    text = f"{computing:4.0%} computing   {waiting:4.0%} waiting"
    return f"{text}   ({', '.join(texts)})" if texts else text


def _bars(timeline: Timeline, lane_of: Sequence[int]) -> Iterator[Bar]:
    for worker, line in enumerate(timeline.lines):
        for it in line:
            text, look = "", _TRAVELS
            if it.what == COMPUTE:
                text, look = str(it.waiting_for + 1), _COMPUTES._replace(style=worker % 7)
            elif it.what == WORKERS:
                text = LETTERS[it.waiting_for]
                look = _WAITS._replace(style=it.waiting_for % 7)
            elif it.what == WINDOW:
                look = _IS_OPEN
            yield Bar(lane_of[worker], it.start, it.stop, text, look)
    for worker, sums in enumerate(timeline.sums):
        for part in sums:
            yield from _of_fragment(part, lane_of[worker] + 1 + part.fragment, worker % 7)
    for merge in timeline.merges:
        yield from _of_merge(merge, lane_of[timeline.workers] + merge.fragment)


def _of_merge(merge: Merge, lane: int) -> Iterator[Bar]:
    """Yield the bars of a merge, from its first push until it is made."""
    opened = min(merge.opened, merge.made - _MOMENT)
    begins = opened - merge.first > _MOMENT
    if begins:
        yield Bar(lane, merge.first, opened, "", _LACKS._replace(ends=("├", "")))
    look = _MERGES._replace(ends=("" if begins else "├", "┤"))
    yield Bar(lane, opened, merge.made, str(merge.version), look)


def _merges_text(timeline: Timeline, merges: Sequence[Merge]) -> Iterator[tuple[str, str]]:
    """Yield the names of merges, and who was in each and what it waited for."""
    several = timeline.config.scheme.fragments > 1
    for it in merges:
        name = f"fragment {it.fragment}, merge {it.version}" if several else f"merge {it.version}"
        yield name, f"at {it.made:.2f}: {_members_text(it)}; {_window_text(timeline, it)}"


def _left_out(timeline: Timeline) -> Iterator[tuple[str, str]]:
    if len(timeline.merges) > _LISTED:
        yield "…", f"{plural(len(timeline.merges) - _LISTED, 'more merge')}; --json has all"


def _members_text(merge: Merge) -> str:
    """Return the members, and the staleness of those that are stale.

    >>> from psrt.views.explain.merges import Member
    >>> both = Member(0, 0, 0.0, 0.0, 0.0), Member(2, 3, 0.0, 0.0, 0.0)
    >>> _members_text(Merge(0, 1, 0.0, 0.0, 0.0, False, both))
    'workers 0 and 2 (3 merges old)'
    """
    texts = [
        f"{it.worker} ({plural(it.tau, 'merge')} old)" if it.tau else f"{it.worker}"
        for it in sorted(merge.members)
    ]
    if len(texts) == 1:
        return f"worker {texts[0]}"
    return f"workers {', '.join(texts[:-1])} and {texts[-1]}"


def _window_text(timeline: Timeline, merge: Merge) -> str:
    """Return what a merge waited for."""
    mode, members = timeline.config.scheme, merge.members
    quorum = mode.quorum or 1
    if len(members) < quorum:
        return "nobody else could come"
    parts = []
    if merge.opened - merge.first >= 0.005:
        parts.append(f"{merge.opened - merge.first:.2f} for worker {members[quorum - 1].worker}")
    if merge.is_over:
        parts.append(f"{merge.made - merge.opened:.2f} until its window was over")
    elif len(members) > quorum:
        last = members[-1]
        parts.append(f"{last.came - merge.opened:.2f} for worker {last.worker}, the last one")
    return f"waited {', then '.join(parts)}" if parts else "waited for nobody"


def _of_fragment(part: Transfer, lane: int, style: int) -> Iterator[Bar]:
    """Yield the bars of a part of a mean, from its sending until the mean is applied."""
    complete = min(part.complete, part.taken)
    spans = [(part.sent, complete, _PARTIAL), (complete, part.taken, _WHOLE)]
    spans = [it for it in spans if it[1] > it[0]] or spans[1:]
    for i, (start, stop, look) in enumerate(spans):
        ends = "├" * (i == 0), "┤" * (i == len(spans) - 1)
        yield Bar(lane, start, stop, "", look._replace(style=style, ends=ends))


def _frames(timeline: Timeline, names: Sequence[str], last: float) -> Iterator[Frame]:
    steps = [
        (worker, it)
        for worker, line in enumerate(timeline.lines)
        for it in line
        if it.what == COMPUTE
    ]
    begun, ended = (
        InOrder(steps, lambda it: it[1].start),
        InOrder(steps, lambda it: it[1].stop),
    )
    passages = InOrder(timeline.passages, lambda it: it.stop)
    waits = [
        InOrder([it for it in line if it.what in WAITING], lambda it: it.start)
        for line in timeline.lines
    ]
    waiting: list[Stretch | None] = [None] * timeline.workers
    done = sent = 0
    spent = _Spent(timeline)
    times = [time for _, it in steps for time in (it.start, it.stop)]
    times += [it.made for it in timeline.merges]
    merges = InOrder(timeline.merges, lambda it: it.made)
    versions = [0] * len(names)
    steps_of, lit = ["0"] * timeline.workers, set[int]()
    for time in [*moments(times, _APART), last]:
        beginning, ending, arriving = begun.until(time), ended.until(time), passages.until(time)
        for worker, queue in enumerate(waits):
            waiting[worker] = next(reversed(queue.until(time)), waiting[worker])
        done, sent = done + len(ending), sent + len(arriving)
        merging = merges.until(time)
        caption = _caption(names, beginning, ending, waiting, time, final=time == last)
        merged = [_sentence(f"{it[0]} {it[1]}") for it in _merges_text(timeline, merging)]
        for worker, it in ending:
            steps_of[worker] = str(it.waiting_for + 1)
        members = {it.worker for merge in merging for it in merge.members}
        changed = {worker for worker, _ in ending} | members | lit
        lit = members
        yield Frame(
            label=f"time {time:.2f}",
            caption=" ".join([*merged, caption]),
            messages=tuple(
                _message(
                    it, names, labelled=len(arriving) <= _LABELLED, merges=bool(timeline.merges)
                )
                for it in arriving
            ),
            changes=(
                *(
                    Change(it, 0, Cell(steps_of[it], _REPLY if it in lit else EMPTY, 0.6))
                    for it in sorted(changed)
                ),
                *_versions(arriving, versions),
            ),
            costs=spent.until(time, done, sent),
            time=time,
        )


def _versions(arriving: Sequence[Passage], versions: list[int]) -> Iterator[Change]:
    """Yield the versions that workers have read and servers have reached, according to replies."""
    for it in arriving:
        if isinstance(it.message, Params):
            for rank in (it.source, it.target):
                versions[rank] = max(versions[rank], it.message.version)
                yield Change(rank, 1, Cell(str(versions[rank])))


def _message(it: Passage, names: Sequence[str], *, labelled: bool, merges: bool) -> Message:
    message = it.message
    label, what, style = "", "a part of a sum", _SUM
    if isinstance(message, Push):
        label, what = f"{message.clock + 1}", f"push of step {message.clock + 1}"
        if merges:
            what = f"its push {message.clock + 1}, on version {message.version}"
        style = _PUSH
    elif isinstance(message, Params):
        label, what, style = f"v{message.version}", f"version {message.version}", _REPLY
        if message.staleness > 0:
            what += f"; that push was {plural(message.staleness, 'version')} old"
    elif isinstance(message, Mix):
        what = f"its vector of round {message.clock}"
    elif isinstance(message, Relay):
        late = message.what == LATE
        what = f"the push of worker {message.worker} is "
        what += "too late" if late else f"in merge {message.version}"
        style = _GREY
    elif isinstance(message, Leave):
        what, style = "has finished", _GREY
    elif message is not None:
        what = type(message).__name__.lower()
    line = f"{names[it.source]} → {names[it.target]}: {what}"
    return Message(it.source, it.target, label * labelled, line, style, it.start, it.stop)


def _caption(
    names: Sequence[str],
    beginning: Sequence[tuple[int, Stretch]],
    ending: Sequence[tuple[int, Stretch]],
    waiting: Sequence[Stretch | None],
    time: float,
    *,
    final: bool,
) -> str:
    """Return which workers have computed a step, begin one, or wait, and for which others."""
    if final:
        return "All workers have finished."
    waits = sorted(
        (_WAITED_FOR.get(it.what, f"worker {it.waiting_for}"), worker)
        for worker, it in enumerate(waiting)
        if it is not None and it.start <= time < it.stop
    )
    parts = [
        *_who("has computed step", "have computed step", ending),
        *_who("begins step", "begin step", beginning),
    ]
    for target, group in groupby(waits, key=lambda it: it[0]):
        workers = [worker for _, worker in group]
        verb = "waits" if len(workers) == 1 else "wait"
        parts.append(f"{_workers(workers)} {verb} for {target}")
    return _sentence("; ".join(parts)) if parts else "All workers compute."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _who(one: str, several: str, steps: Sequence[tuple[int, Stretch]]) -> Iterator[str]:
    by_step = sorted((it.waiting_for + 1, worker) for worker, it in steps)
    for step, group in groupby(by_step, key=lambda it: it[0]):
        workers = sorted({worker for _, worker in group})
        yield f"{_workers(workers)} {one if len(workers) == 1 else several} {step}"


def _workers(workers: Sequence[int]) -> str:
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"


def _costs(timeline: Timeline) -> Iterator[Cost]:
    # No mode lets the slowest worker finish sooner than it can compute.
    least = max(sum(it.seconds for it in line if it.what == COMPUTE) for line in timeline.lines)
    steps = sum(it.what == COMPUTE for line in timeline.lines for it in line)
    waited = sum(it.seconds for line in timeline.lines for it in line if it.what != COMPUTE)
    time = f"{timeline.seconds:.1f}"
    yield Cost("steps of all workers", str(steps), "", 0.0)
    yield Cost("time, in usual steps", time, f"{least:.1f}", least / timeline.seconds)
    yield Cost("waiting of all workers", f"{waited:.1f}", "0.0", 0.0)
    yield Cost("messages", str(len(timeline.passages)), "", 0.0)


class _Spent:
    """Adds up what has been spent, from moment to moment."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        waits = [it for line in timeline.lines for it in line if it.what != COMPUTE]
        #: When one worker more waits, and when one less.
        ends = [(it.start, 1) for it in waits] + [(it.stop, -1) for it in waits]
        self._ends = InOrder(ends, lambda it: it[0])
        self._whole = sum(it.seconds for it in waits)
        self._steps = sum(it.what == COMPUTE for line in timeline.lines for it in line)
        self._waiting, self._waited, self._time = 0, 0.0, 0.0

    def until(self, time: float, done: int, sent: int) -> tuple[SoFar, ...]:
        """Return the costs up to a time, not before the last one."""
        for end, more in [*self._ends.until(time), (time, 0)]:
            self._waited += self._waiting * (end - self._time)
            self._waiting, self._time = self._waiting + more, end
        now = min(time, self._timeline.seconds)
        return (
            SoFar(str(done), done / self._steps),
            SoFar(f"{now:.1f}", now / self._timeline.seconds),
            SoFar(f"{self._waited:.1f}", self._waited / self._whole if self._whole else 0.0),
            SoFar(str(sent), sent / (len(self._timeline.passages) or 1)),
        )
