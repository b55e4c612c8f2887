"""A network some of whose ranks are cut off from the others for a while, or have slow links.

Nothing is lost or overtaken: what was sent into a cut sets out when it heals, in order, as by TCP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from psrt.simulation.event_queue import Action
from psrt.simulation.network import Carrier, Channel


@dataclass(eq=False, slots=True)
class DisturbedNetwork:
    """Carries messages by another network, unless something is in the way."""

    network: Carrier
    #: Ranks between which and all others nothing passes, for each cut.
    _apart: list[frozenset[int]] = field(default_factory=list, init=False)
    #: How many times as long bytes of a rank take, for each that is slow.
    _slow: list[tuple[frozenset[int], float]] = field(default_factory=list, init=False)
    #: What was sent into a cut, in order.
    _held: list[tuple[Channel, partial[None]]] = field(default_factory=list, init=False)

    def send(self, channel: Channel, nbytes: int, arrive: Action, argument: Any) -> None:
        """Send a message now, or when it can pass."""
        factor = max((it for ranks, it in self._slow if _touches(channel, ranks)), default=1.0)
        # As long as so many bytes: on both links, and for those that come after it, too.
        slowed = nbytes if factor == 1.0 else round(nbytes * factor)
        self._pass(channel, partial(self.network.send, channel, slowed, arrive, argument))

    def follow(self, channel: Channel, arrive: Action, argument: Any) -> None:
        """Deliver the notice of a death, which comes by no link, after what is under way."""
        self.network.follow(channel, arrive, argument)

    def _pass(self, channel: Channel, send: partial[None]) -> None:
        if any((channel.out in it) != (channel.into in it) for it in self._apart):
            self._held.append((channel, send))
        else:
            send()

    def cut(self, ranks: Sequence[int]) -> None:
        """Let nothing pass between these ranks and all others."""
        self._apart.append(frozenset(ranks))

    def heal(self, ranks: Sequence[int]) -> None:
        """Let all pass again; what was held sets out now."""
        self._apart.remove(frozenset(ranks))
        held, self._held = self._held, []
        for channel, send in held:
            self._pass(channel, send)

    def drop(self, rank: int) -> list[partial[None]]:
        """Let what a rank has sent into a cut never arrive; return what would send it."""
        dropped = [send for channel, send in self._held if channel.out == rank]
        self._held = [it for it in self._held if it[0].out != rank]
        return dropped

    def slow(self, ranks: Sequence[int], factor: float) -> None:
        """Make all bytes of these ranks take so many times as long."""
        self._slow.append((frozenset(ranks), factor))

    def fast(self, ranks: Sequence[int], factor: float) -> None:
        """Undo ``slow``."""
        self._slow.remove((frozenset(ranks), factor))


def _touches(channel: Channel, ranks: frozenset[int]) -> bool:
    return channel.out in ranks or channel.into in ranks
