"""Restores roles from a checkpoint that was saved by other ranks.

At a cut most state is the same for all roles of a kind, so a role gets that of any of them. The
exceptions are:

- arrays by element, which are split again by their place in the whole vector;
- a worker's own state (``of_worker``, and its place in the data if workers stop at different
  steps): a worker that stays keeps it, one that joins starts without, at the slowest one's step;
- a server's state for each worker (``per_worker``): a worker that joins gets that of the first;
- counters, which restart: totals are of an attempt. Only steps, updates, time and samples are
  those of the whole run, by its clocks and the lines of its metrics.

A dead worker has no part. What shards have of it, such as pushes that wait for an update, belongs
to another worker from then on, and a worker in its place joins.

See ``checkpoint.state`` for how a class declares its state, and ``crew`` for which workers stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from psrt.checkpoint import Tree, assemble, marked, paths_by_element, state_of
from psrt.core.errors import CheckpointError
from psrt.core.messages import Push
from psrt.core.partition import Span
from psrt.job.crew import Crew
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.worker import Worker
from psrt.sync.policy import OWED


def shard_tree(
    parts: Sequence[tuple[Sequence[Span], Tree]],
    owner: ShardServer,
    span: Span,
    n: int,
    workers: tuple[int, int],
    absent: Sequence[int] = (),
    *,
    others: Sequence[Sequence[Span]] = (),
    parks: bool = False,
) -> Tree:
    """Return the tree of a shard from those of other servers, or with other workers.

    If shards have made different updates, such as when each drops late pushes on its own, state
    that is not by element comes from the same shard, or with other shards from the one with the
    most.

    Args:
        parts: the spans and the tree of each shard that was saved, of the same fragment.
        owner: the new shard.
        span: the span that it serves.
        n: parameters of the model.
        workers: the former and the present number of workers.
        absent: the numbers of the dead workers.
        others: the spans of shards of other fragments.
        parks: whether workers were at different steps.

    Raises:
        CheckpointError: if the saved shards are not of the same cut.
    """
    trees = [tree for _, tree in parts]
    same = [(of, tree) for of, tree in parts if list(of) == [span]]
    _check_alike(trees, absent)
    tree: Tree = deepcopy(max(same or parts, key=lambda it: it[1]["policy"]["version"])[1])
    before, now = workers
    clock = _clocks(tree, absent)
    crew = Crew.of(clock.keys(), before=before, now=now, absent=absent)
    are_others = bool(absent) or before != now
    sources = _per_worker(tree, owner, crew) if are_others else {}
    for path in paths_by_element(owner):
        pieces = [(of, _within(one, sources.get(path, path))) for of, one in parts]
        _put(tree, path, _cut([*pieces, *((of, None) for of in others)], span, n))
    fresh = state_of(owner)
    for path in marked(owner, "of_span"):
        _put(tree, path, _within(fresh, path))
    left = {
        int(worker): steps for worker, steps in tree["shard"]["counts"]["stats"]["left"].items()
    }
    tree["shard"]["counts"] = fresh["shard"]["counts"]
    stats = tree["shard"]["counts"]["stats"]
    tree["bytes"] = [0, 0]
    # State that describes the parameters is kept, rather than counted again: workers park by it.
    stats["left"] = {
        str(crew.stays.index(int(it))): at for it, at in left.items() if int(it) in crew.stays
    }
    if owner.number == 0:
        late = () if parks else absent
        stats["reached"] = _reached(trees, late, "reached", max)
        stats["reached_all"] = _reached(trees, late, "reached_all", min)
    if tree["shard"]["gap"] is not None:  # a sample of reads, which starts again
        tree["shard"]["gap"] = fresh["shard"]["gap"]
    # The most of any shard whose elements it serves: updates of others add zero.
    pending = max(_near(parts, span) or trees, key=lambda it: len(it["policy"]["owed"]))
    tree["policy"]["owed"] = _owed(pending["policy"]["owed"], crew, owner.number)
    tree["shard"]["owed_notes"] = pending["shard"]["owed_notes"]
    if are_others:
        slowest = min(clock.values())
        tree["policy"]["clock"] = {
            str(number): slowest if worker is None else clock[worker]
            for number, worker in enumerate(crew.stays)
            if worker is None or worker in clock
        }
    return tree


def _clocks(tree: Tree, absent: Sequence[int]) -> dict[int, int]:
    """Return the clocks of the workers of a shard that had steps left, and had not died."""
    clock = {int(worker): steps for worker, steps in tree["policy"]["clock"].items()}
    return {worker: steps for worker, steps in clock.items() if worker not in absent}


def _check_alike(trees: Sequence[Tree], absent: Sequence[int]) -> None:
    """Check that all shards have had the same pushes, except for the last ones of dead workers.

    They may have made different updates of them: the quorum falls when a worker leaves, which one
    shard may learn before a push, and another one after it.
    """
    if any(_clocks(it, absent) != _clocks(trees[0], absent) for it in trees):
        raise CheckpointError("its shards are not of the same cut")


def _near(parts: Sequence[tuple[Sequence[Span], Tree]], span: Span) -> list[Tree]:
    """Return the trees of the shards that have some of a span."""
    return [tree for of, tree in parts if _meets(of, span)]


def _meets(spans: Sequence[Span], span: Span) -> bool:
    return any(it.start < span.stop and span.start < it.stop for it in spans)


def _cut(pieces: Sequence[tuple[Sequence[Span], Any]], span: Span, n: int) -> np.ndarray | None:
    """Return a span of an array by element, zeros for shards without it; None if none has it."""
    arrays = [it for of, it in pieces if _meets(of, span) and isinstance(it, np.ndarray)]
    if not arrays:
        return None
    kind = arrays[0].dtype
    whole = [
        (of, it if isinstance(it, np.ndarray) else np.zeros(sum(one.size for one in of), kind))
        for of, it in pieces
    ]
    return assemble(whole, span, n)


def _reached(
    trees: Sequence[Tree], late: Sequence[int], name: str, of_two: Callable[[int, int], int]
) -> dict[str, int]:
    """Return the counters of dead workers, under numbers that no worker has from then on.

    Args:
        trees: of the former shards.
        late: workers that may have died after the cut of a shard, which did not know of it.
        name: of the counter.
        of_two: chooses between two shards' values for a worker.
    """
    found: dict[int, int] = {}
    for tree in trees:
        clock = _clocks(tree, ())
        its = {
            int(worker): steps for worker, steps in tree["shard"]["counts"]["stats"][name].items()
        }
        for worker, steps in (its | {it: clock[it] for it in late if it in clock}).items():
            found[worker] = of_two(found.get(worker, steps), steps)
    return {str(-1 - i): found[worker] for i, worker in enumerate(sorted(found))}


def _owed(fields: Sequence[Any], crew: Crew, shard: int) -> list[Any]:
    """Return the pending pushes, field by field, of the present workers.

    All pushes that were received will be applied; their worker matters only for counts.
    """
    rows = (Push(*fields[i : i + OWED]) for i in range(0, len(fields), OWED))
    found = [it._replace(worker=crew.number(it.worker), shard=shard) for it in rows]
    return [field for push in found for field in push[:OWED]]


def _per_worker(tree: Tree, owner: ShardServer, crew: Crew) -> dict[str, str]:
    """Set a shard's state for each worker; return the sources of arrays by element, by path.

    A worker that joins starts with what the first worker holds.
    """
    fresh, before = state_of(owner), len(crew.stays) + len(crew.gone) - crew.stays.count(None)
    sources: dict[str, str] = {}
    arrays = paths_by_element(owner)
    for top in marked(owner, "per_worker"):
        there, here = _within(tree, top), _within(fresh, top)
        if there is None or len(there) != before or len(here) != len(crew.stays):
            continue  # there is none, or one for all workers
        from_ = [str(crew.first if it is None else it) for it in crew.stays]
        _put(tree, top, {str(i): deepcopy(there[it]) for i, it in enumerate(from_)})
        for path in arrays:
            if path.startswith(f"{top}/"):
                number, *rest = path.removeprefix(f"{top}/").split("/")
                sources[path] = "/".join([top, from_[int(number)], *rest])
    return sources


def worker_tree(
    trees: Mapping[int, Tree],
    owner: Worker,
    number: int,
    n: int,
    workers: tuple[int, int],
    samples: tuple[int, int],
    recorded: int,
    *,
    parks: bool,
    packed: bool,
    weight: float = 1.0,
) -> Tree:
    """Return the tree of a worker from those of another group of workers.

    Args:
        trees: what each live worker saved: its ``role``, and what it ``owned``.
        owner: the new worker.
        number: its number.
        n: parameters of the model.
        workers: the former number of workers, with the dead ones, and the present one.
        samples: of a full step of a worker, then and now.
        recorded: the step of the run's last record; −1 if there is none.
        parks: whether workers were at different steps.
        packed: whether a worker has room only for what it owns, in its own order.
        weight: the factor of residuals, so that they move parameters as far as before.

    Raises:
        CheckpointError: if the workers did not save which elements each of them owned.
    """
    roles = {i: recut(it["role"], owner) for i, it in trees.items()}
    training = [i for i, it in roles.items() if not it["has_left"]]
    before, now = workers
    absent = [it for it in range(before) if it not in roles]
    crew = Crew.of(training, before=before, now=now, absent=absent)
    own = crew.stays[number]
    place = max(roles.values(), key=lambda it: it["clock"])
    if parks:
        slowest = min((roles[i] for i in training), key=_place)
        place = slowest if own is None else roles[own]
    tree: Tree = deepcopy(place)
    # Samples of a step of all workers that share the epoch, which are fewer after a death.
    then, there = samples[0] * place["among"], samples[1] * now
    tree["taken"], tree["skip"], tree["among"] = place["taken"] * then // there, 0, now
    tree["share"] = place["share"] * there / then
    if parks:  # it skips the batch of a round that did not wait for it
        tree["skip"] = (place["taken"] + place["skip"]) * then // there - tree["taken"]
    fresh = state_of(owner)
    for name in ("delays", "rng"):  # each worker's own draws
        tree[name] = deepcopy((fresh if own is None else roles[own])[name])
    reported = place["meter"]["reported_step"]
    if parks:
        reported = min(roles[i]["meter"]["reported_step"] for i in training)
    meter = {"reported_step": reported, "since": place["meter"]["since"]}
    meter["sketched"] = place["meter"]["sketched"]
    tree["meter"] = fresh["meter"] | meter
    seconds = place["meter"]["before"][0]
    tree["meter"]["before"], tree["meter"]["spent"] = [seconds, 0, 0], seconds
    if number == 0:
        counts = tree["meter"]["counts"]
        # The job may have died before all of its workers' reports had arrived.
        unreported = _not_in_a_line(roles.values(), min(reported, recorded))
        counts["stats"]["samples"], counts["loss_sum"] = unreported
    for path in marked(owner, "per_worker"):
        _put(tree, path, deepcopy(_within(roles[crew.first if own is None else own], path)))
    _put_own(tree, owner, fresh if own is None else roles[own])
    kept = [roles[it] for it in crew.before(number) if it in roles]
    _put_kept_back(tree, owner, kept, weight)
    for path in paths_by_element(owner):
        if not path.startswith("strategy/") or owner.strategy.owned is None:
            continue
        if _within(tree, path) is None:
            continue
        pieces = list(_pieces(trees.values(), path, n, packed))
        spans = (owner.strategy.owned or ()) if packed else [Span(0, n)]
        values = [assemble(pieces, it, n) for it in spans]
        _put(tree, path, np.concatenate(values) if values else _within(fresh, path))
    return tree


def _put_own(tree: Tree, owner: Worker, own: Tree) -> None:
    """Set a worker's own state."""
    for path in marked(owner, "of_worker"):
        _put(tree, path, deepcopy(_within(own, path)))


