"""Guesses the name that was meant by a misspelled one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

_NONE: Mapping[str, str] = MappingProxyType({})


def did_you_mean(
    name: str, known: Iterable[str], synonyms: Mapping[str, str] = _NONE, *, prefix: str = ""
) -> str:
    """Return ``" (did you mean X?)"`` for the closest known name, or ``""`` if none is close.

    Args:
        name: the given name.
        known: all valid names.
        synonyms: synonym → name. A synonym takes precedence over a name with a similar spelling,
            and a name over a synonym that is only as similar.
        prefix: shown before the suggested name.

    >>> did_you_mean("stalenes", ["seed", "staleness"], prefix="--")
    ' (did you mean --staleness?)'
    >>> did_you_mean("stale", ["seed", "staleness"])
    ' (did you mean staleness?)'
    >>> did_you_mean("learning-rate", ["lr", "staleness-rate"], {"learning-rate": "lr"})
    ' (did you mean lr?)'
    >>> did_you_mean("rign", ["ring", "codec sign"], {"sign": "codec sign"})
    ' (did you mean ring?)'
    >>> did_you_mean("SSP", ["sgd", "ssp"]), did_you_mean("spp", ["sgd", "ssp"])
    (' (did you mean ssp?)', ' (did you mean ssp?)')
    >>> did_you_mean("workers", ["servers", "seed"])
    ''
    """
    import difflib  # takes milliseconds, and only a mistake needs it

    known = list(known)
    name = next((other for other in known if other.lower() == name.lower()), name)
    longer = [other for other in known if other.startswith(name) and len(other) <= 2 * len(name)]
    near = [synonyms[name]] if synonyms.get(name) in known else sorted(longer, key=len)
    if not near:  # words so short that one wrong letter is a third of them
        near = [it for it in known if len(it) == len(name) > 2 and _wrong(it, name) == 1]
    # Below 0.7 are words that only share an ending, such as workers and servers.
    if not near:

        def closeness(other: str) -> tuple[float, bool]:
            return difflib.SequenceMatcher(None, other, name).ratio(), other in known

        close = difflib.get_close_matches(name, [*known, *synonyms], cutoff=0.7)
        near = sorted(close, key=closeness, reverse=True)
    found = next((synonyms.get(it, it) for it in near), None)
    return f" (did you mean {prefix}{found}?)" if found in known else ""


def _wrong(one: str, other: str) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))
