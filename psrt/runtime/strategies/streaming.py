"""The strategy of streaming local SGD: the model is averaged in parts, while local steps continue.

Each worker sends a fragment of its parameters when it is due, in a fixed order, and takes the
mean over all workers a number of its own steps later. The numbers of a run depend on the steps
alone and not on when messages arrive: a worker that needs a mean that is not there waits for it.

The k-th fragment that a worker sends is summed with the k-th of each other worker, even if one of
them is ahead. So all workers send the same fragments in the same order, and one that is done
continues to take part with weight zero until no worker is training.

At the end of its training a worker waits for what is in flight, sends once more every fragment in
which it has made a step since, and takes the means as they are: so all end with the same bits.

**With a codec** the sum of a fragment begins when its divisor is known. As all workers begin all
sums in the same order, the next fragment's weights set out after that: nobody waits for it, but
where several fragments are in flight, one may set out a step or more after it was sent. What ends
the differences between eager workers goes as it is: parameters, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from psrt.core.partition import Span
from psrt.core.units import plural, size_text
from psrt.history.log import QUEUED
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.base import (
    LocalSteps,
    ReducePlan,
    Step,
    frame_plan,
)
from psrt.runtime.strategies.fragment import Fragment
from psrt.runtime.strategies.outer_rules import EagerSteps, OuterRule
from psrt.runtime.updater import Updater
from psrt.sync import FragmentPeriod
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import CONTROL, Port


class StreamingSGD(LocalSteps):
    """Local steps, after some of which a fragment is sent and another one arrives."""

    saved = ("_theta", "_rule", "_fragments", "_codecs", "_round", "_of_period", "_progress")
    by_element = ("_theta",)

    def __init__(
        self,
        port: Port,
        updater: Updater,
        rule: OuterRule,
        period: FragmentPeriod,
        fragments: Sequence[Sequence[Span]],
        *,
        algorithm: str,
        full: int,
        control_algorithm: str | None = None,
        codecs: Sequence[SumCodec] = (),
        events: WorkerEventRecorder | None = None,
    ) -> None:
        """Set up; collective.

        Args:
            port: of a job without servers, with a set of control values for each fragment.
            updater: takes the local steps.
            rule: what is sent, and what becomes of the means.
            period: when fragments are sent, and when they arrive.
            fragments: the spans of each; together they tile θ.
            algorithm: ``auto`` or the name of an all-reduce.
            full: samples of all local steps of a period with full batches.
            control_algorithm: the all-reduce of the control values; None applies ``algorithm``.
            codecs: by fragment, what makes its messages; none send numbers as they are.
            events: records events for the history; None keeps none.
        """
        super().__init__(port, updater, events=events)
        assert not port.role_map.servers, "an all-reduce is among all ranks"
        #: The port's own gradient holds what is being summed, so local steps have one of their own.
        self.gradient = self._gradient = np.zeros_like(port.theta)
        self._rule, self._period, self._full = rule, period, full
        self._eager = rule if isinstance(rule, EagerSteps) else None
        self._workers = len(port.role_map.workers)
        sizes = [sum(span.size for span in spans) for spans in fragments]
        control = port.choice(control_algorithm or algorithm, CONTROL)[0]
        # Where each lies in the vector that is sent.
        places = [Span(sum(sizes[:f]), sum(sizes[: f + 1])) for f in range(len(sizes))]
        largest = places[sizes.index(max(sizes))]
        coded = codecs[0].coding(largest) if codecs else None
        chosen, why = port.choice(algorithm, largest.size, coded=coded)
        self._codecs = codecs
        self._fragments = [
            Fragment(port, f, spans, place, (control, chosen), codec)
            for f, (spans, place, codec) in enumerate(zip_longest(fragments, places, codecs))
        ]
        #: By fragment, what sums parameters at the end of eager workers.
        self._last_sums = [it.sum for it in self._fragments]
        if codecs and self._eager is not None:
            self._last_sums = [port.reduction(place, chosen, None) for place in places]
        what = described(period, sizes, eager=self._eager is not None)
        frames = frame_plan(codecs, "a period")
        self.plan = ReducePlan(chosen, why, 1, False, control, frames, what, largest.size)
        #: Fragments in flight, the one that was sent first at the front.
        self._under_way: deque[Fragment] = deque()
        #: Fragments sent so far; the next one is this, modulo their number.
        self._round = 0
        #: Steps of the present period, and the progress of the last one.
        self._of_period = 0
        self._progress = 0.0
        #: Seconds of waiting for fragments that arrived since the last step.
        self._waited = 0.0
        for it in codecs:
            it.counts = self.counts
        port.waiting_for = lambda: "its neighbours in an all-reduce"

    @property
    def at_cut(self) -> bool:
        """Whether nothing is in flight on this worker, hence on none, as all send in step."""
        return not self._under_way

    def begin(self, step: Step) -> None:
        """Note when a step begins."""
        self._since = self._port.now() - step.computed

    async def step(self, step: Step) -> int:
        """Take a local step, and the fragments that are due; send those that are."""
        await self._take(step)
        self._progress = step.progress
        for fragment in self._fragments:
            fragment.steps += 1
            fragment.samples += step.samples
        if self._under_way:
            self._poll()
        if self._period.is_early(step.progress):
            for _ in self._fragments:
                await self._send(self._round)
            await self._arrive_all()
        else:
            await self._late_step()
        self._count()
        return step.clock + 1

    async def _late_step(self) -> None:
        """Take and send what is due after a step of a period of H."""
        period = self._period
        self._of_period += 1
        while self._under_way and self._is_due(self._under_way[0]):
            await self._arrive()
        if period.due(self._of_period) is not None:
            await self._send(self._round)
            if not period.delay:
                await self._arrive_all()
        if self._of_period == period.local_steps:
            self._of_period = 0

    def _is_due(self, fragment: Fragment) -> bool:
        return self._eager is None and fragment.steps >= self._period.delay

    async def leave(self, clock: int) -> None:
        """Send what has been trained since it was sent, then take part until nobody trains."""
        await self._arrive_all()
        for _ in self._fragments:
            if self._next.steps:
                await self._send(self._round)
        await self._arrive_all()
        if self._events is not None:
            self._events.left(self._port.now(), self._round)
        done, training = self._round, self._workers > 1
        while training:
            fragment = self._next
            await self._send(done, present=False)
            await self._arrive_all()
            training = fragment.control.present > 0
        while self._under_way:
            await self._arrive()
        if self._eager is not None and self._workers > 1:
            await self._settle(self._eager, done)
        self._count()

    @property
    def _next(self) -> Fragment:
        """The fragment that is sent next."""
        return self._fragments[self._round % len(self._fragments)]

    def _count(self) -> None:
        """Count what was waited for in this step: what a fragment is sent with may be summed."""
        self.counts.waited(reduce=self._waited)
        self._waited = 0.0

    def weight(self, samples: int) -> float:
        """Return the weight of this rank's ``samples``: a single worker's always weigh 1."""
        return float(samples > 0) if self._workers == 1 else samples / self._full

    async def _send(self, clock: int, *, present: bool = True) -> None:
        """Begin the sum of the next fragment.

        Never waits while this worker has samples. Without any it has to ask first whether others
        have: where nobody has, nothing is summed.
        """
        fragment = self._next
        if fragment.under_way:  # eager: what it brings goes into the step that it is sent with
            await self._arrive()
        now = self._port.now()
        weight, progress = self.weight(fragment.samples), self._progress if present else 0.0
        self._note_sent(fragment, now, clock, weight, progress, present)
        fragment.send(self._round, clock, weight, present=present, progress=progress)
        self._under_way.append(fragment)
        self._round += 1
        # By a codec, after those that were sent before.
        begin = self._poll if self._codecs else fragment.poll
        begin()
        total = weight
        if not weight:
            total = await self._known(fragment)
            fragment.waited = self._port.now() - now
        if total:
            self._rule.bring(fragment.blocks, weight)
            fragment.brought = True
            begin()

    def _poll(self) -> None:
        """Begin the sums that can begin, in the order of sending, and progress all others."""
        for fragment in self._under_way:
            if not fragment.poll():
                break

    async def _known(self, sent: Fragment) -> float:
        """Wait for the control values of a fragment in flight; return the total weight."""
        for fragment in self._under_way:
            total = await fragment.known()
            if fragment is sent:
                return total
        raise AssertionError("it is in flight")

    async def _arrive_all(self) -> None:
        """Take everything that is in flight; of eager steps, leave the newest of each fragment."""
        if self._eager is None:
            while self._under_way:
                await self._arrive()

    async def _arrive(self) -> None:
        """Wait for the fragment that was sent first, and take it."""
        fragment = self._under_way.popleft()
        began, control = self._port.now(), fragment.control
        total = await fragment.known()
        if self._codecs:
            self._poll()  # what waited for it to begin
        await fragment.finish()
        if total:
            if self._eager is None:
                self._rule.updater.begin(control.progress / control.present)
            scale = 1.0 if self._codecs else 1.0 / total
            self._rule.take(fragment.blocks, scale, newer=fragment.steps > 0)
            self.updates += 1
        now = self._port.now()
        fragment.waited += now - began
        self._waited += fragment.waited
        rate = self._rule.updater.lr if total else 0.0
        self._note_arrived(fragment, now, total, rate, control.present > 0)

    async def _settle(self, rule: EagerSteps, clock: int) -> None:
        """End with the mean of all workers' parameters, which differ until then."""
        for fragment in self._fragments:
            self._note_sent(fragment, self._port.now(), clock, 1.0, 0.0, False)
            rule.settle(fragment.blocks)
            fragment.clock = clock
            self._last_sums[fragment.number].begin()
        for fragment in self._fragments:
            began = self._port.now()
            await self._last_sums[fragment.number].finish()
            rule.take_settled(fragment.blocks)
            self.updates += 1
            now = self._port.now()
            fragment.waited, fragment.steps = now - began, 0
            self._waited += fragment.waited
            self._note_arrived(fragment, now, float(self._workers), 1.0, False)

    def _note_sent(
        self,
        fragment: Fragment,
        now: float,
        clock: int,
        weight: float,
        progress: float,
        present: bool,
    ) -> None:
        events = self._events
        if events is not None:
            events.note((
                events.reduces, now, clock, self.updates, fragment.samples, progress, weight,
                present, fragment.number,
            ))  # fmt: skip

    def _note_arrived(
        self, fragment: Fragment, now: float, total: float, rate: float, training: bool
    ) -> None:
        events = self._events
        if events is None:
            return
        if len(events.noted) >= QUEUED:
            events.drain()
        events.note((
            events.reduced, now, fragment.clock, self.updates, total, rate, fragment.waited,
            training, fragment.number, fragment.steps,
        ))  # fmt: skip


def described(period: FragmentPeriod, sizes: Sequence[int], *, eager: bool) -> str:
    """Return what is averaged when, for the first lines of a run.

    >>> described(FragmentPeriod(8, 2, delay=3), [256, 64], eager=False)
    'averages: 2 fragments, each every 8 steps, 1.25 KiB in all, 1 KiB at once; taken 3 steps later'
    """
    whole, most = size_text(4 * sum(sizes)), size_text(4 * max(sizes))
    parts = f"averages: {period.fragments} fragments, each " if len(sizes) > 1 else "averages: "
    text = f"{parts}every {plural(period.local_steps, 'step')}, {whole} in all"
    if len(sizes) > 1:
        text += f", {most} at once"
    if eager:
        return f"{text}; a worker takes its own part at once, the others' a period later"
    return text + (f"; taken {plural(period.delay, 'step')} later" if period.delay else "")
