"""What an object is made of, and that it gets it back."""

import random
from typing import NamedTuple

import numpy as np
import pytest

from psrt.checkpoint.state import paths_by_element, restore, state_of
from psrt.errors import CheckpointError


class Pair(NamedTuple):
    left: int
    right: float


class Inner:
    saved = ("state", "_updates")
    by_element = ("state",)

    def __init__(self, fill=0.0):
        self.state = {"mean": np.full(3, fill, np.float32)}
        self._updates = int(fill)


class Outer(Inner):
    saved = ("inner", "_flat", "of_all", "pair", "seen", "many", "rng", "draw", "lazy", "_first")
    by_element = ("many",)

    def __init__(self, fill=0.0):
        super().__init__(fill)
        self.inner = Inner(fill + 1)
        self._flat = [int(fill), 1.5, -2]
        self.of_all = (fill, fill)
        self.pair = Pair(int(fill), 0.5)
        self.seen = {3: int(fill)}
        self.many = [np.full(2, fill), np.full(2, fill)]
        self.rng = np.random.default_rng(int(fill))
        self.draw = random.Random(int(fill))
        self.lazy = np.full(1, fill) if fill else None
        self._first = np.float32(fill)


def test_a_tree_has_plain_values_and_arrays_only():
    tree = state_of(Outer(2.0))
    assert list(tree) == [
        *("state", "updates", "inner", "flat", "of_all", "pair", "seen", "many", "rng", "draw"),
        *("lazy", "first"),
    ]
    assert tree["flat"] == [2, 1.5, -2]
    assert (tree["pair"], tree["seen"], tree["first"]) == ([2, 0.5], {"3": 2}, 2.0)
    assert type(tree["first"]) is float
    assert tree["inner"]["updates"] == 3


def test_arrays_are_those_in_use():
    it = Outer()
    assert state_of(it)["state"]["mean"] is it.state["mean"]
    assert state_of(it)["many"]["1"] is it.many[1]


def test_restore_gives_all_of_it_back_in_place():
    new, old = Outer(), Outer(2.0)
    old.seen[5] = 7
    mean, many, seen = new.state["mean"], new.many, new.seen
    expected = old.rng.bit_generator.state, old.draw.getstate()
    restore(new, state_of(old))
    assert new.state["mean"] is mean
    assert new.many is many
    assert new.seen is seen
    assert mean.tolist() == [2, 2, 2]
    assert seen == {3: 2, 5: 7}
    assert (new.rng.bit_generator.state, new.draw.getstate()) == expected
    assert new.pair == Pair(2, 0.5)
    assert type(new.pair) is Pair
    assert (type(new.of_all), type(new._first)) == (tuple, np.float32)
    assert new.lazy.tolist() == [2.0]
    assert repr(state_of(new)) == repr(state_of(old))


def test_nothing_of_a_tree_is_kept():
    new, old = Outer(), Outer(2.0)
    tree = state_of(old)
    restore(new, tree)
    old.lazy[:] = old.state["mean"][:] = 9
    tree["seen"]["3"] = tree["flat"][0] = 9
    tree["rng"]["state"]["state"] = tree["draw"]["words"][0] = 0
    assert new.lazy.tolist() == [2.0]
    assert new.seen == {3: 2}
    assert new._flat[0] == 2
    assert new.rng.integers(1 << 30) == np.random.default_rng(2).integers(1 << 30)


def test_what_is_by_element_can_be_told():
    assert paths_by_element(Outer(1.0)) == {"state/mean", "inner/state/mean", "many/0", "many/1"}


def damaged(path, value):
    tree = state_of(Outer(1.0))
    at = tree
    for name in path[:-1]:
        at = at[name]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return tree


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("updates",), None, "Outer of the checkpoint has no updates"),
        (("more",), 1, "Outer of the checkpoint has more"),
        (("inner",), 3, "Outer.inner of the checkpoint is a int, expected state, updates"),
        (("inner", "state", "mean"), np.zeros(4, np.float32), "Outer.inner.state.mean of the"),
        (("inner", "state", "mean"), np.zeros(3), "Outer.inner.state.mean of the checkpoint is"),
        (("inner", "state", "mean"), 1.0, "Outer.inner.state.mean of the checkpoint is float"),
        (("inner", "state"), {}, "Outer.inner.state of the checkpoint has no mean"),
        (("updates",), np.zeros(1), "Outer.updates of the checkpoint is a ndarray, expected a int"),
        (("many",), {"0": np.zeros(2)}, "Outer.many of the checkpoint has no 1"),
        (("seen",), 1, "Outer.seen of the checkpoint has no names"),
        (("rng",), {"state": 1}, "Outer.rng of the checkpoint is no generator's"),
        (("rng",), 1, "Outer.rng of the checkpoint is no generator's"),
        (("draw",), {"version": 3, "words": [1], "spare": None}, "Outer.draw of the checkpoint is"),
        (("lazy",), 7, "Outer.lazy of the checkpoint is a int"),
        (("inner", "updates"), [], "Outer.inner.updates of the checkpoint is a list, expected"),
        (("updates",), -1, "Outer.updates of the checkpoint is -1, which it cannot be"),
        (("updates",), 1 << 54, "Outer.updates of the checkpoint is 18014398509481984, which it"),
        (("flat",), [1, "x"], "Outer.flat of the checkpoint is a str, expected a int"),
        (("flat",), [True], "Outer.flat of the checkpoint is a bool, expected a int"),
        (("pair",), [1], "Outer.pair of the checkpoint has 1 numbers"),
        (("seen",), {"3": None}, "Outer.seen.3 of the checkpoint is a NoneType, expected a int"),
        (("seen",), {str(1 << 25): 1}, "Outer.seen of the checkpoint counts by 33554432"),
        (("draw",), 7, "Outer.draw of the checkpoint is no generator's"),
    ],
)
def test_a_tree_of_something_else_is_one_line(path, value, line):
    with pytest.raises(CheckpointError, match=line) as caught:
        restore(Outer(), damaged(path, value))
    assert "\n" not in str(caught.value)


def test_what_says_nothing_of_itself_is_refused():
    with pytest.raises(CheckpointError, match="a object does not say what it is made of"):
        state_of([object()])
