"""Grids that are one test: a table of hundreds of quick cases is not hundreds of tests."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[..., Callable[..., None]]:
    """Run a test for every value in turn; what fails says for which.

    It is written as ``pytest.mark.parametrize`` is, for cases so quick that pytest's own work for a
    test would take longer, and which need no fixtures that are new for each.

    Args:
        names: of a parameter, or of several.
        values: of the parameter, or a tuple for each case.
    """
    cases = [
        {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
        for value in values
    ]
    if not cases:
        raise ValueError(f"no values of {names}: a test that cannot fail")

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_cases(*args: Any, **fixtures: Any) -> None:
            for case in cases:
                try:
                    test(*args, **fixtures, **case)
                except BaseException as error:  # that nothing was raised is no Exception to pytest
                    error.add_note(f"with {', '.join(f'{k} = {v!r}' for k, v in case.items())}")
                    raise

        # What is left of the parameters are fixtures, and parameters of pytest's own.
        signature = inspect.signature(test)
        left = [p for name, p in signature.parameters.items() if name not in cases[0]]
        all_cases.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return all_cases

    return decorated


def some(values: Iterable[Any], *, one_in: int) -> list[Any]:
    """Return values as parameters of pytest, all but one in so many of them exhaustive."""
    return [
        pytest.param(value, marks=[pytest.mark.exhaustive] * (i % one_in != 0))
        for i, value in enumerate(values)
    ]


def also(*case: Any, **more: Any) -> Any:
    """Return a case that shows what others show: parameters of pytest that are exhaustive."""
    return pytest.param(*case, marks=pytest.mark.exhaustive, **more)


def pairs(firsts: Iterable[Any], seconds: Iterable[Any], *, one_in: int) -> list[Any]:
    """Return all pairs as parameters of pytest, all but one in so many of them exhaustive.

    Those that are left are spread so that each value is among them, of at least ``one_in`` others.
    """
    return [
        pytest.param(first, second, marks=[pytest.mark.exhaustive] * ((i + j) % one_in != 0))
        for i, first in enumerate(firsts)
        for j, second in enumerate(seconds)
    ]
