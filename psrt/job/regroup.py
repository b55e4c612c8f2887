"""What the roles of a run get back whose ranks are others than those that were saved.

At the end of a round all workers stand at the same place, and all shards have made the same
updates. So a role of another group gets what any of them had, with two exceptions. Arrays by
element are cut by where they are in the whole vector. What was counted goes to the first role of
its kind, and the others begin at nothing: what counts is the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from psrt.checkpoint import Tree, assemble, paths_by_element, restore, state_of
from psrt.errors import CheckpointError
from psrt.partition import Span
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.worker import Worker
from psrt.stats import Stats

#: Of a meter: what is added up, and of what the largest is taken.
_SUMS = ("reported_samples", "loss_sum", "waited", "gap_sum", "gap_count")
_LARGEST = ("skew_max",)


def shard_tree(
    parts: Sequence[tuple[Sequence[Span], Tree]],
    owner: ShardServer,
    span: Span,
    n: int,
    workers: int,
) -> Tree:
    """Return the tree of a shard of other servers, or of other workers.

    Args:
        parts: the spans and the tree of each shard that was saved.
        owner: the shard that is to go on.
        span: that it serves.
        n: parameters of the model.
        workers: there are now.

    Raises:
        CheckpointError: if the shards that were saved had come to different updates.
    """
    trees = [tree for _, tree in parts]
    _check_alike(trees)
    tree: Tree = deepcopy(trees[0])
    for path in paths_by_element(owner):
        pieces = [(of, _within(one, path)) for of, one in parts]
        _put(tree, path, assemble(pieces, span, n))
    none = Stats(staleness=[{} for _ in tree["shard"]["stats"]["staleness"]])
    counted = [restore(deepcopy(none), one["shard"]["stats"]) for one in trees]
    stats = Stats.merged(counted) if owner.number == 0 else none
    stats.staleness = _of_workers(stats.staleness, workers)
    tree["shard"]["stats"] = state_of(stats)
    totals = [sum(pair) for pair in zip(*(one["bytes"] for one in trees), strict=True)]
    tree["bytes"] = totals if owner.number == 0 else [0, 0]
    if tree["shard"]["gap"] is not None:  # of a sample of reads: it begins anew
        tree["shard"]["gap"] = state_of(owner)["shard"]["gap"]
    if len(trees[0]["shard"]["stats"]["staleness"]) != workers:
        (finished,) = set(tree["policy"]["clock"].values())  # the same for all after a round
        tree["policy"]["clock"] = dict.fromkeys(map(str, range(workers)), finished)
    return tree


def _check_alike(trees: Sequence[Tree]) -> None:
    """Check that what is not by element is the same in all shards."""
    if any(tree["policy"]["owed"] for tree in trees):
        raise CheckpointError("pushes wait for their update: only the same servers can go on")
    first, *others = (_scalars(tree) for tree in trees)
    if any(it != first for it in others):
        raise CheckpointError(
            "its shards have made different updates: only the same servers can go on"
        )


def _scalars(tree: Mapping[str, Any]) -> Tree:
    """Return what is no array, and not a count of what one shard did."""
    kept = {name: it for name, it in tree.items() if name not in ("stats", "bytes", "gap")}
    return {
        name: _scalars(it) if isinstance(it, Mapping) else it
        for name, it in kept.items()
        if not isinstance(it, np.ndarray)
    }


def _of_workers(by_worker: Sequence[dict[int, int]], workers: int) -> list[dict[int, int]]:
    """Return histograms of so many workers; those of workers that are gone go to the first."""
    found = [dict(it) for it in by_worker[:workers]]
    found += [{} for _ in range(workers - len(found))]
    for it in by_worker[workers:]:
        for value, count in it.items():
            found[0][value] = found[0].get(value, 0) + count
    return found


def worker_tree(
    trees: Sequence[Tree],
    owner: Worker,
    number: int,
    n: int,
    samples: tuple[int, int],
    *,
    packed: bool,
) -> Tree:
    """Return the tree of a worker of another group of workers.

    Args:
        trees: what each worker saved: its ``role``, and what it ``owned``.
        owner: the worker that is to go on.
        number: its own.
        n: parameters of the model.
        samples: of a step of all workers, then and now.
        packed: whether a worker has only room for what it owns, in its own order.

    Raises:
        CheckpointError: if the workers did not save what each of them owned.
    """
    roles = [it["role"] for it in trees]
    furthest = max(roles, key=lambda it: it["clock"])
    tree: Tree = deepcopy(furthest)
    before, now = samples
    tree["taken"] = furthest["taken"] * before // now
    tree["skip"] = 0
    for name in ("delays", "rng"):  # each worker's own draws
        tree[name] = roles[number][name] if number < len(roles) else _own(owner, name)
    tree["meter"] = _meter([it["meter"] for it in roles], furthest["meter"], number)
    for path in paths_by_element(owner):
        if not path.startswith("strategy/"):
            continue
        pieces = list(_pieces(trees, path, n, packed))
        spans = (owner.strategy.owned or ()) if packed else [Span(0, n)]
        values = [assemble(pieces, it, n) for it in spans]
        _put(tree, path, np.concatenate(values) if values else _within(state_of(owner), path))
    return tree


def _own(owner: Worker, name: str) -> Any:
    return state_of(owner)[name]


def _pieces(
    trees: Sequence[Tree], path: str, n: int, packed: bool
) -> Iterable[tuple[Sequence[Span], np.ndarray]]:
    """Yield what each worker owned of an array by element, each element once."""
    left = [Span(0, n)]
    for tree in trees:
        array = _within(tree["role"], path)
        ends = tree.get("owned")
        if ends is None:
            raise CheckpointError("its workers did not say what each of them owned")
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
    """Yield what of a span is not in another one."""
    for it in (
        Span(one.start, min(one.stop, other.start)),
        Span(max(one.start, other.stop), one.stop),
    ):
        if it.start < it.stop:
            yield it


def _meter(meters: Sequence[Tree], furthest: Tree, number: int) -> Tree:
    """Return the meter of a worker: the first one takes over what all have counted."""
    tree: Tree = deepcopy(furthest)
    none = Stats(waited=dict.fromkeys(furthest["stats"]["waited"], 0.0))
    counted = [restore(deepcopy(none), it["stats"]) for it in meters]
    stats = Stats.merged(counted) if number == 0 else none
    tree["stats"] = _like(tree["stats"], state_of(stats))
    seconds, *_ = furthest["before"]
    counts = [sum(it["before"][i] for it in meters) for i in (1, 2)]
    tree["before"] = [seconds, *(counts if number == 0 else (0, 0))]
    for name in _SUMS:
        tree[name] = sum(it[name] for it in meters) if number == 0 else type(tree[name])(0)
    for name in _LARGEST:
        tree[name] = max(it[name] for it in meters) if number == 0 else 0
    first, second, largest = zip(*(it["staleness"] for it in meters), strict=True)
    tree["staleness"] = [sum(first), sum(second), max(largest)] if number == 0 else [0, 0, 0]
    return tree


def _like(before: Mapping[str, Any], after: Tree) -> Tree:
    """Return a tree of counters whose keys are those that there were, each with a number."""
    found = dict(after)
    for name, value in before.items():
        if isinstance(value, Mapping) and not after[name]:
            found[name] = dict.fromkeys(value, 0.0) if name == "waited" else {}
    return found


def _within(tree: Tree, path: str) -> Any:
    found: Tree = tree
    for name in filter(None, path.split("/")):
        found = found[name]
    return found


def _put(tree: Tree, path: str, value: Any) -> None:
    *above, last = path.split("/")
    _within(tree, "/".join(above))[last] = value
