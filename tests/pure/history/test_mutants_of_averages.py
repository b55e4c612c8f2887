"""What a check of averages among neighbours knows by itself, and that each broken one goes red."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.config.modes import Gossip as GossipRow
from psrt.core.errors import ConfigError
from psrt.history import History
from psrt.history.check import check
from psrt.history.check.averages import mixing_of
from psrt.job import plan
from psrt.runtime.event_recorder import WorkerEventRecorder
from psrt.runtime.strategies import pair_gossip
from psrt.runtime.strategies.by_host import Leader
from psrt.runtime.strategies.choco import Choco
from psrt.runtime.strategies.gossip import Gossip
from psrt.runtime.strategies.neighbours import Neighbours
from psrt.runtime.strategies.pair_gossip import PairGossip
from psrt.runtime.strategies.push_sum import PushSum
from psrt.runtime.strategies.tracking import Tracking
from psrt.topology import registry, topology_of
from psrt.topology.host_part import HostPart
from psrt.topology.part import Part
from support.cases import each
from support.histories import header_of, recorded
from support.knobs import together
from support.mutants import Mutants, before
from support.recording import Ledger

Knobs = dict[str, Any]

CTA, ATC = "combine-then-adapt", "adapt-then-combine"
RING: Knobs = {"topology": "ring"}
LATER: Knobs = {"topology": "ring", "order": ATC}
ONE_PEER: Knobs = {"topology": "one-peer-exponential", "order": ATC}
SUMS: Knobs = {"topology": "exponential", "variant": "push-sum", "order": ATC}
STAR: Knobs = {"topology": "star", "variant": "push-sum", "order": ATC}
TRACKING = [it | {"variant": "gradient-tracking"} for it in (RING, LATER, ONE_PEER)]
CODED = [
    it | {"codec": "int8", "codec_everywhere": True, "consensus_rate": 0.5} for it in (RING, LATER)
]
PAIRS: list[Knobs] = [
    {"topology": "star", "variant": "pairs"}, {"topology": "ring", "variant": "pairs"}
]  # fmt: skip
BY_HOST: list[Knobs] = [{"variant": "by-host", "order": it} for it in (CTA, ATC)]
#: Workers of each host.
HOSTS = (3, 1, 2, 2)
#: Steps of each worker: alike, or with some that leave before others; last, before their leaders.
EVEN, UNEVEN, LATE = (4, 4, 4, 4, 4), (5, 2, 4, 1, 5), (1, 1, 1, 2, 4, 4, 3, 4)
UNEVEN_HOSTS = (2, 5, 4, 3, 5, 2, 1, 3)


# --- graphs and weights -------------------------------------------------------------------------


def agrees(topology, name, size, *, push_sum=False, hosts=()):
    """Hold the matrices that a check makes of a header against a topology's."""
    variant = "push-sum" if push_sum else "by-host" if hosts else "plain"
    config = TrainConfig(mode=GossipRow(topology=name, variant=variant))
    places = tuple(host for host, ranks in enumerate(hosts) for _ in range(ranks))
    header = header_of(config, size, 0, edges=topology.edges, hosts=places)
    assert np.array(mixing_of(header).matrices) == pytest.approx(
        np.array(topology.matrices), abs=1e-12
    )


@each("push_sum", [False, True])
def test_a_graph_that_was_drawn_is_in_the_header(push_sum):
    agrees(topology_of("random-regular:4", 9, push_sum=push_sum, seed=3), "random-regular:4", 9,
           push_sum=push_sum)  # fmt: skip


@each(("text", "push_sum"), [
    ("0 1\n1 2 # as a chain\n\n2 3", False),
    ("0 > 1\n1>2\n2 > 3\n3 > 0\n0 > 2", True),
    ("0 1 0.25\n1 2 0.5\n2 3 0.125", False),
    ("0 > 1 0.25\n1 > 2 0.5\n2 > 3 0.75\n3 > 0 0.125\n1 > 0 0.25", True),
])  # fmt: skip
def test_matrices_are_those_of_a_file(tmp_path, text, push_sum):
    path = tmp_path / "edges.txt"
    path.write_text(text)
    agrees(topology_of(str(path), 4, push_sum=push_sum), str(path), 4, push_sum=push_sum)


