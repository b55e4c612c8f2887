"""Callbacks that do not keep alive who is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T], gone: T | None = None) -> Callable[P, T]:
    """Return a function that calls a bound method, but does not hold its object.

    A role holds its port, its plans and its parts, and is called back by them. Were these to hold
    it, too, all that a run has in memory would stay until Python collects cycles, which many runs
    in one process do not wait for.

    Args:
        method: of an object that its owner keeps for as long as it may be called.
        gone: what is returned all the same once the object is no more, if it may be called then.
    """
    bound = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        found = bound()
        if found is not None:
            return found(*args, **kwargs)
        assert gone is not None, "what is called back lives as long as who calls it may"
        return gone

    return call
