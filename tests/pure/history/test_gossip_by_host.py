"""What a check of gossip by host knows by itself, and that each broken rule goes red."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.history import History, Kind
from psrt.history.check import check
from psrt.job.gossip import topology_for
from psrt.runtime.strategies.by_host import Leader, Member
from psrt.runtime.strategies.neighbours import Neighbours
from psrt.topology.host_part import HostPart
from support.cases import each
from support.histories import recorded
from support.recording import Ledger

pytestmark = pytest.mark.slow

CTA, ATC = {"order": "combine-then-adapt"}, {"order": "adapt-then-combine"}
HOSTS = (3, 1, 2, 2)
EVEN, UNEVEN, LATE = (4,) * 8, (2, 5, 4, 3, 5, 2, 1, 3), (1, 1, 1, 2, 4, 4, 3, 4)


def run(steps=EVEN, *, seed=0, crashes=(), hosts=HOSTS, **knobs) -> History:
    base: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "epochs": 1, "batch_size": 1}
    config = TrainConfig(mode="gossip", by_host=True, **(base | knobs))
    books = Ledger(steps, 1, empty=[(0, 1)])
    return recorded(
        config, books, workers=len(steps), seed=seed, crashes=crashes, hosts=hosts
    ).history


@each(
    ("knobs", "steps", "topology"),
    itertools.product((CTA, ATC), (EVEN, UNEVEN, LATE), ("ring", "star", "full")),
)
def test_a_sound_run_stays_green(knobs, steps, topology):
    deaths = [(), ((1, 0.003),), ((0, 0.003),), ((3, 0.002), (7, 0.001)), ((0, 0.0), (1, 0.0))]
    for crashes, hosts in [*((it, HOSTS) for it in deaths), ((), (8,)), ((), (1,) * 8)]:
        outcome = check(run(steps, crashes=crashes, hosts=hosts, topology=topology, **knobs))
        assert outcome.ok, "\n".join(outcome.lines())


@each("steps", [EVEN, UNEVEN])
def test_a_sound_run_on_edges_that_go_one_way_stays_green(steps):
    history = run(steps, topology="one-peer-exponential", hosts=(2,) * 4)
    outcome = check(history)
    assert outcome.ok, "\n".join(outcome.lines())


@each(("kind", "flag"), itertools.product((Kind.OFFER, Kind.TAKE, Kind.MIXED), (1, 2, 3)))
def test_a_flag_of_other_averages_is_refused(kind, flag):
    history = run()
    events = history.workers[0].copy()
    at = np.flatnonzero((events["kind"] == kind) & (events["flag"] == 0))[0]
    events["flag"][at] = flag
    outcome = check(replace(history, workers=(events, *history.workers[1:])))
    assert f"flag {flag}, which has no meaning there" in "\n".join(outcome.lines())


# --- mutants ------------------------------------------------------------------------------------


class Wrong:
    """Replaces methods of what takes part in a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def replace(self, owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
        self.patch.setattr(owner, name, wrap(getattr(owner, name)))


def leaves_a_member_out(wrong):
    def held(came):
        return lambda self, at, those: came(self, at, [it for it in those if it != 2 or at != 1])

    wrong.replace(Neighbours, "held", held)


def averages_without_itself(wrong):
    def pool(pooled):
        def other(self, at, *own):
            return pooled(self, at, *([] if self._part.members(at) else own))

        return other

    wrong.replace(Leader, "_pool", pool)


def takes_part_after_it_has_left(wrong):
    def pool(pooled):
        def still(self, at, *own):
            return pooled(self, at, *(own or [self._theta] * bool(self._part.members(at))))

        return still

    wrong.replace(Leader, "_pool", pool)


def takes_members_in_another_order(wrong):
    def held(came):
        def turned(self, at, workers):
            found = came(self, at, workers)
            return found and found[::-1]

        return turned

    wrong.replace(Neighbours, "held", held)


def moves_too_far(wrong):
    """In both levels, which say the right weights."""
    wrong.replace(
        Leader, "_move", lambda move: lambda self, *them: move(self, *them[:3], them[3] * 1.01)
    )


def mixes_hosts_twice(wrong):
    """Writes it down once."""

    def mix_mean(mix):
        def twice(self, at, arrived):
            mix(self, at, arrived)
            if at == 2:
                events, self._events = self._events, None
                mix(self, at, arrived)
                self._events = events

        return twice

    wrong.replace(Leader, "_mix_mean", mix_mean)


def weighs_hosts_otherwise(wrong):
    wrong.replace(HostPart, "share", lambda share: lambda self, *them: share(self, *them) * 1.01)


def weighs_hosts_by_the_ranks_that_they_had(wrong):
    wrong.replace(HostPart, "share", lambda share: lambda self, it, at, *ranks: self.weight(it, at))


def weighs_hosts_alike(wrong):
    """As if each had one rank."""
    wrong.replace(
        HostPart, "share", lambda share: lambda self, it, at, *ranks: share(self, it, at, 1, 1)
    )


def says_more_ranks(wrong):
    def send(sent):
        def more(self, at, region, weight=1.0):
            return sent(self, at, region, weight + 1)

        return more

    wrong.replace(Neighbours, "send", send)


def takes_the_mean_of_the_round_before(wrong):
    def mix_mean(mix):
        def old(self, at, arrived):
            kept = self.__dict__.setdefault("_kept", {})
            before = kept.get(arrived.worker, arrived.vector)
            kept[arrived.worker] = arrived.vector.copy()
            mix(self, at, arrived._replace(vector=before))

        return old

    wrong.replace(Leader, "_mix_mean", mix_mean)


def leaves_a_host_out(wrong):
    def senders(all_of_them):
        def others(self, at):
            return tuple(it for it in all_of_them(self, at) if not (self.leads and it == 3))

        return others

    wrong.replace(HostPart, "senders", senders)


def keeps_what_it_has(wrong):
    wrong.replace(Member, "_mix_in", lambda mix_in: lambda self, arrived: None)


def hands_back_the_mean(wrong):
    """Of its own host, not what came of all."""

    def send_to(sent):
        def other(self, receivers, at, region, weight=1.0):
            return sent(self, receivers, at, at % 2 if region == 2 else region, weight)

        return other

    wrong.replace(Neighbours, "send_to", send_to)


def goes_on_with_something_else(wrong):
    def note_result(note):
        def moved(self):
            self._theta[0] += 1
            note(self)

        return moved

    wrong.replace(Leader, "_note_result", note_result)


def sends_means_after_the_gradient(wrong):
    """So that they do not travel while it is computed."""

    def begin(begun):
        def other(self, step):
            pool, self._pool = self._pool, lambda *them: False
            begun(self, step)
            self._pool = pool

        return other

    wrong.replace(Leader, "begin", begin)


def says_nothing_of_its_waiting(wrong):
    wrong.replace(Leader, "_tell", lambda tell: lambda self: 0.0)


def mixes_on_another_graph(wrong):
    def other(config, hosts, *, edges):
        return topology_for(replace(config, topology="star"), hosts, edges=edges)

    wrong.patch.setattr("psrt.job.setup.topology_for", other)


def averages_on_other_hosts(wrong):
    def other(config, hosts, *, edges):
        return topology_for(config, [0, 0, 1, 1, 2, 2, 3, 3], edges=edges)

    wrong.patch.setattr("psrt.job.setup.topology_for", other)


class Mutant(NamedTuple):
    breaks: Callable[[Wrong], None]
    rules: str
    knobs: dict[str, Any] = CTA
    steps: tuple[int, ...] = EVEN

    def __str__(self):
        return f"{self.breaks.__name__}-{self.knobs['order']}"


BOTH = (CTA, ATC)
MUTANTS = [
    *(Mutant(leaves_a_member_out, "neighbours", it) for it in BOTH),
    *(Mutant(averages_without_itself, "neighbours", it) for it in BOTH),
    *(Mutant(takes_part_after_it_has_left, "neighbours", it, LATE) for it in BOTH),
    *(Mutant(takes_members_in_another_order, "summation order", it) for it in BOTH),
    *(Mutant(moves_too_far, "conservation", it) for it in BOTH),
    *(Mutant(mixes_hosts_twice, "conservation", it) for it in BOTH),
    *(Mutant(weighs_hosts_otherwise, "neighbours", it) for it in BOTH),
    *(Mutant(weighs_hosts_by_the_ranks_that_they_had, "neighbours", it, LATE) for it in BOTH),
    *(Mutant(weighs_hosts_alike, "neighbours", it) for it in BOTH),
    *(Mutant(says_more_ranks, "neighbours", it) for it in BOTH),
    *(Mutant(takes_the_mean_of_the_round_before, "offers", it) for it in BOTH),
    *(Mutant(leaves_a_host_out, "neighbours", it) for it in BOTH),
    *(Mutant(keeps_what_it_has, "offers", it) for it in BOTH),
    *(Mutant(hands_back_the_mean, "offers", it) for it in BOTH),
    *(Mutant(goes_on_with_something_else, "offers", it) for it in BOTH),
    Mutant(sends_means_after_the_gradient, "turns"),
    *(Mutant(says_nothing_of_its_waiting, "durations", it) for it in BOTH),
    *(Mutant(mixes_on_another_graph, "neighbours|offers", it) for it in BOTH),
    *(Mutant(averages_on_other_hosts, "turns|neighbours", it) for it in BOTH),
]


@each("mutant", MUTANTS)
def test_a_broken_average_goes_red(monkeypatch, mutant):
    with monkeypatch.context() as patch:
        mutant.breaks(Wrong(patch))
        outcome = check(run(mutant.steps, **mutant.knobs))
    assert not outcome.ok, "nothing was found"
    assert outcome.violation.rule in mutant.rules.split("|"), "\n".join(outcome.lines())