@each(("name", "hosts"), itertools.product(["ring", "star", "full"], [(2, 2, 2), (1, 3, 2), (3,)]))
def test_matrices_are_those_of_hosts(name, hosts):
    host = [i for i, ranks in enumerate(hosts) for _ in range(ranks)]
    agrees(topology_of(name, sum(hosts), hosts=host), name, sum(hosts), hosts=hosts)


@each("edges", ["0 9", "0 -1", "0 1 x", "0", "1 2 3 4"])
def test_a_header_with_edges_that_are_none_is_refused(edges):
    config = TrainConfig(mode="gossip:topology=mine.txt")
    with pytest.raises(ConfigError, match="the header's edges: line 1: "):
        mixing_of(header_of(config, 3, 0, edges=edges))


# --- sound runs ---------------------------------------------------------------------------------


def run(steps=None, *, crashes=(), hosts=HOSTS, **knobs) -> History:
    base: Knobs = {"optimizer": "sgd", "lr": 0.5, "epochs": 1, "batch_size": 1}
    steps = steps or (
        (4,) * 8 if knobs.get("variant") == "by-host" else (12,) * 6 if knobs in PAIRS else EVEN
    )
    books = Ledger(steps, 1, empty=[(0, 1)])
    return recorded(
        TrainConfig(**together(base | {"mode": "gossip"} | knobs)), books,
        workers=len(steps), crashes=crashes,
        hosts=hosts if knobs.get("variant") == "by-host" else (),
    ).history  # fmt: skip


#: Some leave before others, or die, or never say anything to those who have asked them.
SOUND = [
    *((steps, [(1, 0.003)], knobs) for steps, knobs in (
        (UNEVEN, RING), (EVEN, LATER), (UNEVEN, ONE_PEER), (UNEVEN, SUMS), (EVEN, STAR),
        (UNEVEN, TRACKING[0]), (EVEN, TRACKING[2]), (UNEVEN, CODED[0]), (EVEN, CODED[1]),
        (UNEVEN, PAIRS[0]), (LATE, BY_HOST[0]), (UNEVEN_HOSTS, BY_HOST[1]),
    )),
    (UNEVEN_HOSTS, [(3, 0.002), (7, 0.001)], BY_HOST[0] | {"topology": "star"}),
    (LATE, [(0, 0.0), (1, 0.0)], BY_HOST[1] | {"topology": "star"}),
    (UNEVEN_HOSTS, [(0, 0.0), (1, 0.0)], BY_HOST[0]),
    (UNEVEN_HOSTS, [], BY_HOST[0] | {"hosts": (8,)}),
    (UNEVEN_HOSTS, [], BY_HOST[0] | {"hosts": (1,) * 8}),
    # Edges that go one way.
    (UNEVEN_HOSTS, [], BY_HOST[0] | {"hosts": (2,) * 4, "topology": "one-peer-exponential"}),
    ((4, 4, 4), [(1, 1e-9), (2, 1e-9)], PAIRS[0]),
]  # fmt: skip


@each(("steps", "crashes", "knobs"), SOUND)
def test_a_sound_one_stays_green(steps, crashes, knobs):
    outcome = check(run(steps, crashes=crashes, **knobs))
    assert outcome.ok, "\n".join(outcome.lines())


# --- mutants ------------------------------------------------------------------------------------

#: Of what takes part in a run, with some knobs; more says the ``steps`` of each worker.
broken = Mutants()

MIX_IN = [(Gossip, "_mix_in"), (PushSum, "_mix_in")]
NOTE_MIXED, AVERAGE = (Gossip, "_note_mixed"), (PairGossip, "_average")

# fmt: off
broken.add("weighs a sender more", (Part, "weight"), [RING, CODED[1]], "neighbours",
           lambda weight, self, j, at: weight(self, j, at) * 1.01)
broken.add("stays in the first round of the period",
           [(Part, it) for it in ("senders", "receivers", "weight")], ONE_PEER, "neighbours",
           lambda method, self, *args: method(self, *args[:-1], 0))
broken.add("leaves a neighbour out", (Neighbours, "collect"), [ONE_PEER, SUMS, CODED[0]],
           "neighbours", lambda collect, self, at, take:
           collect(self, at, lambda it: take(it) if it.worker or at != 1 else None))
