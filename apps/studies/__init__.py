"""The studies of staleness that ``staleness_study.py`` starts: one a file."""

from __future__ import annotations

from collections.abc import Sequence

from psrt.core.errors import ConfigError


def refuse(words: Sequence[str], *flags: str) -> None:
    """Refuse flags of ``psrt train`` that a study gives itself.

    Raises:
        ConfigError: if one of them is there.
    """
    for word in words:
        if word.partition("=")[0] in flags:
            raise ConfigError(f"{word.partition('=')[0]} has no effect here: the study varies it")