def _put_kept_back(tree: Tree, owner: Worker, roles: Sequence[Tree], weight: float) -> None:
    """Set the sum of some workers' residuals."""
    tops = marked(owner, "kept_back")
    for path in paths_by_element(owner):
        if any(path == top or path.startswith(f"{top}/") for top in tops):
            total = np.zeros_like(_within(tree, path))
            for role in roles:
                np.add(total, _within(role, path), out=total)
            if weight != 1.0:
                np.multiply(total, np.float32(weight), out=total)
            _put(tree, path, total)


def recut(role: Tree, owner: Worker) -> Tree:
    """Return the tree of a worker with its state for each shard split as the shards are now.

    State that is not by element, such as a codec's start, is reset if the split has changed.

    Args:
        role: of the worker.
        owner: a worker of the resumed job.
    """
    fresh, arrays = state_of(owner), paths_by_element(owner)
    tree: Tree = role
    for top in marked(owner, "per_shard"):
        there, here = _within(role, top), _within(fresh, top)
        within = [path.removeprefix(f"{top}/") for path in arrays if path.startswith(f"{top}/")]
        names = {name.partition("/")[2] for name in within}
        wholes = {name: [_within(there[str(i)], name) for i in range(len(there))] for name in names}
        sizes = {
            name: [_within(here[str(i)], name).size for i in range(len(here))] for name in names
        }
        if len(there) == len(here) and all(
            [it.size for it in wholes[name]] == sizes[name] for name in names
        ):
            continue
        if tree is role:
            tree = deepcopy(role)
        renewed = deepcopy(here)
        for name, pieces in wholes.items():
            cuts = np.cumsum(sizes[name])[:-1]
            for i, array in enumerate(np.split(np.concatenate(pieces), cuts)):
                if name:
                    _put(renewed, f"{i}/{name}", array)
                else:
                    renewed[str(i)] = array
        _put(tree, top, renewed)
    return tree