broken.add("takes the vector of the round before", MIX_IN, [RING, LATER, SUMS, TRACKING[2]],
           "offers", lambda mix, self, it:
           mix(self, it._replace(vector=before(self, it.worker, it.vector.copy()))))
broken.add("says another end", (WorkerEventRecorder, "left"), [RING, SUMS], "membership",
           lambda left, self, now, at, seconds: left(self, now, at - 1, seconds), steps=UNEVEN)
broken.add("swaps the order", (Gossip, "__init__"), [RING, LATER], "turns",
           lambda init, self, *args, adapts_first, **more:
           init(self, *args, adapts_first=not adapts_first, **more))

# Of push-sum.
broken.add("divides by the weight before", (PushSum, "_divide"), STAR, "conservation",
           lambda _, self: np.divide(self._theta, np.float32(before(self, "w", self._weight)),
                                     out=self._divided))
broken.add("sends the weight of the round before", (PushSum, "_send"), STAR, "conservation",
           lambda send, self, now, weight=1.0, waited=0.0:
           send(self, now, before(self, "sent", weight), waited))
broken.add("sends x/w in place of x", (PushSum, "_mix_in"), STAR, "offers",
           lambda mix, self, it: mix(self, it._replace(vector=it.vector / np.float32(it.weight))))

# With a codec.
broken.add("moves by another rate", (Choco, "__init__"), CODED, "conservation",
           lambda init, self, *args, rate, **more: init(self, *args, rate=1.1 * rate, **more))

# Of pairs, without rounds: what one offered, or has answered, is ``mine``.
broken.add("moves by what it has now", AVERAGE, PAIRS, "conservation|gaps",
           lambda average, self, offer, mine, *args:
           average(self, offer, self._theta.copy(), *args))
broken.add("moves further than it says", AVERAGE, PAIRS, "conservation",
           lambda average, self, offer, mine, *args:
           average(self, offer, mine - np.float32(0.01) * (theirs(self, offer) - mine), *args))
broken.add("moves all the way", (pair_gossip, "_HALF"), PAIRS, "neighbours", np.float32(1))
broken.add("counts a step too many", AVERAGE, PAIRS, "staleness",
           lambda average, self, offer, mine, tau, *args:
           average(self, offer, mine, tau + self._pairs.asks, *args))
broken.add("has its colours swapped", (registry, "two_colours"), PAIRS, "neighbours",
           lambda two_colours, graph: tuple(1 - it for it in two_colours(graph)))
broken.add("forgets an answer", AVERAGE, PAIRS, "offers",
           lambda average, self, offer, *args:
           average(self, offer, *args) if offer.number != 1 or not self._pairs.asks else None)

# By host.
broken.add("leaves a member out", (Neighbours, "held"), BY_HOST, "neighbours",
           lambda held, self, at, those:
           held(self, at, [it for it in those if it != 2 or at != 1]))
broken.add("takes members in another order", (Neighbours, "held"), BY_HOST, "summation order",
           lambda held, self, at, those: (came := held(self, at, those)) and came[::-1])
broken.add("takes part after it has left", (Leader, "_pool"), BY_HOST, "neighbours",
           lambda pool, self, at, *own:
           pool(self, at, *(own or [self._theta] * bool(self._part.members(at)))), steps=LATE)
broken.add("weighs hosts by the ranks that they had", (HostPart, "share"), BY_HOST, "neighbours",
           lambda _, self, host, at, *ranks: self.weight(host, at), steps=LATE)
broken.add("takes the mean of the round before", (Leader, "_mix_mean"), BY_HOST, "offers",
           lambda mix, self, at, it:
           mix(self, at, it._replace(vector=before(self, it.worker, it.vector.copy()))))
broken.add("hands back the mean of its own host", (Neighbours, "send_to"), BY_HOST, "offers",
           lambda send_to, self, those, at, region, weight=1.0:
           send_to(self, those, at, at % 2 if region == 2 else region, weight))
broken.add("says nothing of its waiting", (Leader, "_tell"), BY_HOST, "durations",
           lambda _, self: 0.0)
broken.add("averages on other hosts", (plan, "topology_for"), BY_HOST, "turns|neighbours",
           lambda made, config, hosts, *, edges:
           made(config, [0, 0, 1, 1, 2, 2, 3, 3], edges=edges))
# fmt: on


