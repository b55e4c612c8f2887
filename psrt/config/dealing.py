"""The value of ``--partition``: how samples are split among workers, read from a text."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from psrt.rows.knobs import shown
from psrt.rows.suggest import did_you_mean
from psrt.rows.values import LARGEST, TEXT, Kind, Number, read_numbers, write_text

#: The workers' data is IID: each epoch is shuffled and split among all of them.
IID: Final = "iid"
BY_LABEL: Final = "by-label"
DIRICHLET: Final = "dirichlet"
#: The number that each rule takes, and an example of it.
_RULES: Final = {
    BY_LABEL: (Number("K", 1, LARGEST, whole=True), "2"),
    DIRICHLET: (Number("A", 1e-6, 1e6), "0.5"),
}


class Dealing(NamedTuple):
    """A rule by which samples are split, and its number.

    >>> dealing_of("by-label:2")
    Dealing(rule='by-label', number=2)
    """

    #: A key of the table of rules in ``psrt.data.deal``.
    rule: str
    #: K or A.
    number: float


def dealing_of(text: str) -> Dealing | None:
    """Return the rule that a text of ``--partition`` names; None for ``iid``.

    Raises:
        ValueError: with the end of a sentence, see ``psrt.rows.values``.
    """
    rule, _, number = text.partition(":")
    if text == IID:
        return None
    if rule not in _RULES:
        forms = [f"{name}:{it.name}" for name, (it, _) in _RULES.items()]
        raise ValueError(f"must be {IID}, {' or '.join(forms)}{did_you_mean(rule, (IID, *_RULES))}")
    form, example = _RULES[rule]
    try:
        return Dealing(rule, *read_numbers((form,), number))
    except ValueError:
        raise ValueError(
            f"must be {rule}:{form.name}, {form.name} {form.range}, like {rule}:{example}"
        ) from None


def _read(text: str) -> str:
    found = dealing_of(text)
    return IID if found is None else f"{found.rule}:{shown(found.number)}"


def _accept(value: Any) -> str:
    return _read(TEXT.accept(value))


PARTITION = Kind("RULE", _read, _accept, write_text)
