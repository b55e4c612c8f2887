"""A network in which some ranks are partitioned from the others for a while, or have slow links.

Nothing is lost or overtaken: messages sent during a partition leave in order when it heals, as over
TCP.
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
    """Sends messages by another network, and holds or slows those that a fault affects."""

    network: Carrier
    #: By partition, the ranks between which and all others nothing passes.
    _apart: list[frozenset[int]] = field(default_factory=list, init=False)
    #: By slowdown, its ranks and how many times as long their bytes take.
    _slow: list[tuple[frozenset[int], float]] = field(default_factory=list, init=False)
    #: Messages sent during a partition, in order.
    _held: list[tuple[Channel, partial[None]]] = field(default_factory=list, init=False)

    def send(self, channel: Channel, nbytes: int, arrive: Action, argument: Any) -> None:
        """Send a message now, or once no partition holds it up."""
        factor = max((it for ranks, it in self._slow if _touches(channel, ranks)), default=1.0)
        # As long as a message with factor times its bytes: on both links, and for those behind it.
        slowed = nbytes if factor == 1.0 else round(nbytes * factor)
        self._pass(channel, partial(self.network.send, channel, slowed, arrive, argument))

    def follow(self, channel: Channel, arrive: Action, argument: Any) -> None:
        """Deliver the notice of a death, which uses no link, after everything already in flight."""
        self.network.follow(channel, arrive, argument)

    def _pass(self, channel: Channel, send: partial[None]) -> None:
        if any((channel.out in it) != (channel.into in it) for it in self._apart):
            self._held.append((channel, send))
        else:
            send()

    def cut(self, ranks: Sequence[int]) -> None:
        """Partition these ranks from all others."""
        self._apart.append(frozenset(ranks))

    def heal(self, ranks: Sequence[int]) -> None:
        """End a partition; the messages held up by it leave now."""
        self._apart.remove(frozenset(ranks))
        held, self._held = self._held, []
        for channel, send in held:
            self._pass(channel, send)

    def drop(self, rank: int) -> list[partial[None]]:
        """Drop the messages of a rank that a partition holds; return the calls that send them."""
        dropped = [send for channel, send in self._held if channel.out == rank]
        self._held = [it for it in self._held if it[0].out != rank]
        return dropped

    def slow(self, ranks: Sequence[int], factor: float) -> None:
        """Make all bytes of these ranks take ``factor`` times as long."""
        self._slow.append((frozenset(ranks), factor))

    def fast(self, ranks: Sequence[int], factor: float) -> None:
        """Undo ``slow``."""
        self._slow.remove((frozenset(ranks), factor))


def _touches(channel: Channel, ranks: frozenset[int]) -> bool:
    return channel.out in ranks or channel.into in ranks
