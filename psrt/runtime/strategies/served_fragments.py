"""The strategy of learners whose fragments servers merge, while local steps continue.

A learner pushes a fragment when it is due, Δ_f = anchor − θ_f, and adopts what servers have made of
it a number of its own steps later. Which step adopts which merge depends on the steps alone: a
learner that needs a merge that is not there waits for it. It has one fragment on its way at a time.

At the end it pushes once more every fragment in which it has made a step since.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psrt.core.messages import Message, Params
from psrt.core.partition import Span
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.paces import pace_of
from psrt.runtime.push_codec import PushEncoder
from psrt.runtime.reply_codec import ReplyDecoder
from psrt.runtime.strategies.base import LocalSteps, Step
from psrt.runtime.strategies.local_sgd import note_anchor
from psrt.runtime.strategies.push_pull import PushPull
from psrt.runtime.strategies.team import Heard, Team
from psrt.runtime.updater import Updater
from psrt.sync import FragmentPeriod
from psrt.transport.port import Port, gradient_of


class ServedFragment:
    """What a learner keeps of one fragment."""

    saved = ("pushes", "steps", "samples")

    def __init__(self, link: PushPull, spans: Sequence[Span]) -> None:
        """Set up.

        Args:
            link: talks to its shards.
            spans: of them.
        """
        self.link, self.spans = link, spans
        #: Pushes that were answered: the clock of the next one.
        self.pushes = 0
        #: Steps and samples since the last push.
        self.steps = self.samples = 0
        #: The answers to the push on its way that have come; None if none is on its way.
        self.answers: list[Params] | None = None

    @property
    def is_here(self) -> bool:
        """Whether all answers have come."""
        return self.answers is not None and len(self.answers) == len(self.spans)


class ServedFragments(LocalSteps):
    """Local steps, after some of which a fragment is pushed and another one adopted.

    Sources: fragments, Douillard et al. 2025 (arXiv:2501.18512); quorums, Douillard et al. 2026
    (arXiv:2604.21428).
    """

    saved = (
        *("_theta", "_base", "_fragments", "_turn", "_of_period", "_progress", "_owes"),
        *("_encoder", "_decoder", "_cut"),
    )
    by_element = ("_theta", "_base")
    of_worker, per_worker = ("_theta", "_updater"), ("_base",)

    def __init__(
        self,
        port: Port,
        updater: Updater,
        period: FragmentPeriod,
        *,
        mixing: float,
        is_paced: bool = False,
        encoder: PushEncoder | None = None,
        decoder: ReplyDecoder | None = None,
        team: Team | None = None,
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up.

        Args:
            port: of a worker, in a job with servers.
            updater: takes the local steps.
            period: when fragments are pushed, and when merges are adopted.
            mixing: A: the share of its own parameters that a learner keeps.
            is_paced: whether servers must know how fast this worker is.
            encoder: makes frames of Δ_f; None pushes it as it is.
            decoder: adds the frames of replies to anchors; None where parameters are sent.
            team: takes the local steps, if this is one of several ranks of a learner.
            events: records events for the history; None keeps none.
        """
        #: The anchor, a version of each fragment, and where the next one lands.
        self._base = port.land_apart(None if team is None else team.theta)
        super().__init__(port, updater, team=team, events=events)
        #: Whether this rank talks to the servers; else another one of its team does.
        self._speaks = team is None or team.leads
        role_map = port.role_map
        #: The port's own gradient holds what is on its way, so local steps have one of their own.
        self._wire = gradient_of(port)
        if team is None:
            self.gradient = self._gradient = np.zeros_like(port.theta)
        else:
            team.count_into(self.counts)
        #: By shard, its fragment.
        self._by_shard: list[ServedFragment] = [None] * len(role_map.servers)  # type: ignore[list-item]
        self._fragments: list[ServedFragment] = []
        for first in sorted(set(role_map.deciders)):
            shards = [it for it, of in enumerate(role_map.deciders) if of == first]
            link = PushPull(
                port, shards=shards, parks=True, encoder=encoder, decoder=decoder, events=events
            )
            link.counts = self.counts
            fragment = ServedFragment(link, [role_map.spans[it] for it in shards])
            self._fragments.append(fragment)
            for shard in shards:
                self._by_shard[shard] = fragment
        self._encoder, self._decoder = encoder, decoder
        self._period, self._mixing, self._is_paced = period, mixing, is_paced
        self._watches = events is not None and events.is_exact and port.theta.size > 0
        self._watches &= self._speaks
        #: Δ_f of what is on its way, as servers see it; and whether it has samples.
        self._sent, self._has_samples = self._wire, False
        if self._watches and encoder is not None:
            self._sent = np.empty_like(port.theta)
            encoder.decode_into([span.of(self._sent) for span in role_map.spans])
        #: Fragments pushed so far; the next one is this, modulo their number.
        self._turn = 0
        self._on_its_way: ServedFragment | None = None
        #: Steps of the present period, the progress of the last one, and whether a push is due that
        #: a checkpoint has put off.
        self._of_period = 0
        self._progress = 0.0
        self._owes = False
        port.waiting_for = self._fragments[0].link.waiting_for

    @property
    def at_cut(self) -> bool:
        """Whether servers ask to park, and nothing is on its way."""
        return self.cut != 0 and self._on_its_way is None

    @property
    def cut(self) -> int:
        """What servers ask to park for, as ``Params.cut``."""
        return next((it.link.cut for it in self._fragments if it.link.cut), 0)

    @property
    def _cut(self) -> int:
        return self.cut

    @_cut.setter
    def _cut(self, cut: int) -> None:
        for it in self._fragments:
            it.link.follow_cut(cut)

    @property
    def versions(self) -> Sequence[int]:  # type: ignore[override]
        """By shard, the version of the anchor."""
        return [it.link.versions[shard] for shard, it in enumerate(self._by_shard)]

    def begin(self, step: Step) -> None:
        """Note when a step begins, and the first read."""
        for it in self._fragments if self._speaks else ():
            it.link.begin(Step(it.pushes, 0, step.progress))
        self._begin(step)
        self._since = self._port.now() - step.computed

    async def step(self, step: Step) -> int:
        """Take a local step, adopt the merge that is due, and push the fragment that is."""
        await self._add(await self._take(step))
        return step.clock + 1

    async def _add(self, step: Step) -> None:
        """Count a local step, and adopt and push what is due after it."""
        self._progress = step.progress
        for it in self._fragments:
            it.steps += 1
            it.samples += step.samples
        self._of_period += 1
        coming = self._on_its_way
        if coming is not None:
            await self._poll()
            if coming.steps >= self._period.delay:
                await self._adopt(coming)
        if self._is_due:
            # A push would wait for those that are parked, or be in flight when this one is. What is
            # on its way is adopted first; only then all ranks of a team know of a cut.
            self._owes = self.cut != 0 and self._on_its_way is None
            if not self._owes:
                await self._push_next()
        if self._of_period == self._period.local_steps:
            self._of_period = 0

    @property
    def _is_due(self) -> bool:
        """Whether to push after this step."""
        if len(self._fragments) > 1:
            return self._period.due(self._of_period) is not None
        # H may have shrunk below the steps since the last push.
        return self._fragments[0].steps >= self._period.local_steps

    async def _push_next(self) -> None:
        await self._push(self._fragments[self._turn % len(self._fragments)])
        self._turn += 1

    async def _push(self, fragment: ServedFragment) -> None:
        """Push what a fragment has learnt; without a delay, adopt what comes of it."""
        if self._on_its_way is not None:
            await self._adopt(self._on_its_way)
        if self._speaks:
            for span in fragment.spans:
                np.subtract(span.of(self._base), span.of(self._theta), out=span.of(self._wire))
            step = Step(fragment.pushes, fragment.samples, self._progress, steps=fragment.steps)
            if self._is_paced:
                step = step._replace(pace=pace_of(self._busy_steps, self._busy_s))
            fragment.link.send(step)
        self._busy_steps, self._busy_s = 0, 0.0
        self._has_samples = fragment.samples > 0
        fragment.steps = fragment.samples = 0
        fragment.answers, self._on_its_way = [], fragment
        if not self._period.delay:
            await self._adopt(fragment)

    async def _poll(self) -> None:
        """Take the answers that have come, so that servers may overwrite what they sent."""
        fragment = self._on_its_way
        assert fragment is not None, "one is on its way"
        if not self._speaks:
            return
        while not fragment.is_here and (message := await self._port.poll()) is not None:
            self._take_answer(message)

    async def _adopt(self, fragment: ServedFragment) -> None:
        """Wait for the answers to a push, and mix in what they bring."""
        if self._speaks:
            await self._adopt_answers(fragment)
        await self._share(fragment)
        fragment.answers = self._on_its_way = None
        self.updates += 1
        if fragment.link.local_steps:
            self._period = self._period._replace(local_steps=fragment.link.local_steps)

    async def _share(self, *fragments: ServedFragment) -> None:
        """Share with the other ranks of a team what has changed in these fragments."""
        if self._team is None:
            return
        spans = [span for it in fragments for span in it.spans]
        steps, cut = await self._team.share(spans, Heard(fragments[0].link.local_steps, self.cut))
        for it in fragments:
            it.link.local_steps = steps
        if not self._speaks:
            self._cut = cut

    async def _adopt_answers(self, fragment: ServedFragment) -> None:
        began, answers = self._port.now(), fragment.answers
        assert answers is not None, "it is on its way"
        while not fragment.is_here:
            self._take_answer(await self._port.receive())
        kept = np.float32(self._mixing if fragment.steps else 0.0)
        for span in fragment.spans:
            theta, base = span.of(self._theta), span.of(self._base)
            if kept:
                np.multiply(theta, kept, out=theta)
                np.add(theta, base * (np.float32(1) - kept), out=theta)
            else:
                np.copyto(theta, base)
        pushed, fragment.pushes = fragment.pushes, answers[-1].clock
        fragment.link.note_replies(answers, fragment.pushes, began)
        if self._watches and self._has_samples and self._events is not None:
            shards = [it.shard for it in answers]
            note_anchor(
                self._events, self._port, pushed, shards, pushed=self._sent, anchor=self._base
            )

    def _take_answer(self, message: Message) -> None:
        fragment = self._by_shard[message.shard]
        assert fragment.answers is not None, "its push is on its way"
        fragment.answers.append(fragment.link.take(message))

    async def park(self, clock: int) -> None:
        """Wait until all are parked, and take over the newest versions as anchors.

        What has been learnt since a push stays what it is: θ moves along with its anchor.
        """
        if self._speaks:
            await self._park()
        elif self._cut:
            self._cut = 0
        await self._share(*self._fragments)
        if self._owes:
            self._owes = False
            await self._push_next()

    async def _park(self) -> None:
        before = self._base.copy()
        self._cut = self.cut  # only some shards have asked
        began = [it.link.send_parks(it.pushes) for it in self._fragments]
        for _ in self._by_shard:
            message = await self._port.receive()
            self._by_shard[message.shard].link.take(message)
        np.add(self._theta, np.subtract(self._base, before, out=before), out=self._theta)
        for it, since in zip(self._fragments, began, strict=True):
            it.link.note_parked(it.pushes, since)

    def go_on(self, clock: int) -> None:
        """Resume from a checkpoint, which was made while all were parked."""
        for it in self._fragments:
            it.link.go_on(it.pushes)

    def note_left(self, clock: int) -> None:
        """Record the end of a worker that had left."""
        self._fragments[0].link.note_left(self.updates)

    async def finish(self) -> None:
        """Adopt what is on its way, and push once more what has been learnt since."""
        await self._follow()
        self._owes = False  # all that is left goes now
        if self._on_its_way is not None:
            await self._adopt(self._on_its_way)
        for _ in self._fragments:
            fragment = self._fragments[self._turn % len(self._fragments)]
            if fragment.steps:
                await self._push(fragment)
                if self._on_its_way is not None:
                    await self._adopt(fragment)
            self._turn += 1

    async def leave(self, clock: int) -> None:
        """Push what has been learnt since, then leave."""
        await self.finish()
        self.note_left(clock)
        for it in self._fragments if self._speaks else ():
            it.link.send_leaves(it.pushes)
