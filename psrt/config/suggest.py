"""A guess at what a misspelled name was meant to be."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean X?)"`` for the known name nearest to ``name``, or nothing.

    >>> did_you_mean("stalenes", ["seed", "staleness"])
    ' (did you mean staleness?)'
    >>> did_you_mean("stale", ["seed", "staleness"])
    ' (did you mean staleness?)'
    >>> did_you_mean("zzz", ["seed", "staleness"])
    ''
    """
    import difflib  # costs milliseconds, and only a mistake needs it

    known = list(known)
    longer = [other for other in known if other.startswith(name) and len(other) <= 2 * len(name)]
    near = sorted(longer, key=len) or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""
