"""A machine's costs as ``psrt bench allreduce --fit FILE`` keeps them."""

from __future__ import annotations

from psrt.collective.analysis.machine import MachineCosts
from psrt.errors import ConfigError
from psrt.files import read_text


def read_costs(path: str) -> MachineCosts:
    """Return the costs that a file holds.

    Raises:
        ConfigError: if it cannot be read, or is not what ``MachineCosts.to_json`` writes.
    """
    text = read_text(path)
    try:
        return MachineCosts.from_json(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
