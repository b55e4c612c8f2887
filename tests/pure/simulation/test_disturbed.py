"""Networks some of whose ranks are cut off, or slow, and roles that stand still."""

from __future__ import annotations

from psrt.simulation import SimulationCosts
from psrt.simulation.collective_port import suspend
from psrt.simulation.disturbed import DisturbedNetwork
from psrt.simulation.event_queue import EventQueue
from psrt.simulation.network import Channel, Network
from psrt.simulation.scheduler import Scheduler


class Sent:
    """Stands for a network: writes down what sets out."""

    def __init__(self):
        self.sent = []

    def send(self, channel, nbytes, arrive, argument):
        self.sent.append((channel.out, channel.into, nbytes, argument))

    def follow(self, channel, arrive, argument):
        self.sent.append((channel.out, channel.into, 0, argument))


def between(source, to):
    return Channel(source, to)


def test_what_is_sent_into_a_cut_sets_out_in_order_when_it_heals():
    under = Sent()
    network = DisturbedNetwork(under)
    network.cut([1, 2])
    for number, (source, to) in enumerate([(0, 1), (1, 0), (1, 2), (0, 3), (0, 1)]):
        network.send(between(source, to), 8, print, number)
    assert under.sent == [(1, 2, 8, 2), (0, 3, 8, 3)]
    network.heal([1, 2])
    assert under.sent[2:] == [(0, 1, 8, 0), (1, 0, 8, 1), (0, 1, 8, 4)]


def test_two_cuts_must_both_heal():
    under = Sent()
    network = DisturbedNetwork(under)
    network.cut([1])
    network.cut([0])
    network.send(between(0, 1), 8, print, "x")
    network.heal([1])
    assert not under.sent
    network.heal([0])
    assert under.sent == [(0, 1, 8, "x")]


def test_what_is_dropped_never_arrives():
    under = Sent()
    network = DisturbedNetwork(under)
    network.cut([1])
    network.send(between(1, 0), 8, print, "lost")
    network.send(between(0, 1), 8, print, "kept")
    (again,) = network.drop(1)
    network.heal([1])
    assert under.sent == [(0, 1, 8, "kept")]
    again()
    assert under.sent[1:] == [(1, 0, 8, "lost")]


def test_a_notice_comes_by_no_link():
    under = Sent()
    network = DisturbedNetwork(under)
    network.cut([1])
    network.follow(between(1, 0), print, "dead")
    assert under.sent == [(1, 0, 0, "dead")]


def test_bytes_of_a_slow_rank_take_longer_both_ways_until_it_is_fast_again():
    under = Sent()
    network = DisturbedNetwork(under)
    network.slow([1], 10.0)
    network.slow([2], 3.0)
    for source, to in [(1, 0), (0, 1), (2, 1), (2, 0), (0, 3)]:
        network.send(between(source, to), 8, print, None)
    network.fast([1], 10.0)
    network.send(between(1, 0), 8, print, None)
    assert [it[2] for it in under.sent] == [80, 80, 80, 24, 8, 8]


def test_over_a_network_the_time_of_bytes_is_longer():
    queue, arrived = EventQueue(0), []
    costs = SimulationCosts(latency=lambda rng: 1.0, bandwidth=8.0)

    network = DisturbedNetwork(Network(queue, costs, None, ranks=2))
    network.slow([1], 4.0)
    network.send(between(0, 1), 16, lambda _: arrived.append(queue.time), None)
    while queue._queue:
        queue.time, _, _, action, argument = queue._queue.pop(0)
        action(argument)
    assert arrived == [1.0 + 4 * 16 / 8]


async def waits(scheduler, rank, log):

    for _ in range(3):
        scheduler.after(1.0, scheduler.resume, rank)
        await suspend()
        log.append((rank, scheduler.time))


def test_a_role_that_stands_still_goes_on_with_what_was_due():
    scheduler, log = Scheduler(0), []
    scheduler.after(1.5, lambda _: scheduler.hold(0))
    scheduler.after(4.25, lambda _: scheduler.let_go(0))
    scheduler.run({0: waits(scheduler, 0, log), 1: waits(scheduler, 1, log)})
    assert [it for it in log if it[0] == 0] == [(0, 1.0), (0, 4.25), (0, 5.25)]
    assert [it for it in log if it[0] == 1] == [(1, 1.0), (1, 2.0), (1, 3.0)]


def test_what_is_to_happen_before_an_event_happens_right_before_it():
    scheduler, log = Scheduler(0), []
    for event in (3, 1, 99, 3):
        scheduler.before(event, lambda event=event: log.append((event, scheduler.events)))
    scheduler.run({0: waits(scheduler, 0, [])})
    assert log == [(1, 0), (3, 2), (3, 2)]
