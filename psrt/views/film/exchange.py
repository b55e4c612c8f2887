"""An exchange of shards as a film: lanes for computing, pushes, reads and updates.

There is a frame whenever a message has arrived or an update is done. Events within a small part of
a gradient's time form one frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psrt.core.units import plural
from psrt.views.explain.exchange import (
    BACKWARD,
    FORWARD,
    PUSH,
    READ,
    UPDATE,
    Exchange,
    lesson,
)
from psrt.views.explain.exchange import Bar as Busy
from psrt.views.explain.recording import described
from psrt.views.film.film import (
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
from psrt.views.film.timeline import LETTERS

#: Events closer than this form one frame; and the time that is visible; in gradients.
_APART, _WINDOW = 0.04, 4.0
#: How bars look; those of later layers are stronger.
_LOOKS = {
    FORWARD: Look(0, 0.3, glyph="░"), BACKWARD: Look(0, 0.6, glyph="█"),
    PUSH: Look(1, 0.55), READ: Look(2, 0.55), UPDATE: Look(3, 0.55),
}  # fmt: skip
_WEAKEST, _STRONGEST = 0.35, 0.8
_LEGEND = {
    FORWARD: "forward, layer by layer", BACKWARD: "backward, the last layer first",
    PUSH: "push of a shard, on the server's link", READ: "read of a shard, on the server's link",
    UPDATE: "update of a shard",
}  # fmt: skip
#: What the lanes of a worker and of a server show.
_OF_WORKER = {"computes": (FORWARD, BACKWARD), "pushes": (PUSH,), "reads": (READ,)}
_OF_SERVER = {"updates": (UPDATE,)}
_ACROSS = 100
#: Most workers that are named one by one, and most messages of a frame that have a label each.
_NAMED, _LABELLED = 4, 12


def film_of(exchange: Exchange) -> Film:
    """Return the film of an exchange."""
    config = exchange.config
    names = [f"worker {i}" for i in range(exchange.workers)]
    names += [f"server {i}" for i in range(exchange.servers)]
    heading, *rest = described(config, exchange.slow, shards=int(config.shards_per_server or 1))
    return Film(
        title=f"{heading}: computing, pushes, updates and reads",
        lead=" · ".join(rest),
        names=tuple(names),
        start=tuple((Cell("0"), Cell("0")) for _ in names),
        frames=tuple(_frames(exchange, names)),
        scene=_scene(exchange),
        heading=" · ".join([heading, *rest]),
        costs=tuple(_costs(exchange)),
        legend=tuple((_LEGEND[what], *look[:2]) for what, look in _LOOKS.items()),
        lesson=lesson(exchange),
        reading=(exchange.model,),
    )


def _scene(exchange: Exchange) -> Lanes:
    """Return the lanes: three for each worker, one for each server."""
    lanes: list[Lane] = []
    bars: list[Bar] = []
    lane_of: list[int] = []
    for count, name, kinds in (
        (exchange.workers, "worker", _OF_WORKER), (exchange.servers, "server", _OF_SERVER)
    ):  # fmt: skip
        for number in range(count):
            lane_of.append(len(lanes))
            for label, what in kinds.items():
                bars += [
                    Bar(
                        len(lanes), it.start, it.stop, _text(it), _look(exchange, it),
                        it.since if it.what in (PUSH, READ) else None,
                    )
                    for it in exchange.bars
                    if it.what in what and it.number == number
                ]  # fmt: skip
                lanes.append(Lane(f"{name} {number}", label))
    shards = "–".join(LETTERS[shard] for shard in sorted({0, exchange.shards - 1}))
    return Lanes(
        lanes=tuple(lanes),
        lane_of=tuple(lane_of),
        bars=tuple(bars),
        strip=Strip(30.0, 20.0, 2),
        columns=("sent", "got"),
        window=min(_WINDOW, exchange.seconds),
        end=exchange.seconds,
        unit="gradients",
        key=f"░ forward   █ backward   {shards} the shard whose bytes are on the server's link, or "
        "that is updated   · handed over, but the link is busy",
        across=_ACROSS,
    )


def _look(exchange: Exchange, bar: Busy) -> Look:
    look = _LOOKS[bar.what]
    if bar.what in (FORWARD, BACKWARD) or exchange.shards == 1:
        return look
    share = bar.part / (exchange.shards - 1)
    return look._replace(strength=round(_WEAKEST + (_STRONGEST - _WEAKEST) * share, 2))


def _text(bar: Busy) -> str:
    return "" if bar.what in (FORWARD, BACKWARD) else LETTERS[bar.part]


def _messages(exchange: Exchange, names: Sequence[str]) -> Iterator[Message]:
    """Yield each push and read, with the bar's own times."""
    owner = {it.part: exchange.workers + it.number for it in exchange.bars if it.what == UPDATE}
    for it in exchange.bars:
        if it.what in (PUSH, READ):
            source, target = it.number, owner[it.part]
            if it.what == READ:
                source, target = target, source
            what = f"{'gradient' if it.what == PUSH else 'parameters'} of shard {it.part}"
            waited = it.start - it.since
            late = f", after waiting {waited:.2f} for the link" if waited > _APART else ""
            line = f"{names[source]} → {names[target]}: {what}{late}"
            yield Message(source, target, _text(it), line, _LOOKS[it.what].style, it.start, it.stop)