def _place(role: Tree) -> tuple[int, int, int]:
    """Return a worker's progress, by the servers' counts if there are any."""
    return role["strategy"]["updates"], role["clock"], -role["skip"]


def _pieces(
    trees: Iterable[Tree], path: str, n: int, packed: bool
) -> Iterable[tuple[Sequence[Span], np.ndarray]]:
    """Yield what each worker owned of an array by element, each element once."""
    left = [Span(0, n)]
    for tree in trees:
        array = _within(tree["role"], path)
        ends = tree.get("owned")
        if ends is None:
            raise CheckpointError("its workers did not save which elements each of them owned")
        owned = [Span(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)]
        at = 0
        for span in owned:
            here = at if packed else span.start
            at += span.size
            for one in left:
                start, stop = max(span.start, one.start), min(span.stop, one.stop)
                if start < stop:
                    shift = here - span.start
                    yield [Span(start, stop)], array[start + shift : stop + shift]
            left = [it for one in left for it in _without(one, span)]


def _without(one: Span, other: Span) -> Iterable[Span]:
    """Yield the parts of a span that are not in another one."""
    for it in (
        Span(one.start, min(one.stop, other.start)),
        Span(max(one.start, other.stop), one.stop),
    ):
        if it.start < it.stop:
            yield it


def _not_in_a_line(roles: Iterable[Tree], reported: int) -> tuple[int, float]:
    """Return the samples that are in no line of the metrics yet, and the sum of their losses.

    Args:
        roles: of the former workers.
        reported: the step up to which reports are in the run's records; later reports are counted
            as if they had not been made.
    """
    samples, loss = 0, 0.0
    for role in roles:
        meter = role["meter"]
        # The last report of a departed worker, made after this was saved, may be in a line, too.
        if not role["has_left"] or role["clock"] > reported:
            counts = meter["counts"]
            samples += counts["stats"]["samples"] - counts["reported_samples"]
            loss += counts["loss_sum"]
        for *own, _columns, _figures in json.loads(meter["told"]):
            _, _, step, mean, made, *_ = own
            if step > reported and made:
                samples, loss = samples + made, loss + mean * made
    return samples, loss


def _within(tree: Tree, path: str) -> Any:
    found: Tree = tree
    for name in filter(None, path.split("/")):
        found = found[name]
    return found


def _put(tree: Tree, path: str, value: Any) -> None:
    *above, last = path.split("/")
    _within(tree, "/".join(above))[last] = value
