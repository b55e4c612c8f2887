"""Scripts of events, mode by mode, with every decision written down; and averaging periods."""

from __future__ import annotations

import pytest

from psrt.config.modes import MODES, SSP, AllReduce, Async, SoftSync, Sync
from psrt.core.errors import ConfigError, ProtocolError
from psrt.core.messages import Leave, Park, Push
from psrt.sync import Apply, AveragingPeriod, Drop, Keep, Serve, policy_for
from support.cases import each


def push(worker, clock, version, samples=8):
    return Push(worker, clock, version, samples, progress=0.25)


def leave(worker, clock=0):
    return Leave(worker, clock)


def play(policy, *script):
    """Feed events and compare decisions: event, decisions, event, decisions, …"""
    for event, expected in zip(script[::2], script[1::2], strict=True):
        assert policy.handle(event) == expected, event


A0, B0, C0 = push(0, 0, 0), push(1, 0, 0), push(2, 0, 0)
A1, B1, C1 = push(0, 1, 1), push(1, 1, 1), push(2, 1, 1)


class TestSync:
    def test_a_round_is_folded_in_worker_order_and_then_everybody_goes_on(self):
        policy = policy_for(Sync(), 3)
        play(
            policy,
            *(C0, []),
            *(A0, []),
            *(B0, [Apply((A0, B0, C0)), Serve(2, 1), Serve(0, 1), Serve(1, 1)]),
            *(B1, []),
            *(C1, []),
            *(A1, [Apply((A1, B1, C1)), Serve(1, 2), Serve(2, 2), Serve(0, 2)]),
        )
        assert policy.version == 2

    def test_who_leaves_before_its_push_is_not_waited_for(self):
        policy = policy_for(Sync(), 3)
        play(
            policy,
            *(A0, []),
            *(B0, []),
            *(leave(2), [Apply((A0, B0)), Serve(0, 1), Serve(1, 1)]),
            *(A1, []),
            *(leave(1, 1), [Apply((A1,)), Serve(0, 2)]),
            *(leave(0, 2), []),
        )
        assert not policy.live

    def test_who_dies_with_its_push_unanswered_takes_it_along(self):
        play(
            policy_for(Sync(), 3),
            *(B0, []),
            *(leave(1), [Drop(B0)]),
            *(A0, []),
            *(C0, [Apply((A0, C0)), Serve(0, 1), Serve(2, 1)]),
        )


class TestBackups:
    def test_the_first_are_enough_and_the_rest_are_dropped(self):
        policy = policy_for(Sync(backup=1), 3)
        play(
            policy,
            *(C0, []),
            *(A0, [Apply((A0, C0)), Serve(2, 1), Serve(0, 1)]),
            *(B0, [Drop(B0), Serve(1, 1)]),
            *(B1, []),
        )

    def test_whom_another_shard_carried_ahead_waits_for_its_round_and_is_no_part_of_it(self):
        # Worker 2 missed round 0 here, in time to be answered with version 1, and missed both
        # rounds 0 and 1 on another shard, which answered with version 2.
        policy = policy_for(Sync(backup=1), 3)
        play(
            policy,
            *(A0, []),
            *(B0, [Apply((A0, B0)), Serve(0, 1), Serve(1, 1)]),
            *(C0, [Drop(C0), Serve(2, 1)]),
            *(push(2, clock=2, version=1, samples=0), []),
            *(A1, []),
            *(B1, [Apply((A1, B1)), Serve(2, 2), Serve(0, 2), Serve(1, 2)]),
        )

    def test_a_round_nobody_will_ever_push_for_is_passed_over(self):
        # Worker 0 died after another shard had its push for round 0, and before this one.
        policy = policy_for(Sync(backup=1), 2)
        play(
            policy,
            *(push(1, clock=1, version=0, samples=0), []),
            *(leave(0), [Apply(()), Serve(1, 1)]),
            *(B1, [Apply((B1,)), Serve(1, 2)]),
        )


class TestAsync:
    def test_every_push_is_an_update_and_nobody_waits(self):
        policy = policy_for(Async(), 2)
        a1, a2 = push(0, 1, 1), push(0, 2, 2)
        play(
            policy,
            *(A0, [Apply((A0,)), Serve(0, 1)]),
            *(a1, [Apply((a1,)), Serve(0, 2)]),
            *(B0, [Apply((B0,)), Serve(1, 1)]),
            *(leave(1), []),
            *(a2, [Apply((a2,)), Serve(0, 3)]),
        )
        assert policy.version == 4
        assert policy.staleness(push(0, 3, 1)) == 3  # versions in between

    def test_what_is_staler_than_the_limit_is_dropped(self):
        policy = policy_for(Async(), 3, late=1)
        b1 = push(1, 1, 2)
        play(policy, A0, [Apply((A0,)), Serve(0, 1)])
        assert policy.staleness(C0) == 1  # the limit itself is not too stale
        assert policy.staleness(push(2, 0, -1)) == -1
        play(
            policy,
            *(C0, [Apply((C0,)), Serve(2, 1)]),
            *(B0, [Drop(B0), Serve(1, 1)]),
            *(b1, [Apply((b1,)), Serve(1, 2)]),
        )


