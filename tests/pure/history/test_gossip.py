"""What a check of averages among neighbours knows by itself, and that each broken rule goes red."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.errors import ConfigError
from psrt.history import History
from psrt.history.check import check
from psrt.history.check.mixing import mixing_of
from psrt.job.gossip import topology_for
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies.choco import Choco
from psrt.runtime.strategies.gossip import Gossip
from psrt.runtime.strategies.neighbours import Neighbours
from psrt.runtime.strategies.pair_gossip import PairGossip
from psrt.runtime.strategies.push_sum import PushSum
from psrt.runtime.strategies.tracking import Tracking
from psrt.topology import GRAPHS, topology_of
from psrt.topology.graph import two_colours
from psrt.topology.part import Part
from support.cases import each
from support.histories import header_of, recorded
from support.recording import Ledger

pytestmark = pytest.mark.slow

CTA, ATC = "combine-then-adapt", "adapt-then-combine"
EVEN, UNEVEN = (4, 4, 4, 4, 4), (5, 2, 4, 1, 5)
LONG = (12, 12, 12, 12, 12, 12)


# --- graphs and weights -------------------------------------------------------------------------


def known(name, size, *, push_sum=False, edges="", hosts=()):
    """Return the matrices that a check makes of a header."""
    config = TrainConfig(mode="gossip", topology=name, push_sum=push_sum)
    places = tuple(host for host, ranks in enumerate(hosts) for _ in range(ranks))
    header = header_of(config, size, 0, edges=edges, hosts=places)
    return mixing_of(replace(header, config=header.config | {"by_host": bool(hosts)})).matrices


@each(("name", "push_sum"), itertools.product([*GRAPHS, "random-regular:4"], [False, True]))
def test_matrices_are_those_of_the_topology(name, push_sum):
    for size in range(1, 18):
        try:
            topology = topology_of(name, size, push_sum=push_sum, seed=3)
        except ConfigError:
            continue
        matrices = known(name, size, push_sum=push_sum, edges=topology.edges)
        assert np.array(matrices) == pytest.approx(np.array(topology.matrices), abs=1e-12)


@pytest.mark.parametrize(
    ("text", "push_sum"),
    [
        ("0 1\n1 2 # as a chain\n\n2 3", False),
        ("0 > 1\n1>2\n2 > 3\n3 > 0", False),
        ("0 > 1\n1>2\n2 > 3\n3 > 0\n0 > 2", True),
        ("0 1 0.25\n1 2 0.5\n2 3 0.125", False),
        ("0 > 1 0.25\n1 > 2 0.5\n2 > 3 0.75\n3 > 0 0.125\n1 > 0 0.25", True),
    ],
)
def test_matrices_are_those_of_a_file(tmp_path, text, push_sum):
    path = tmp_path / "edges.txt"
    path.write_text(text)
    topology = topology_of(str(path), 4, push_sum=push_sum)
    matrices = known(str(path), 4, push_sum=push_sum, edges=topology.edges)
    assert np.array(matrices) == pytest.approx(np.array(topology.matrices), abs=1e-12)


@each(("name", "hosts"), itertools.product(["ring", "star", "full"], [(2, 2, 2), (1, 3, 2), (3,)]))
def test_matrices_are_those_of_hosts(name, hosts):
    host = [i for i, ranks in enumerate(hosts) for _ in range(ranks)]
    topology = topology_of(name, sum(hosts), hosts=host)
    matrices = known(name, sum(hosts), hosts=hosts)
    assert np.array(matrices) == pytest.approx(np.array(topology.matrices), abs=1e-12)


@pytest.mark.parametrize("edges", ["0 9", "0 -1", "0 1 x", "0", "1 2 3 4"])
def test_a_header_with_edges_that_are_none_is_refused(edges):
    with pytest.raises(ConfigError, match="edges that are none"):
        known("mine.txt", 3, edges=edges)


# --- mutants ------------------------------------------------------------------------------------


def run(steps=EVEN, *, seed=0, crashes=(), **knobs) -> History:
    base: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "epochs": 1, "batch_size": 1}
    config = TrainConfig(mode="gossip", **(base | knobs))
    books = Ledger(steps, 1, empty=[(0, 1)])
    return recorded(config, books, workers=len(steps), seed=seed, crashes=crashes).history


class Wrong:
    """Replaces methods of what takes part in a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def replace(self, owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
        self._patch.setattr(owner, name, wrap(getattr(owner, name)))


def weighs_a_sender_more(wrong):
    wrong.replace(Part, "weight", lambda weight: lambda self, j, at: weight(self, j, at) * 1.01)


def weighs_by_the_column(wrong):
    """Takes what it gives for what it gets."""

    def weight(_):
        return lambda self, j, at: float(self.topology.matrices[0][j, self.rank]) or 0.1

    wrong.replace(Part, "weight", weight)


def mixes_by_another_weight(wrong):
    """Says the right weight, and takes another."""
    wrong.replace(
        Gossip, "_note_taken", lambda note: lambda self, it: np.float32(note(self, it) * 1.01)
    )


def takes_a_neighbour_twice(wrong):
    def mix_in(mix):
        def twice(self, arrived):
            mix(self, arrived)
            if self.updates == 2:
                mix(self, arrived)

        return twice

    for owner in (Gossip, PushSum):
        wrong.replace(owner, "_mix_in", mix_in)


def adds_a_neighbour_twice(wrong):
    """Writes it down once."""

    def mix_in(mix):
        def twice(self, arrived):
            mix(self, arrived)
            if self.updates == 2:
                events, self._events = self._events, None
                mix(self, arrived)
                self._events = events

        return twice

    for owner in (Gossip, PushSum):
        wrong.replace(owner, "_mix_in", mix_in)


def leaves_a_neighbour_out(wrong):
    def collect(all_of_them):
        async def others(self, at, take):
            def most(arrived):
                if arrived.worker or at != 1:
                    take(arrived)

            await all_of_them(self, at, most)

        return others

    wrong.replace(Neighbours, "collect", collect)


def takes_the_vector_of_the_round_before(wrong):
    def mix_in(mix):
        def old(self, arrived):
            kept = self.__dict__.setdefault("_kept", {})
            before = kept.get(arrived.worker, arrived.vector)
            kept[arrived.worker] = arrived.vector.copy()
            mix(self, arrived._replace(vector=before))

        return old

    for owner in (Gossip, PushSum):
        wrong.replace(owner, "_mix_in", mix_in)


def adds_the_vector_of_the_round_before(wrong):
    """Notes what came."""

    def note(noted):
        def old(self, arrived):
            factor = noted(self, arrived)
            kept = self.__dict__.setdefault("_kept", {})
            now = arrived.vector.copy()
            arrived.vector[:] = kept.get(arrived.worker, now)
            kept[arrived.worker] = now
            return factor

        return old

    wrong.replace(Gossip, "_note_taken", note)


def takes_in_order_of_arrival(wrong):
    def collect(_):
        async def as_they_come(self, at, take):
            while awaited := [it for it in self.part.senders(at) if (at, it) not in self._done]:
                here = [it for it in awaited if (at, it) in self._kept]
                if here:
                    self._done.add((at, here[-1]))
                    take(self._kept.pop((at, here[-1])))
                else:
                    await self._receive(at, awaited)

        return as_they_come

    wrong._patch.setattr(Neighbours, "_done", set(), raising=False)
    wrong.replace(Neighbours, "collect", collect)

    def init(made):
        def fresh(self, *args, **more):
            made(self, *args, **more)
            self._done = set()

        return fresh

    wrong.replace(Neighbours, "__init__", init)


def mixes_on_another_graph(wrong):
    def topology(made):
        def other(config, workers, **more):
            name = "star" if config.asynchronous else "full"
            return made(replace(config, topology=name), workers, **more)

        return other

    wrong._patch.setattr("psrt.job.setup.topology_for", topology(topology_for))
    wrong._patch.setattr("psrt.job.virtual.topology_for", topology(topology_for), raising=False)


def stays_in_the_first_round_of_the_period(wrong):
    for name in ("senders", "receivers"):
        wrong.replace(Part, name, lambda of: lambda self, at: of(self, 0 * at))
    wrong.replace(Part, "weight", lambda weight: lambda self, j, at: weight(self, j, 0))


def averages_on_one_side_only(wrong):
    def mix_in(mix):
        return lambda self, it: mix(self, it) if self._neighbours.part.rank else None

    for owner in (Gossip, PushSum):
        wrong.replace(owner, "_mix_in", mix_in)


def keeps_nothing_of_the_average(wrong):
    """One side notes what it takes, and goes on with its own."""

    def note_mixed(note):
        def forgetful(self, began):
            if self._neighbours.part.rank == 0:
                np.copyto(self._theta, self._offer)
            return note(self, began)

        return forgetful

    wrong.replace(Gossip, "_note_mixed", note_mixed)


def rounds_to_half_precision(wrong):
    def note_mixed(note):
        def rounded(self, began):
            self._theta[:] = (self._theta / 3).astype(np.float16) * np.float32(3)
            return note(self, began)

        return rounded

    wrong.replace(Gossip, "_note_mixed", note_mixed)


def sends_what_it_does_not_offer(wrong):
    """Writes into what is still on its way."""

    def send(sent):
        def spoiled(self, *args):
            sent(self, *args)
            self._offer[0] += self.updates == 2

        return spoiled

    wrong.replace(Gossip, "_send", send)


def does_not_renormalise(wrong):
    """Who has left is still weighed, by nothing."""

    def note_mixed(note):
        def short(self, began):
            part, at = self._neighbours.part, self.updates
            lost = part.own(at) - float(part.topology.matrices[0][part.rank, part.rank])
            self._theta -= np.float32(lost) * self._offer
            return note(self, began)

        return short

    wrong.replace(Gossip, "_note_mixed", note_mixed)


def keeps_no_share_of_who_left(wrong):
    def own(_):
        return lambda self, at: float(self.topology.matrices[0][self.rank, self.rank])

    wrong.replace(Part, "own", own)


def says_another_end(wrong):
    wrong.replace(
        WorkerEventRecorder,
        "left",
        lambda left: lambda self, now, at, s: left(self, now, at - 1, s),
    )


def skips_a_round(wrong):
    """One worker says that it took part, and mixes nothing."""

    def note_mixed(note):
        def quiet(self, began):
            events = self._events
            if self.updates == 1 and self._neighbours.part.rank == 2:
                self._events = None
            found = note(self, began)
            self._events = events
            return found

        return quiet

    wrong.replace(Gossip, "_note_mixed", note_mixed)


def swaps_the_order(wrong):
    def init(made):
        def swapped(self, *args, adapts_first, **more):
            made(self, *args, adapts_first=not adapts_first, **more)

        return swapped

    wrong.replace(Gossip, "__init__", init)


def mixes_no_weight(wrong):
    def mix_in(mix):
        def alone(self, arrived):
            before = self._sum
            mix(self, arrived)
            self._sum = before

        return alone

    wrong.replace(PushSum, "_mix_in", mix_in)


def leaves_weights_at_one(wrong):
    def note_mixed(note):
        def one(self, began):
            self._weight = 1.0
            return note(self, began)

        return one

    wrong.replace(PushSum, "_note_mixed", note_mixed)


def does_not_divide(wrong):
    def note_mixed(note):
        def whole(self, began):
            np.copyto(self._divided, self._theta)
            return note(self, began)

        return whole

    wrong.replace(PushSum, "_note_mixed", note_mixed)


def divides_by_the_old_weight(wrong):
    def note_mixed(note):
        def old(self, began):
            before = self.__dict__.get("_before", 1.0)
            self._before = self._weight
            self._divided[:] = self._theta / np.float32(before)
            return note(self, began)

        return old

    wrong.replace(PushSum, "_note_mixed", note_mixed)


def sends_the_weight_of_the_round_before(wrong):
    def send(sent):
        def old(self, now, weight=1.0, waited=0.0):
            before = self.__dict__.get("_sent", 1.0)
            self._sent = weight
            sent(self, now, before, waited)

        return old

    wrong.replace(PushSum, "_send", send)


def shares_what_is_divided(wrong):
    """Sends x/w in place of x."""

    def mix_in(mix):
        def divided(self, arrived):
            mix(self, arrived._replace(vector=arrived.vector / np.float32(arrived.weight)))

        return divided

    wrong.replace(PushSum, "_mix_in", mix_in)


def says_nothing_of_its_waiting(wrong):
    wrong.replace(Gossip, "_note_mixed", lambda note: lambda self, began: note(self, began - 1e-3))


def forgets_the_gradient_before(wrong):
    def track(tracked):
        def anew(self):
            self._own.fill(0)
            tracked(self)

        return anew

    wrong.replace(Tracking, "_track", track)


def keeps_the_first_gradient(wrong):
    def track(tracked):
        def first(self):
            tracked(self)
            kept = self.__dict__.setdefault("_first", self._own.copy())
            np.copyto(self._own, kept)

        return first

    wrong.replace(Tracking, "_track", track)


def tracks_by_what_it_has_alone(wrong):
    def track(tracked):
        def alone(self):
            tracked(self)
            np.copyto(self._tracked, self._own)

        return alone

    wrong.replace(Tracking, "_track", track)


def mixes_parameters_only(wrong):
    def mix_in(mix):
        def half(self, arrived):
            tracked = self._tracked.copy()
            mix(self, arrived)
            np.copyto(self._tracked, tracked)

        return half

    wrong.replace(Gossip, "_mix_in", mix_in)


def mixes_gradients_by_another_weight(wrong):
    def mix_in(mix):
        def more(self, arrived):
            before = self._tracked.copy()
            mix(self, arrived)
            self._tracked[:] = before + np.float32(1.01) * (self._tracked - before)

        return more

    wrong.replace(Gossip, "_mix_in", mix_in)


def sends_old_gradients(wrong):
    def send(sent):
        def old(self, *args):
            now = self._tracked.copy()
            np.copyto(self._tracked, self.__dict__.get("_sent", now))
            self._sent = now
            sent(self, *args)

        return old

    wrong.replace(Gossip, "_send", send)


# With a codec.


def takes_up(wrong, changed):
    """Changes which frames a worker adds to which copies, as ``changed(strategy, known)`` says."""

    def take_up(taken):
        def other(self, frame, known):
            if changed(self, known):
                taken(self, frame, known)

        return other

    wrong.replace(Choco, "_take_up", take_up)


def misses_a_frame_of_a_neighbour(wrong):
    takes_up(wrong, lambda self, known: known is self._offer or self.updates != 1)


def takes_up_nothing_of_its_own(wrong):
    takes_up(wrong, lambda self, known: known is not self._offer or self.updates != 1)


def thinks_that_nothing_is_lost(wrong):
    def encoded(made):
        def whole(self):
            frame = made(self)
            np.copyto(self._offer, self._theta)
            return frame

        return whole

    wrong.replace(Choco, "_encoded", encoded)


def moves_by_another_rate(wrong):
    def init(made):
        def faster(self, *args, rate, **more):
            made(self, *args, rate=1.1 * rate, **more)

        return faster

    wrong.replace(Choco, "__init__", init)


def moves_by_all_of_the_difference(wrong):
    wrong.replace(Choco, "_note_taken", lambda note: lambda self, it: note(self, it) / self._rate)


def mixes_what_it_has_itself(wrong):
    """Takes θ_i in place of x̂_i, which neighbours do not know."""

    def mix_in(mix):
        def own(self, arrived):
            kept = self._offer.copy()
            np.copyto(self._offer, self._theta)
            mix(self, arrived)
            np.copyto(self._offer, kept)

        return own

    wrong.replace(Choco, "_mix_in", mix_in)


# Without rounds.


def averaged(wrong, changed):
    """Changes what an average is made of, as ``changed(strategy, offer, mine, tau)`` says."""

    def average(averages):
        def other(self, offer, mine, tau, clock, waited):
            averages(self, offer, *changed(self, offer, mine, tau), clock, waited)

        return other

    wrong.replace(PairGossip, "_average", average)


def moves_who_asks_only(wrong):
    def changed(self, offer, mine, tau):
        return (mine if self._pairs.asks else self._port.payload(0, offer.neighbour)), tau

    averaged(wrong, changed)


def moves_who_answers_only(wrong):
    def changed(self, offer, mine, tau):
        return (self._port.payload(0, offer.neighbour) if self._pairs.asks else mine), tau

    averaged(wrong, changed)


def moves_by_what_it_has_now(wrong):
    """Who asked forgets what it had offered."""
    averaged(wrong, lambda self, offer, mine, tau: (self._theta.copy(), tau))


def moves_all_the_way(wrong):
    wrong._patch.setattr("psrt.runtime.strategies.pair_gossip._HALF", np.float32(1))


def moves_further_than_it_says(wrong):
    def changed(self, offer, mine, tau):
        theirs = self._port.payload(0, offer.neighbour)
        return (mine - np.float32(0.01) * (theirs - mine)), tau

    averaged(wrong, changed)


def is_never_stale(wrong):
    averaged(wrong, lambda self, offer, mine, tau: (mine, 0))


def counts_a_step_too_many(wrong):
    averaged(wrong, lambda self, offer, mine, tau: (mine, tau + self._pairs.asks))


def takes_an_answer_of_before(wrong):
    def changed(self, offer, mine, tau):
        kept = self.__dict__.setdefault("_came", {})
        theirs = self._port.payload(0, offer.neighbour)
        now = theirs.copy()
        theirs[:] = kept.get(offer.neighbour, now)
        kept[offer.neighbour] = now
        return mine, tau

    averaged(wrong, changed)


def averages_twice(wrong):
    def average(averages):
        def twice(self, *args):
            averages(self, *args)
            if self.updates == 2:
                averages(self, *args)

        return twice

    wrong.replace(PairGossip, "_average", average)


def forgets_an_answer(wrong):
    def average(averages):
        def forgetful(self, offer, *args):
            if not (self._pairs.asks and offer.number == 1):
                averages(self, offer, *args)

        return forgetful

    wrong.replace(PairGossip, "_average", average)


def answers_with_what_it_had_before(wrong):
    def send(sent):
        def old(self, *args, **more):
            now = self._theta.copy()
            self._theta[:] = self.__dict__.get("_before", now)
            found = sent(self, *args, **more)
            self._before = now
            self._theta[:] = now
            return found

        return old

    wrong.replace(PairGossip, "_send", send)


def has_its_colours_swapped(wrong):
    wrong._patch.setattr(
        "psrt.topology.registry.two_colours",
        lambda graph: tuple(1 - it for it in two_colours(graph)),
    )


def measures_half_the_gap(wrong):
    def mixed(noted):
        def half(self, now, clock, content, waited, gap, **more):
            gap = gap / 2 if self._worker == 0 else gap
            noted(self, now, clock, content, waited, gap, **more)

        return half

    wrong.replace(WorkerEventRecorder, "mixed", mixed)


class Mutant(NamedTuple):
    breaks: Callable[[Wrong], None]
    #: The rules by which it is found.
    rules: str
    knobs: dict[str, Any]
    steps: tuple[int, ...] = EVEN


RING: dict[str, Any] = {"topology": "ring"}
LATER: dict[str, Any] = {"topology": "ring", "order": ATC}
ONE_PEER: dict[str, Any] = {"topology": "one-peer-exponential", "order": ATC}
SUMS: dict[str, Any] = {"topology": "exponential", "push_sum": True, "order": ATC}
STAR: dict[str, Any] = {"topology": "star", "push_sum": True, "order": ATC}
TRACKING = tuple(it | {"gradient_tracking": True} for it in (RING, LATER, ONE_PEER))
CODED = tuple(
    it | {"codec": "int8", "codec_everywhere": True, "consensus_rate": 0.5} for it in (RING, LATER)
)
PAIRS = ({"topology": "star", "asynchronous": True}, {"topology": "ring", "asynchronous": True})

MUTANTS = [
    *(Mutant(weighs_a_sender_more, "neighbours", it) for it in (RING, LATER, SUMS)),
    Mutant(weighs_by_the_column, "neighbours", STAR),
    *(Mutant(mixes_by_another_weight, "conservation", it) for it in (RING, LATER, SUMS)),
    *(Mutant(takes_a_neighbour_twice, "summation order", it) for it in (RING, ONE_PEER, SUMS)),
    *(Mutant(adds_a_neighbour_twice, "conservation", it) for it in (RING, ONE_PEER, SUMS)),
    *(Mutant(leaves_a_neighbour_out, "neighbours", it) for it in (RING, ONE_PEER, SUMS)),
    *(Mutant(takes_the_vector_of_the_round_before, "offers", it) for it in (RING, LATER, SUMS)),
    *(Mutant(adds_the_vector_of_the_round_before, "conservation", it) for it in (RING, SUMS)),
    Mutant(takes_in_order_of_arrival, "summation order", {"topology": "full"}),
    *(Mutant(mixes_on_another_graph, "neighbours", it) for it in (RING, SUMS)),
    Mutant(stays_in_the_first_round_of_the_period, "neighbours", ONE_PEER),
    *(Mutant(averages_on_one_side_only, "neighbours", it) for it in (RING, SUMS)),
    *(Mutant(keeps_nothing_of_the_average, "conservation", it) for it in (RING, LATER)),
    *(Mutant(rounds_to_half_precision, "conservation", it) for it in (RING, LATER)),
    *(Mutant(sends_what_it_does_not_offer, "offers|conservation", it) for it in (RING, LATER)),
    *(Mutant(does_not_renormalise, "conservation", it, UNEVEN) for it in (RING, LATER)),
    Mutant(keeps_no_share_of_who_left, "conservation", SUMS, UNEVEN),
    *(Mutant(says_another_end, "membership", it, UNEVEN) for it in (RING, SUMS)),
    *(Mutant(skips_a_round, "turns", it) for it in (RING, LATER)),
    *(Mutant(swaps_the_order, "turns", it) for it in (RING, LATER)),
    *(Mutant(says_nothing_of_its_waiting, "durations", it) for it in (RING, LATER)),
    *(Mutant(mixes_no_weight, "conservation", it) for it in (SUMS, STAR)),
    *(Mutant(leaves_weights_at_one, "conservation", it) for it in (STAR,)),
    *(Mutant(does_not_divide, "conservation", it) for it in (STAR,)),
    *(Mutant(divides_by_the_old_weight, "conservation", it) for it in (STAR,)),
    *(Mutant(sends_the_weight_of_the_round_before, "conservation", it) for it in (STAR,)),
    *(Mutant(shares_what_is_divided, "offers", it) for it in (STAR,)),
    *(Mutant(forgets_the_gradient_before, "tracking", it) for it in TRACKING),
    *(Mutant(keeps_the_first_gradient, "tracking", it) for it in TRACKING),
    *(Mutant(tracks_by_what_it_has_alone, "tracking", it) for it in TRACKING),
    *(Mutant(mixes_parameters_only, "conservation", it) for it in TRACKING),
    *(Mutant(mixes_gradients_by_another_weight, "conservation", it) for it in TRACKING),
    *(Mutant(sends_old_gradients, "tracking|offers", it) for it in TRACKING),
    *(Mutant(takes_the_vector_of_the_round_before, "offers", it) for it in TRACKING),
    *(Mutant(misses_a_frame_of_a_neighbour, "offers", it) for it in CODED),
    *(Mutant(takes_up_nothing_of_its_own, "offers", it) for it in CODED),
    *(Mutant(thinks_that_nothing_is_lost, "offers", it) for it in CODED),
    *(Mutant(moves_by_another_rate, "conservation", it) for it in CODED),
    *(Mutant(moves_by_all_of_the_difference, "conservation", it) for it in CODED),
    *(Mutant(mixes_what_it_has_itself, "conservation", it) for it in CODED),
    *(Mutant(weighs_a_sender_more, "neighbours", it) for it in CODED),
    *(Mutant(leaves_a_neighbour_out, "neighbours", it) for it in CODED),
    *(Mutant(moves_who_asks_only, "conservation|gaps", it, LONG) for it in PAIRS),
    *(Mutant(moves_who_answers_only, "conservation|gaps", it, LONG) for it in PAIRS),
    *(Mutant(moves_by_what_it_has_now, "conservation|gaps", it, LONG) for it in PAIRS),
    *(Mutant(moves_all_the_way, "neighbours", it, LONG) for it in PAIRS),
    *(Mutant(moves_further_than_it_says, "conservation", it, LONG) for it in PAIRS),
    *(Mutant(is_never_stale, "staleness", it, LONG) for it in PAIRS),
    *(Mutant(counts_a_step_too_many, "staleness", it, LONG) for it in PAIRS),
    *(Mutant(takes_an_answer_of_before, "offers", it, LONG) for it in PAIRS),
    *(Mutant(averages_twice, "turns|offers", it, LONG) for it in PAIRS),
    *(Mutant(forgets_an_answer, "offers", it, LONG) for it in PAIRS),
    *(Mutant(answers_with_what_it_had_before, "conservation|offers", it, LONG) for it in PAIRS),
    *(Mutant(has_its_colours_swapped, "neighbours", it, LONG) for it in PAIRS),
    *(Mutant(mixes_on_another_graph, "neighbours", it, LONG) for it in PAIRS[1:]),
    *(Mutant(measures_half_the_gap, "gaps", it, LONG) for it in PAIRS),
]


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=lambda it: f"{it.breaks.__name__}-{it.knobs['topology']}"
)
def test_a_broken_average_goes_red(monkeypatch, mutant):
    mutant.breaks(Wrong(monkeypatch))
    outcome = check(run(mutant.steps, **mutant.knobs))
    assert not outcome.ok, "nothing was found"
    assert outcome.violation.rule in mutant.rules.split("|"), "\n".join(outcome.lines())


@each(
    ("knobs", "steps"),
    itertools.product(
        (RING, LATER, ONE_PEER, SUMS, STAR, *TRACKING, *CODED, PAIRS[0]), (EVEN, UNEVEN)
    ),
)
def test_a_sound_one_in_the_same_place_stays_green(knobs, steps):
    for crashes in ((), ((1, 0.003),)):
        outcome = check(run(steps, crashes=crashes, **knobs))
        assert outcome.ok, "\n".join(outcome.lines())


def test_one_that_is_asked_and_dies_before_it_says_anything():
    """What it was offered goes to a worker that has no events."""
    for steps in ((4, 4), (4, 4, 4)):
        dead = [(worker, 1e-9) for worker in range(1, len(steps))]
        outcome = check(run(steps, crashes=dead, topology="star", asynchronous=True))
        assert outcome.ok, outcome.lines()
