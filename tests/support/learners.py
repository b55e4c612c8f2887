"""A crowd of learners around the policies of shards that merge as soon as a quorum has come.

As ``support.crowd``, for which this is the table of modes: whom a merge must have, who may be
answered, when a window may be open. What the shard that decides for a fragment does with a push
goes relay by relay through a channel to each that follows it, as slowly as one likes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from psrt.config.modes import MODES
from psrt.core.messages import LAST, LATE, MORE, Leave, Park, Push, Relay, Tick
from psrt.sync import Apply, Cut, Drop, Policy, Serve, policy_for, stuck_one
from support.crowd import BrokenRuleError, Crowd, Move, Shard, demand, put
from support.knobs import spelled


class Rules(NamedTuple):
    """What learners agree on."""

    quorum: int
    has_window: bool = False
    #: A push that is staler than this is dropped.
    late: float = math.inf

    def policy(self, workers: int, *, decides: bool) -> Policy:
        window = {"grace": 1.0} if self.has_window else {}
        mode = MODES.read(spelled("local-sgd", quorum=self.quorum, **window))
        return policy_for(mode, workers, late=self.late, decides=decides)


class MergingShard(Shard):
    """One policy, and what must be true of it, kept track of independently."""

    def __init__(self, rules: Rules, policy: Policy, workers: int, *, decides: bool):
        self.rules, self.policy, self.decides = rules, policy, decides
        self.version, self.least = 0, 0
        self.live = set(range(workers))
        self.here: dict[int, Push] = {}  # pushes that wait for their merge
        self.owed: dict[int, Any] = {}  # what has no answer, a push or a park
        self.parked: set[int] = set()
        self.relayed: list[Relay] = []  # of merges that are not made
        self.late_ones: set[int] = set()  # whose push is to be dropped
        self._after: dict[Any, Any] = {}
        self.views: dict[Any, Any] = {}

    @property
    def all_are_here(self) -> bool:
        return bool(self.here) and self.live - self.parked <= self.here.keys()

    @property
    def may_be_open(self) -> bool:
        """Whether there is a quorum, for which somebody may be worth waiting."""
        return self.rules.has_window and self.decides and len(self.here) >= self.rules.quorum

    def take(self, message: Any) -> Iterator[Any]:
        """Let a message arrive; yield relays, cuts, and (worker, clock, version) of answers."""
        self.expect(message)
        for decision in self.policy.handle(message):
            if isinstance(decision, Apply):
                self.on_merge([it.worker for it in decision.pushes], message)
                last = len(decision.pushes) - 1
                for i, it in enumerate(decision.pushes):
                    yield Relay(it.worker, it.clock, self.version, what=LAST if i == last else MORE)
            elif isinstance(decision, Drop):
                self.lose(decision.push.worker, message)
                if isinstance(message, Push):
                    yield Relay(message.worker, message.clock, self.version, what=LATE)
            elif isinstance(decision, Cut):
                demand(self.live and self.parked == self.live, "a cut amid what is on its way")
                self.parked = set()
                yield decision
            else:
                if not isinstance(decision, Serve):
                    raise BrokenRuleError(f"no learner can be given {decision}")
                self.on_answer(decision.worker, decision.clock)
                yield decision.worker, decision.clock, self.version
        demand(not (self.here and isinstance(message, Tick)), "the window is over")
        self.check_rest()

    def expect(self, message: Any) -> None:
        if isinstance(message, Tick):
            return
        worker = message.worker
        if isinstance(message, Leave):
            self.live.discard(worker)
            self.owed.pop(worker, None)
            self.parked.discard(worker)
            self.late_ones.discard(worker)
        elif isinstance(message, Park):
            self.owed[worker] = message
            self.parked.add(worker)
        elif isinstance(message, Relay):
            if message.what != LATE:
                self.relayed.append(message)
            elif worker in self.live:
                self.late_ones.add(worker)
        else:
            self.owed[worker] = message
            is_late = self.decides and self.version - message.version > self.rules.late
            if message.samples:
                self.here[worker] = message
            if is_late and message.samples:
                self.late_ones.add(worker)

    def on_merge(self, members: list[int], cause: Any) -> None:
        demand(members == sorted(set(members)), f"{members} twice, or out of order")
        if self.decides:
            demand(not self.late_ones, "a late push is merged")
            demand(set(members) == self.here.keys(), f"{members} of {sorted(self.here)}")
            is_over = isinstance(cause, Tick) or not self.rules.has_window
            enough = len(members) >= self.rules.quorum and is_over
            # What a tick without a quorum may do is the crowd's.
            nobody_comes = self.all_are_here or isinstance(cause, Tick)
            demand(enough or nobody_comes, f"{members} of {sorted(self.live)} are merged")
        else:
            due = self.next()
            demand(due is not None, f"{members} are merged, which nobody has relayed")
            came = [it for it in due or () if it in self.here]
            missing = set(due or ()) - set(came)
            demand(members == came, f"{members} are merged instead of {came}")
            demand(not missing & self.live, f"{missing} are on their way")
            del self.relayed[: len(due or ())]
        for it in members:
            del self.here[it]
        self.version += 1

    def next(self) -> list[int] | None:
        """Return who is in the next merge that was relayed as a whole."""
        for i, it in enumerate(self.relayed):
            if it.what == LAST:
                return [it.worker for it in self.relayed[: i + 1]]
        return None

    def lose(self, worker: int, cause: Any) -> None:
        demand(worker in self.here, f"the push of {worker} is dropped, which is not here")
        died = isinstance(cause, Leave) and cause.worker == worker
        demand(died or worker in self.late_ones, f"the push of {worker} is dropped")
        self.late_ones.discard(worker)
        del self.here[worker]

    def on_answer(self, worker: int, clock: int) -> None:
        what = self.owed.pop(worker, None)
        if what is None:
            raise BrokenRuleError(f"worker {worker} is owed no answer")
        demand(worker not in self.here, f"worker {worker} is answered before its merge")
        demand(worker not in self.parked, f"worker {worker} is let go before the cut")
        demand(clock == what.clock + isinstance(what, Push), f"clock {clock} for {what}")

    def check_rest(self) -> None:
        """Nothing is left undone: nobody waits who need not."""
        demand(self.policy.version == self.version, f"counts {self.policy.version} versions")
        demand(not self.here.keys() - self.live, f"{self.here} of who is gone")
        demand(not self.here.keys() & self.late_ones, f"{self.late_ones} wait in vain")
        demand(self.policy.is_open == self.may_be_open, f"open: {self.policy.is_open}")
        if self.decides:
            enough = len(self.here) >= self.rules.quorum and not self.rules.has_window
            demand(not (enough or self.all_are_here), f"{sorted(self.here)} are not merged")
        elif (due := self.next()) is not None:
            demand(set(due) & self.live - self.here.keys(), f"{due} are not merged")
        for worker in self.owed:
            demand(
                worker in self.here or worker in self.parked, f"worker {worker} waits for nothing"
            )
        demand(not (self.live and self.parked == self.live), "all are parked, and no cut is made")


#: Makes a policy that decides, or follows.
Make = Callable[..., Policy]


class LearnerCrowd(Crowd):
    """W learners, and F fragments of S shards each, of which the first one decides.

    A learner has one push on its way, to the shards of any one fragment: in whatever order it
    pushes them, with or without samples.
    """

    #: Shards of learners.
    shards: list[Any]
    stuck: Callable[[Sequence[Policy]], int | None] = staticmethod(stuck_one)

    def __init__(
        self,
        rules: Rules,
        workers: int,
        shards: int = 1,
        fragments: int = 1,
        *,
        parks: bool = False,
        make: Make = Rules.policy,
    ):
        count = shards * fragments
        self.decider = [it - it % shards for it in range(count)]
        self.shards = [
            MergingShard(rules, make(rules, workers, decides=it == of), workers, decides=it == of)
            for it, of in enumerate(self.decider)
        ]
        self.several = fragments > 1
        self.parks = parks
        self.clock = [0] * workers  # of the pushes to all fragments
        self.clocks = [(0,) * count for _ in range(workers)]
        self.read = [(0,) * count for _ in range(workers)]
        self.awaits: list[frozenset[int]] = [frozenset()] * workers
        self.idle = frozenset(range(workers))
        self.gone: frozenset[int] = frozenset()
        #: Whether a checkpoint is due, and who must park for it.
        self.asked = False
        self.knows: frozenset[int] = frozenset()
        self.channels = {(it, shard): () for it in range(workers) for shard in range(count)}
        self.relays: dict[int, tuple[Relay, ...]] = {
            it: () for it, of in enumerate(self.decider) if it != of
        }

    def choices(self, worker: int, limit: float = math.inf) -> list[Move]:
        found: list[Move] = [("leave", (worker,))]
        if worker in self.knows:
            found.append(("park", (worker,)))
        for fragment in sorted({*self.decider}):
            found += [("push", (worker, 1, fragment)), ("push", (worker, 0, fragment))]
        return found

    def arrivals(self) -> list[Move]:
        found = super().arrivals()
        found += [("relay", (it,)) for it, relays in self.relays.items() if relays]
        found += [("tick", (i,)) for i, it in enumerate(self.shards) if it.policy.is_open]
        if self.parks and not self.asked and self.shards[0].live:
            found.append(("ask", ()))
        return found

    def ask(self) -> None:
        self.asked = True

    def push(self, worker: int, samples: int = 1, fragment: int = 0) -> None:
        own = [it for it, of in enumerate(self.decider) if of == fragment]
        self.send(worker, {
            it: Push(worker, self.clocks[worker][it], self.read[worker][it], samples, 0.0)
            for it in own
        })  # fmt: skip
        for it in own:
            self.clocks[worker] = put(self.clocks[worker], it, self.clocks[worker][it] + 1)

    def park(self, worker: int) -> None:
        self.knows -= {worker}
        self.send(worker, {it: Park(worker, of, 1) for it, of in enumerate(self.clocks[worker])})

    def send(self, worker: int, messages: dict[int, Any]) -> None:
        self.idle -= {worker}
        self.awaits[worker] = frozenset(messages)
        for shard, message in messages.items():
            self.channels[worker, shard] += (message,)

    def die(self, worker: int, lost: tuple[int, ...] = ()) -> None:
        self.idle -= {worker}
        self.knows -= {worker}
        self.gone |= {worker}
        for shard in range(len(self.shards)):
            before = () if shard in lost else self.channels[worker, shard]
            leave = Leave(worker, self.clocks[worker][shard])
            self.channels[worker, shard] = (*before, leave)

    def arrive(self, worker: int, shard: int) -> None:
        message, *rest = self.channels[worker, shard]
        self.channels[worker, shard] = tuple(rest)
        self.happen(shard, message)

    def relay(self, shard: int) -> None:
        message, *rest = self.relays[shard]
        self.relays[shard] = tuple(rest)
        self.happen(shard, message)

    def tick(self, shard: int) -> None:
        self.happen(shard, Tick())

    def happen(self, shard: int, message: Any) -> None:
        self.shards[shard], outcome = self.shards[shard].after(message)
        for it in outcome:
            if isinstance(it, Relay):
                for follower, of in enumerate(self.decider):
                    if of == shard != follower:
                        self.relays[follower] += (it,)
            elif isinstance(it, Cut):
                self.asked &= shard != 0
            else:
                self.answer(shard, *it)
        if self.several:
            self.unlock()

    def answer(self, shard: int, worker: int, clock: int, version: int) -> None:
        if worker in self.gone:
            return
        demand(clock == self.clocks[worker][shard], f"worker {worker} is answered out of order")
        self.read[worker] = put(self.read[worker], shard, version)
        self.awaits[worker] -= {shard}
        if self.asked and shard == 0:
            self.knows |= {worker}
        if not self.awaits[worker]:
            self.idle |= {worker}

    def unlock(self) -> None:
        """Have a server merge who waits where nobody else can come to any fragment."""
        waiting = {worker for it in self.shards for worker in it.here}
        is_stuck = bool(waiting) and all(it.live <= waiting | it.parked for it in self.shards)
        which = self.stuck([it.policy for it in self.shards])
        demand((which is not None) == is_stuck, f"{sorted(waiting)} wait, and {which} is merged")
        if which is not None:
            demand(self.shards[which].here, "nobody is there")
            self.tick(which)

    def check_end(self) -> None:
        stuck = set(range(len(self.clock))) - self.gone
        demand(not stuck, f"deadlock: workers {sorted(stuck)} wait for ever")
        for shard, of in zip(self.shards, self.decider, strict=True):
            left = shard.policy.live, shard.policy.pending, shard.policy.waiting
            demand(not any(left), f"left over: {left}")
            demand(not (shard.here or shard.owed or shard.relayed), f"never merged: {shard.here}")
            demand(shard.version == self.shards[of].version, "shards have made other merges")


class LearnerLikeness:
    """Says which crowds of learners are alike; see ``Likeness``."""

    def __init__(self, rules: Rules):
        self.oldest = rules.late + 1

    def __call__(self, crowd: LearnerCrowd) -> tuple[Any, ...]:
        workers = sorted(self.worker(crowd, it) for it in range(len(crowd.clock)))
        is_open = tuple(it.policy.is_open for it in crowd.shards)
        return (crowd.asked, is_open, *workers)

    def pick(self, crowd: LearnerCrowd) -> int:
        return min(crowd.idle, key=lambda it: self.worker(crowd, it))

    def worker(self, crowd: LearnerCrowd, worker: int) -> tuple[Any, ...]:
        is_gone = worker in crowd.gone
        seen: list[Any] = [is_gone, worker in crowd.idle, worker in crowd.knows]
        for i, shard in enumerate(crowd.shards):
            if (worker, None) not in shard.views:
                shard.views[worker, None] = self.at_shard(shard, worker)
            seen.append(shard.views[worker, None])
            seen.append(not is_gone and i in crowd.awaits[worker])
            seen.append(0 if is_gone else self.age(shard, crowd.read[worker][i]))
            for it in crowd.channels[worker, i]:
                seen.append(kind_of(it))
                if isinstance(it, Push):
                    seen.append(self.age(shard, it.version))
            seen.append(99)  # its end
            relays = crowd.relays.get(i, ())
            seen.append(tuple((k, it.what) for k, it in enumerate(relays) if it.worker == worker))
        return tuple(seen)

    def age(self, shard: MergingShard, version: int) -> int:
        if not shard.decides or self.oldest == math.inf:
            return 0
        return int(min(shard.version - version, self.oldest))

    def at_shard(self, shard: MergingShard, worker: int) -> tuple[Any, ...]:
        policy = shard.policy
        pending = [it for it in policy.pending if it.worker == worker]
        relayed = getattr(policy, "_relayed", ())
        return (
            *(worker in it for it in (policy.clock, policy.waiting, policy.parked, shard.here)),
            *(worker in it for it in (shard.owed, shard.parked, shard.late_ones)),
            worker in getattr(policy, "_late_ones", ()),
            tuple(self.age(shard, it.version) for it in pending),
            tuple((k, it.what) for k, it in enumerate(relayed) if it.worker == worker),
        )


def kind_of(message: Any) -> int:
    """Return a number for what a message is, a push without samples apart."""
    return [Leave, Park, Push].index(type(message)) + (
        isinstance(message, Push) and not message.samples
    )