class TestSsp:
    def test_a_worker_may_be_so_far_ahead_and_no_further(self):
        policy = policy_for(SSP(1), 2)
        a1, a2, b1 = push(0, 1, 1), push(0, 2, 3), push(1, 1, 3)
        play(
            policy,
            *(A0, [Apply((A0,)), Serve(0, 1)]),
            *(a1, [Apply((a1,))]),  # starting clock 2 would be two ahead of worker 1
            *(B0, [Apply((B0,)), Serve(0, 2), Serve(1, 1)]),
            *(a2, [Apply((a2,))]),
            *(b1, [Apply((b1,)), Serve(0, 3), Serve(1, 2)]),
        )


class TestSoftsync:
    def test_who_goes_on_before_the_update_has_its_gradient_kept(self):
        policy = policy_for(SoftSync(2), 4)
        a1 = push(0, 1, 0)
        play(
            policy,
            *(A0, [Keep(A0), Serve(0, 1)]),
            *(a1, [Apply((A0, a1)), Serve(0, 2)]),  # the same worker twice
            *(C0, [Keep(C0), Serve(2, 1)]),
            *(B0, [Apply((C0, B0)), Serve(1, 1)]),  # in order of arrival
        )

    @each(("workers", "k", "quorum"), [(4, 1, 4), (4, 3, 1), (5, 2, 2), (6, 6, 1)])
    def test_the_quorum_is_w_over_k(self, workers, k, quorum):
        policy = policy_for(SoftSync(k), workers)
        sizes = []
        for clock in range(2 * quorum):
            decisions = policy.handle(push(0, clock, policy.version))
            sizes += [len(d.pushes) for d in decisions if isinstance(d, Apply)]
        assert sizes == [quorum, quorum]

    def test_what_those_who_left_have_pushed_is_applied(self):
        policy = policy_for(SoftSync(1), 4)
        play(
            policy,
            *(A0, [Keep(A0), Serve(0, 1)]),
            *(leave(0, 1), []),
            *(B0, [Keep(B0), Serve(1, 1)]),
            *(leave(1, 1), [Apply((A0, B0))]),
            *(leave(2), []),
            *(leave(3), []),
        )
        assert not policy.live


class TestProtocol:
    @each(
        ("mode", "script", "complaint"),
        [
            (Async(), [push(2, 0, 0)], "worker 2 pushed, but it is not among"),
            (Async(), [push(0, 1, 0)], "worker 0 pushed clock 1, expected 0"),
            (Async(), [A0, A0], "worker 0 pushed clock 0, expected 1"),
            (Async(), [push(0, 0, 1)], "worker 0 read version 1, the newest is 0"),
            (Async(), [push(0, 0, -1)], "worker 0 read version -1, the newest is 0"),
            (Async(), [leave(0), leave(0)], "worker 0 left, but it is not among"),
            (SSP(0), [A0, push(0, 1, 1)], "worker 0 pushed again before"),
            (Sync(), [A0, A0], "worker 0 pushed again before it was answered"),
            (Sync(), [push(0, 1, 0)], "worker 0 pushed clock 1 on version 0"),
            (Sync(), [A0, B0, push(0, 0, 0)], "worker 0 pushed clock 0, expected 1"),
            (Sync(backup=1), [push(0, 1, 0)], "worker 0 pushed clock 1 on version 0"),
            (Sync(backup=1), [push(0, 1, 1)], "worker 0 read version 1, the newest is 0"),
            (Sync(backup=1), [A0, push(0, 0, 1)], "worker 0 pushed clock 0 on version 1"),
        ],
    )
    def test_what_cannot_be_is_refused(self, mode, script, complaint):
        policy = policy_for(mode, 2)
        *before, wrong = script
        for event in before:
            policy.handle(event)
        with pytest.raises(ProtocolError, match=complaint):
            policy.handle(wrong)


class TestFence:
    """Who is taken to be dead counts no more, whatever comes from it then."""

    MISSED = Leave(1, 0, missed=True)

    @each("event", [B0, Park(1, 0, 5), Leave(1, 0), MISSED])
    def test_nothing_of_one_that_was_missed_is_handled(self, event):
        policy = policy_for(Async(), 2)
        assert not policy.fences(event)
        policy.handle(self.MISSED)
        assert policy.fences(event)
        assert not policy.fences(A0)

    def test_one_that_has_left_by_itself_is_not_missed_any_more(self):
        policy = policy_for(Async(), 2)
        policy.handle(Leave(1, 0))
        assert policy.fences(self.MISSED)
        assert not policy.fences(B0)  # which it must not send, see above


@each("row", [row for row in MODES.values() if row.may_have_servers])
def test_every_mode_that_may_have_servers_has_a_policy(row):
    policy = policy_for(row, 3)
    assert (policy.version, policy.clock, policy.live) == (0, {0: 0, 1: 0, 2: 0}, True)


def test_a_mode_without_servers_has_no_policy():
    with pytest.raises(ConfigError, match="mode 'allreduce' has no servers; those that do: sync"):
        policy_for(AllReduce(), 2)


@each(
    ("local_steps", "until", "steps", "progress", "due"),
    [
        (1, 0.0, 1, 0.0, True),
        (4, 0.0, 3, 0.0, False),
        (4, 0.0, 4, 0.0, True),
        (4, 1.0, 1, 0.999, True),  # post-local: every step until then
        (4, 1.0, 1, 1.0, False),
        (4, 1.0, 5, 1.0, True),
    ],
)
def test_averaging_period(local_steps, until, steps, progress, due):
    period = AveragingPeriod(local_steps, until)
    assert period.due(steps=steps, progress=progress) is due