def _frames(exchange: Exchange, names: Sequence[str]) -> Iterator[Frame]:
    messages = list(_messages(exchange, names))
    arriving = InOrder(messages, lambda it: it.stop)
    updates = InOrder([it for it in exchange.bars if it.what == UPDATE], lambda it: it.stop)
    computing = InOrder(
        [it for it in exchange.bars if it.what in (FORWARD, BACKWARD)], lambda it: it.start
    )
    at: dict[int, Busy] = {}
    counts = [[0, 0] for _ in names]
    gradients = sent = 0
    # A gradient is complete once the first layer has gone backward.
    done = InOrder(
        [it for it in exchange.bars if it.what == BACKWARD and it.part == 0], lambda it: it.stop
    )
    times = [it.stop for it in exchange.bars if it.what in (PUSH, READ, UPDATE)]
    for time in moments([0.0, *times, exchange.seconds], _APART):
        came, updated = arriving.until(time), updates.until(time)
        for layer in computing.until(time):
            at[layer.number] = layer
        gradients, sent = gradients + len(done.until(time)), sent + len(came)
        changed = set()
        for it in came:
            counts[it.source][0] += 1
            counts[it.target][1] += 1
            changed |= {(it.source, 0), (it.target, 1)}
        yield Frame(
            label=f"time {time:.2f}",
            caption=_caption(exchange, at, updated, time),
            messages=tuple(it if len(came) <= _LABELLED else it._replace(label="") for it in came),
            changes=tuple(
                Change(rank, i, Cell(str(counts[rank][i]))) for rank, i in sorted(changed)
            ),
            costs=_so_far(exchange, time, gradients, sent, len(messages)),
            time=time,
        )


def _caption(exchange: Exchange, at: dict[int, Busy], updated: Sequence[Busy], time: float) -> str:
    """Return what each worker computes, and which shards have been updated."""
    now = {i: it for i, it in at.items() if it.start <= time < it.stop}
    if exchange.workers > _NAMED:
        idle = exchange.workers - len(now)
        parts = [f"{plural(len(now), 'worker')} computing, {idle} waiting"]
    else:
        parts = [
            f"worker {i} computes {now[i].what}, layer {now[i].part}" if i in now
            else f"worker {i} does not compute"
            for i in range(exchange.workers)
        ]  # fmt: skip
    shards = sorted({it.part for it in updated})
    if shards:
        many = "s" if len(shards) > 1 else ""
        parts.append(f"shard{many} {', '.join(map(str, shards))} updated")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _costs(exchange: Exchange) -> Iterator[Cost]:
    steps = int(exchange.config.steps or 0)
    # The slowest worker's computing, if everything else took no time.
    least = steps * max(exchange.slow)
    messages = sum(it.what in (PUSH, READ) for it in exchange.bars)
    yield Cost("gradients of all workers", str(steps * exchange.workers), "", 0.0)
    yield Cost(
        "time, in gradients", f"{exchange.seconds:.2f}", f"{least:.2f}", least / exchange.seconds
    )
    yield Cost("messages", str(messages), "", 0.0)


def _so_far(
    exchange: Exchange, time: float, gradients: int, sent: int, messages: int
) -> tuple[SoFar, ...]:
    steps = int(exchange.config.steps or 0) * exchange.workers
    return (
        SoFar(str(gradients), gradients / (steps or 1)),
        SoFar(f"{time:.2f}", time / exchange.seconds),
        SoFar(str(sent), sent / (messages or 1)),
    )
