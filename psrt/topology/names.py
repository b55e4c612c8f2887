"""The topologies, one row each. Needs no numpy, as flags do not."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from psrt.core.errors import ConfigError
from psrt.rows.registry import Registry

if TYPE_CHECKING:
    from psrt.topology.graph import Graph

Drawn: TypeAlias = Literal["circle", "hub", "grid"]


@dataclass(frozen=True, slots=True)
class TopologyRow:
    """Graphs on any number of ranks: a new one is a function and a row, here or in a plugin."""

    #: As ``gossip:topology=`` spells it.
    name: str
    #: Its edges, in a few words.
    summary: str
    #: Module and function of its graphs, ``package.module:function``: number of ranks → the graph
    #: of each round of a period.
    home: str
    #: The meaning of a number after the name, and an example; then edges are drawn at random, and
    #: the function also takes the number and a seed. Empty for a name without a number.
    number: str = ""
    example: str = ""
    #: How to draw it: ranks on a circle, on a circle around the first one, or as a grid.
    drawn: Drawn = "circle"

    @property
    def form(self) -> str:
        """The name as a user writes it."""
        return f"{self.name}:{self.number}" if self.number else self.name

    def graphs(self, size: int, number: str, seed: int) -> tuple[Graph, ...]:
        """Return the graph of each round of a period.

        Args:
            size: number of ranks, N.
            number: the text after the name; empty if there is none.
            seed: of random graphs.

        Raises:
            ConfigError: if there is no such graph.
        """
        module, _, function = self.home.partition(":")
        make = getattr(importlib.import_module(module), function)
        given: tuple[int, ...] = ()
        if self.number:
            if not (number.isascii() and number.isdigit() and len(number) < 10):
                raise ConfigError(
                    f"expected {self.form} with the number of neighbours, like "
                    f"{self.name}:{self.example}"
                )
            given = int(number), seed
        found: tuple[Graph, ...] = make(size, *given)
        return found


_HERE = "psrt.topology.graphs:"
#: Every topology by its name.
TOPOLOGIES: Final = Registry("topology", "psrt.topologies", TopologyRow, (
    TopologyRow("ring", "rank i and rank i + 1", _HERE + "ring"),
    TopologyRow("exponential", "rank i sends to i + 1, i + 2, i + 4, …", _HERE + "exponential"),
    TopologyRow(
        "one-peer-exponential",
        "rank i sends to i + 2^t in round t, and begins again after ⌈lg N⌉",
        _HERE + "one_peer_exponential",
    ),
    TopologyRow(
        "torus", "a grid of ranks whose ends meet, as square as N allows", _HERE + "torus",
        drawn="grid",
    ),
    TopologyRow("star", "rank 0 and each other rank", _HERE + "star", drawn="hub"),
    TopologyRow("full", "each rank and each other rank", _HERE + "full"),
    TopologyRow(
        "hypercube", "ranks whose numbers differ in one binary digit", _HERE + "hypercube"
    ),
    TopologyRow(
        "random-regular", "each rank and D others, drawn at random", _HERE + "random_regular",
        number="D", example="4",
    ),
))  # fmt: skip
#: The topology that is shown if none is named.
DEFAULT: Final = TOPOLOGIES.own[0]


def row_of(text: str) -> TopologyRow | None:
    """Return the row that a text names; None if it is the path of a file.

    >>> row_of("random-regular:4").name, row_of("ring:4")
    ('random-regular', None)
    """
    name, colon, _ = text.partition(":")
    row = TOPOLOGIES.get(name)
    return row if row is not None and (row.number or not colon) else None


def forms() -> tuple[str, ...]:
    """Return the topologies as users write them; any other text is the path of a file."""
    return (*(row.form for row in TOPOLOGIES.values()), "FILE")
