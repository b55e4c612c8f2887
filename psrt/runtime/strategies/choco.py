"""The strategy of gossip with a codec: neighbours get compressed changes of θ."""

from __future__ import annotations

from typing import Any

import numpy as np

from psrt.codec import Encoder, draws
from psrt.core.arrays import ITEMSIZE, Bytes, Vector
from psrt.core.errors import CodecError
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.gossip import Gossip
from psrt.runtime.strategies.neighbours import Arrived


class Choco(Gossip):
    """Mixes x̂, what neighbours know of each other, and moves θ by a share of the result.

    A worker sends one frame of C(θ_i − x̂_i) to all neighbours. All of them, and the worker itself,
    add what it decodes to by the same operations, so x̂_i has the same bits everywhere. Then
    θ_i ← θ_i + γ Σ_j M_ij (x̂_j − x̂_i), which keeps Σθ, whatever the codec lost. The loss is part
    of the next difference.

    All start with the same θ, and with x̂ = θ. Combine-then-adapt sends before the gradient is
    computed, as in the second paper; adapt-then-combine after the step, as in the first.

    Sources: Koloskova, Stich & Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms
    with Compressed Communication", ICML 2019 (arXiv:1902.00340); Koloskova, Lin, Stich & Jaggi,
    "Decentralized Deep Learning with Arbitrary Communication Compression", ICLR 2020
    (arXiv:1907.09356).
    """

    saved = ("_codec", "_known")
    by_element = ("_known",)

    def __init__(self, *args: Any, codec: Encoder, seed: int, rate: float, **kwargs: Any) -> None:
        """Set up; see ``Gossip``.

        Args:
            args: as of ``Gossip``.
            codec: of a whole θ, without error feedback.
            seed: of the run.
            rate: γ.
            kwargs: as of ``Gossip``.
        """
        super().__init__(*args, **kwargs)
        self._codec, self._seed, self._rate = codec, seed, np.float32(rate)
        part = self._neighbours.part
        self._worker = part.rank
        #: x̂ by worker: of this one, and of its neighbours.
        self._known = {worker: self._theta.copy() for worker in (part.rank, *part.peers)}
        self._difference = np.empty_like(self._theta)
        self._nothing = np.zeros(1, np.uint8)

    @property
    def _offer(self) -> Vector:
        """x̂_i, which stands for θ_i in the average."""
        return self._known[self._worker]

    def begin(self, step: Step) -> None:
        """Send what is new of θ_i on its way, if it is combined before the step."""
        self._since = self._port.now()
        if not self._adapts_first:
            self._send(self._since)
        self._since -= step.computed

    def _send(self, now: float, weight: float = 1.0, waited: float = 0.0) -> None:
        """Send the frame of what is new of θ_i, and take it up as neighbours will."""
        frame = self._encoded()
        # Recorded is when it begins to be sent. In virtual time encoding passes from then on, as a
        # part of the step.
        self._since = now = self._port.now()
        to = self._neighbours.send_framed(self.updates, frame)
        self.counts.framed(to * frame.size, to * ITEMSIZE * self._port.role_map.n)
        if (events := self._events) is not None:
            content = events.content(self._offer)
            events.note((events.offered, now, self.updates, content, to, weight, waited))

    def _encoded(self) -> Bytes:
        """Return the frame of what is new, which x̂_i has taken up."""
        if not self._theta.size:  # no numerics: as long as it may be
            return np.broadcast_to(self._nothing, (self._codec.longest,))
        known, difference = self._offer, self._difference
        np.subtract(self._theta, known, out=difference)
        frame = self._codec.encode(difference, draws(self._seed, self._worker, self.updates, 0))
        self._take_up(frame, known)
        return frame

    def _take_up(self, frame: Bytes, known: Vector) -> None:
        """Add what a frame decodes to: the one way, so that x̂ has the same bits everywhere."""
        if known.size:
            self._codec.decode(frame, self._difference)
            np.add(known, self._difference, out=known)

    async def _combine(self, began: float) -> float:
        if self._adapts_first:
            self._send(began)
        began = self._port.now()
        if (events := self._events) is not None:
            events.note((events.owned, began, self.updates, events.content(self._theta)))
        await self._neighbours.collect(self.updates, self._mix_in)
        return self._note_mixed(began)

    def _mix_in(self, arrived: Arrived) -> None:
        """Take up what is new of a neighbour, and move by what the two are known to differ by."""
        known = self._known[arrived.worker]
        try:
            self._take_up(arrived.frame, known)
        except CodecError as error:
            raise CodecError(
                f"worker {arrived.worker} sent for round {self.updates}: {error}"
            ) from error
        super()._mix_in(arrived._replace(vector=known))

    def _note_taken(self, arrived: Arrived) -> np.float32:
        return self._rate * super()._note_taken(arrived)
