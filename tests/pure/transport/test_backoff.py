"""How a rank waits, with a clock and a bell that the test holds."""

import pytest

from psrt.core.errors import TransportError
from psrt.transport import backoff as module
from psrt.transport.backoff import (
    LONGEST_AWAKE_S,
    SPINS,
    WAITS_WITHOUT_YIELDS,
    YIELDS,
    Backoff,
)


class Clock:
    """Time that passes only when somebody yields or sleeps."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        self.yields = 0
        self.slept = []
        #: What one yield takes.
        self.yield_s = 1e-6
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module.time, "sleep", self.sleep)
        monkeypatch.setattr(module.os, "sched_yield", self.give_way)

    def give_way(self):
        self.yields += 1
        self.now += self.yield_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


class Wakeup:
    """Records what a patience does with it."""

    def __init__(self, clock):
        self.clock = clock
        self.calls = []

    def raise_flag(self):
        self.calls.append("up")

    def lower_flag(self):
        self.calls.append("down")

    def sleep(self, seconds):
        self.calls.append("sleep")
        self.clock.sleep(seconds)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def wait(backoff, polls):
    backoff.begin()
    for _ in range(polls):
        backoff.pause(lambda: "rank 3")


def test_first_it_spins_then_it_yields_then_it_sleeps(clock):
    backoff = Backoff(oversubscribed=False, timeout_s=1.0)
    wait(backoff, SPINS)
    assert (clock.yields, clock.slept) == (0, [])
    awake = SPINS + YIELDS
    wait(backoff, awake)
    assert (clock.yields, clock.slept) == (YIELDS, [])
    wait(backoff, awake + 1)
    assert len(clock.slept) == 1


def test_yields_that_take_a_time_slice_each_end_early(clock):
    """Other processes may want the core, and what else is to be done must not wait for them."""
    clock.yield_s = 3e-3
    idle = []
    note = lambda: idle.append(clock.now)  # noqa: E731
    backoff = Backoff(oversubscribed=True, timeout_s=0.7, busy_s=float("inf"), while_idle=note)
    began = clock.now
    with pytest.raises(TransportError):
        wait(backoff, 10**9)
    assert LONGEST_AWAKE_S <= idle[0] - began < LONGEST_AWAKE_S + 2 * clock.yield_s


def test_at_the_deadline_it_goes_on_where_that_is_excused_and_then_gives_up(clock):
    computes_until, wakeup = clock.now + 25.0, Wakeup(clock)
    backoff = Backoff(
        oversubscribed=True, timeout_s=10.0, busy_until=lambda: min(clock.now, computes_until),
        knob="--knob", wakeup=wakeup,
    )  # fmt: skip
    began = clock.now
    line = r"^no answer within 10 s \(--knob\): waiting for rank 3"
    with pytest.raises(TransportError, match=line):
        wait(backoff, 10**9)
    assert wakeup.calls[-1] == "down"
    assert 35.0 <= clock.now - began < 35.1, "the deadline is 10 s after the work ended"


def test_sleeps_without_a_bell_grow_with_the_wait_within_bounds(clock):
    backoff = Backoff(oversubscribed=True, timeout_s=1000.0, yields=50)
    wait(backoff, 450)
    assert clock.slept[0] == module.SHORTEST_S
    assert clock.slept[-1] == module.LONGEST_S
    assert clock.slept == sorted(clock.slept)
    clock.slept.clear()
    wait(backoff, 30_050)
    assert clock.slept[-1] == module.IDLE_S


def test_a_slow_yield_means_that_the_core_is_needed_so_the_next_waits_do_without(clock):
    backoff = Backoff(oversubscribed=True, timeout_s=10.0)  # so that nobody spins
    wait(backoff, 200)  # a core that nobody wants is kept
    assert (clock.yields, clock.slept) == (200, [])
    clock.yields, clock.yield_s = 0, 3e-3  # another rank's whole slice
    wait(backoff, 2)
    assert (clock.yields, len(clock.slept)) == (1, 1)
    for _ in range(WAITS_WITHOUT_YIELDS - 1):
        wait(backoff, 1)
    assert clock.yields == 1
    wait(backoff, 1)
    assert clock.yields == 2  # asks again, after a while


def test_the_flag_is_up_during_one_more_look_and_down_after_the_sleep(clock):
    wakeup = Wakeup(clock)
    backoff = Backoff(oversubscribed=True, timeout_s=10.0, wakeup=wakeup)
    wait(backoff, YIELDS)
    assert wakeup.calls == []
    backoff.pause(lambda: "")
    assert wakeup.calls == ["up"]
    backoff.pause(lambda: "")
    assert wakeup.calls == ["up", "sleep", "down"]
    # A wait that ends during that look takes it down, once.
    wakeup.calls.clear()
    wait(backoff, YIELDS + 1)
    backoff.end()
    backoff.end()
    assert wakeup.calls == ["up", "down"]


def test_a_bell_allows_longer_sleeps_unless_something_must_be_polled(clock):
    backoff = Backoff(oversubscribed=True, timeout_s=10.0, wakeup=Wakeup(clock), yields=50)
    wait(backoff, 52)
    assert clock.slept == [module.WOKEN_SHORTEST_S]
    backoff.must_poll = True
    wait(backoff, 52)
    assert clock.slept[-1] == module.SHORTEST_S


def test_what_must_be_polled_to_move_on_is_never_slept_on_but_has_a_deadline(clock):
    backoff = Backoff(oversubscribed=True, timeout_s=1.0, wakeup=Wakeup(clock))
    clock.yield_s = 1e-3
    backoff.begin()
    for _ in range(999):
        backoff.spin(lambda: "the library")
    clock.now += 1.0
    with pytest.raises(TransportError, match="waiting for the library"):
        backoff.spin(lambda: "the library")
    assert (clock.yields, clock.slept) == (999, [])