def theirs(self, offer):
    return self._port.payload(0, offer.neighbour)


@broken(MIX_IN, [RING, SUMS], "conservation")
def adds_a_neighbour_twice(mix, self, arrived):
    """Writes it down once."""
    mix(self, arrived)
    if self.updates == 2:
        events, self._events = self._events, None
        mix(self, arrived)
        self._events = events


@broken((Neighbours, "collect"), {"topology": "full"}, "summation order")
async def takes_in_order_of_arrival(_, self, at, take):
    done = self.__dict__.setdefault("_done", set())
    while awaited := [it for it in self.part.senders(at) if (at, it) not in done]:
        here = [it for it in awaited if (at, it) in self._kept]
        if here:
            done.add((at, here[-1]))
            take(self._kept.pop((at, here[-1])))
        else:
            await self._receive(at, awaited)


@broken((plan, "topology_for"), [RING, SUMS, PAIRS[1]], "neighbours")
@broken((plan, "topology_for"), BY_HOST, "neighbours|offers")
def mixes_on_another_graph(made, config, workers, **more):
    name = "full" if config.scheme.variant in ("plain", "push-sum") else "star"
    return made(replace(config, mode=replace(config.scheme, topology=name)), workers, **more)


@broken(NOTE_MIXED, [RING, LATER], "conservation")
def rounds_to_half_precision(note, self, began):
    self._theta[:] = (self._theta / 3).astype(np.float16) * np.float32(3)
    return note(self, began)


@broken(NOTE_MIXED, [RING, LATER], "conservation", steps=UNEVEN)
def does_not_renormalise(note, self, began):
    """Who has left is still weighed, by nothing."""
    part = self._neighbours.part
    lost = part.own(self.updates) - float(part.topology.matrices[0][part.rank, part.rank])
    self._theta -= np.float32(lost) * self._offer
    return note(self, began)


@broken(NOTE_MIXED, [RING, LATER], "turns")
def skips_a_round(note, self, began):
    """One worker does not say that it took part."""
    events = self._events
    if self.updates == 1 and self._neighbours.part.rank == 2:
        self._events = None
    found = note(self, began)
    self._events = events
    return found


@broken((Tracking, "_track"), TRACKING[1:], "tracking")
def forgets_the_gradient_before(track, self):
    self._own.fill(0)
    track(self)


@broken((PushSum, "_note_mixed"), STAR, "conservation")
def does_not_divide(note, self, began):
    np.copyto(self._divided, self._theta)
    return note(self, began)


@broken((Gossip, "_mix_in"), TRACKING[1:], "conservation")
def mixes_gradients_by_another_weight(mix, self, arrived):
    tracked = self._tracked.copy()
    mix(self, arrived)
    self._tracked[:] = tracked + np.float32(1.01) * (self._tracked - tracked)


@broken((Gossip, "_send"), TRACKING, "tracking|offers")
def sends_old_gradients(send, self, *args):
    self._tracked[:] = before(self, "tracked", self._tracked.copy())
    send(self, *args)


@broken(AVERAGE, PAIRS, "offers")
def takes_an_answer_of_before(average, self, offer, *args):
    came = theirs(self, offer)
    came[:] = before(self, offer.neighbour, came.copy())
    average(self, offer, *args)


@broken(AVERAGE, PAIRS, "turns|offers")
def averages_twice(average, self, *args):
    average(self, *args)
    if self.updates == 2:
        average(self, *args)


@broken((PairGossip, "_send"), PAIRS, "conservation|offers")
def answers_with_what_it_had_before(send, self, *args, **more):
    now = self._theta.copy()
    self._theta[:] = before(self, "answer", now)
    found = send(self, *args, **more)
    self._theta[:] = now
    return found


@broken((Leader, "begin"), BY_HOST[0], "turns")
def sends_means_after_the_gradient(begin, self, step):
    """So that they do not travel while it is computed."""
    pool, self._pool = self._pool, lambda *them: False
    begin(self, step)
    self._pool = pool


@each("mutant", broken)
def test_a_broken_average_goes_red(monkeypatch, mutant):
    with monkeypatch.context() as patch:
        mutant.breaks(patch)
        history = run(mutant.more.get("steps"), **mutant.where)
    assert mutant.is_named_by(check(history)), "nothing was found"
