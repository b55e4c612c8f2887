"""Elastic averaging: after H local steps a worker and the centre are pulled together.

x_i ← x_i − e_i and x̃ ← x̃ + Σ e_i with e_i = α(x_i − x̃), the same bits on both sides.

- *Synchronous*: an average is a round of all workers. Each has the centre of the last round, so it
  can compute e_i itself, and the reply brings the next centre.
- *Asynchronous*: the centre is the one on which the push arrives. The server moves it and answers
  with the one before. From that the worker computes the same e_i and the new centre, in one round
  trip. The paper's worker first asks for the centre and then sends e_i: two messages in sequence,
  between which others may move the centre.
- *Asynchronous, with a codec of replies*: only the worker knows what its replies have lost. So the
  force uses the centre as the worker holds it, as in rounds, and replies bring the newest one.

The optimizer, with its momentum, takes only the local steps; the force moves the parameters.
"""

from __future__ import annotations

import math

import numpy as np

from psrt.core.arrays import Vector
from psrt.runtime.checksum import digest
from psrt.runtime.conserved import signed_sum
from psrt.runtime.elastic import Drawn, force
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.push_codec import PushEncoder
from psrt.runtime.reply_codec import ReplyDecoder
from psrt.runtime.strategies.base import Step
from psrt.runtime.strategies.local_sgd import PushPullAverager
from psrt.runtime.strategies.push_pull import PushPull
from psrt.transport.port import Port, gradient_of


class ElasticAverager(PushPullAverager):
    """A worker's side of elastic averaging; ``CentreUpdater`` is the server's.

    A push carries x_i. With a codec it carries x_i − c_i instead, where c_i is the centre as this
    worker holds it, and both sides use what the frame decodes to as that difference.

    Source: Zhang, Choromanska & LeCun, NeurIPS 2015 (arXiv:1412.6651).
    """

    saved = ("_push_pull", "_theta", "_centre")
    by_element = ("_theta", "_centre")
    of_worker, per_worker = ("_theta",), ("_centre",)

    def __init__(
        self,
        port: Port,
        alpha: float,
        *,
        is_sent_met: bool = False,
        parks: bool = False,
        encoder: PushEncoder | None = None,
        decoder: ReplyDecoder | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: of a worker, in a job with servers.
            alpha: β/W.
            is_sent_met: whether replies bring the centre that the push met, not the newest one.
            parks: see ``PushPull``.
            encoder: makes frames of x_i − c_i; None pushes x_i as it is.
            decoder: adds the frames of replies to c_i; None where centres are sent.
            events: records events for the history; None keeps none.
        """
        self._port = port
        self._push_pull = PushPull(
            port, parks=parks, encoder=encoder, decoder=decoder, events=events
        )
        self.counts = self._push_pull.counts
        self._alpha, self._is_sent_met = np.float32(alpha), is_sent_met
        self._theta = theta = port.theta
        self._buffer = gradient_of(port)
        assert not (is_sent_met and decoder is not None), "a frame is of the newest centre"
        self._is_framed = encoder is not None
        self._events = events if theta.size else None
        #: c_i, the newest centre that this worker knows.
        self._centre = theta.copy()
        self.model = self._centre
        self._force = np.empty_like(theta)
        #: x_i while the reply is written to θ, and what the frames of a push decode to.
        self._own, self._sent = self._buffer, np.empty_like(theta[:0])
        if encoder is not None:
            self._own, self._sent = np.empty_like(theta), np.empty_like(theta)
            spans = port.role_map.spans
            if theta.size:
                encoder.decode_into([span.of(self._sent) for span in spans])

    async def park(self, averages: int) -> None:
        """Wait until all are parked, and take over the centre as it is then."""
        theta, centre, own = self._theta, self._centre, self._own
        np.copyto(own, theta)
        if self._is_framed:
            np.copyto(theta, centre)  # what servers think is here
        await self._push_pull.park(averages)
        np.copyto(centre, theta)
        np.copyto(theta, own)

    async def average(self, step: Step) -> None:
        """Push x_i, or how it differs from the centre, and draw it by what comes back."""
        theta, centre, own, push_pull = self._theta, self._centre, self._own, self._push_pull
        np.copyto(own, theta)
        if self._is_framed:
            np.subtract(theta, centre, out=self._buffer)
            np.copyto(theta, centre)  # the frame of a reply is added to what servers think is here
        await push_pull.step(step)
        if not step.samples:
            np.copyto(centre, theta)
            np.copyto(theta, own)
            return
        self._draw(step)

    def _draw(self, step: Step) -> None:
        """Make x_i − e_i and the newest centre out of x_i and the reply, which is in θ."""
        theta, centre, own, drawn = self._theta, self._centre, self._own, self._force
        met = theta if self._is_sent_met else centre
        events, x = self._events, own
        if self._is_framed and self._is_sent_met:
            x = np.add(centre, self._sent, out=self._sent)  # as the server sees it
        if self._is_framed and not self._is_sent_met:
            np.multiply(self._sent, self._alpha, out=drawn)
        else:
            force(x, met, self._alpha, drawn)
        if events is not None and events.is_exact:
            apart = np.subtract(x, met, dtype=np.float64)
            if self._is_framed and not self._is_sent_met:
                apart = self._sent.astype(np.float64)
            digests = self._digests(met)
        self._renew()
        self._move()
        if events is not None and events.is_exact:
            self._note(step, apart, digests, events)

    def _renew(self) -> None:
        """Take over the newest centre."""
        if self._is_sent_met:
            np.add(self._theta, self._force, out=self._centre)
        else:
            np.copyto(self._centre, self._theta)

    def _move(self) -> None:
        np.subtract(self._own, self._force, out=self._theta)

    def _digests(self, met: Vector) -> list[tuple[int, int]]:
        """Return by shard the digests of the force and of the centre that made it."""
        spans = self._port.role_map.spans
        return [(digest(span.of(self._force)), digest(span.of(met))) for span in spans]

    def _note(
        self,
        step: Step,
        apart: np.ndarray[tuple[int], np.dtype[np.float64]],
        digests: list[tuple[int, int]],
        events: WorkerEventRecorder,
    ) -> None:
        """Record what the force was and what it did, shard by shard."""
        port, now = self._port, self._port.now()
        moved = np.subtract(self._theta, self._own, dtype=np.float64)
        for shard, span in enumerate(port.role_map.spans):
            (total, size), (_, norm) = (
                signed_sum(span.of(it)) for it in (self._force, self._theta)
            )
            root = math.sqrt(span.size)
            sums = Drawn(
                *digests[shard],
                total,
                signed_sum(span.of(apart))[0],
                signed_sum(span.of(moved))[0],
                root * norm,
                root * size,
            )
            events.note((events.drawn, now, step.clock, shard, sums))
