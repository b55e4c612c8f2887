"""All that the ranks of a job without servers can come to, whoever is slow and whoever dies.

The roles are given, and are real ones. A span may be late for any time, so a role that looks
whether it is there may be told that it is not, even if it was sent long ago. What a rank does
depends on nothing but these answers and on what it was sent; so all that it can come to is found
for each rank by itself, and then all combinations of ranks that can be.

A rank that has died is one that does nothing any more, and a span that is lost one that never
arrives. So whatever the others come to after a death is among these states, too. What is left to
show is what they come to when they cannot go on: each waits for the dead, itself or through others,
which the job's deadline ends, and nobody waits for a rank that is at its end.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from psrt.collective import ALGORITHMS, Step
from psrt.collective.analysis.pick import Coding
from psrt.core.partition import Span
from psrt.core.sharding import Sharing
from psrt.transport import CONTROL, RoleMap
from psrt.transport.coded_sum import SumCodec

#: Sender, receiver, and which of the sums.
Channel = tuple[int, int, int]
#: What came: the numbers of a span, or None where it was not there.
Answers = tuple[bytes | None, ...]
Take = Callable[[Span, np.ndarray], None]

#: Spans that a rank may look for before it must have come to its end.
LONGEST = 150


class NotDecidedError(BaseException):
    """A role looks whether a span is there, and nobody has said yet whether it is."""


class TooLongError(AssertionError):
    """A role goes on and on."""


class Awaited:
    """What a role awaits: the next span of a channel."""

    def __init__(self, channel: Channel):
        self.channel = channel

    def __await__(self) -> Generator[Channel, bytes, bytes]:
        return (yield self.channel)


class Summing:
    """One rank's part in the sums of a span, by a schedule; see ``port.Reduction``."""

    def __init__(
        self, port: ModelPort, span: Span, algorithm: str, take: Take | None, key: int
    ) -> None:
        self.port, self.span, self.take, self.key = port, span, take, key
        row = ALGORITHMS[algorithm]
        self.steps = [
            s for s in row(port.rank, port.size, span.size) if s.send.size or s.receive.size
        ]
        self.values = np.zeros(span.size + row.workspace(port.size, span.size), np.float32)
        self.at, self.sent, self.over = 0, False, True

    def begin(self) -> None:
        assert self.over
        self.values[: self.span.size] = self.span.of(self.port.gradient)
        self.at, self.sent, self.over = 0, False, False

    def poll(self) -> bool:
        while (channel := self.wants()) is not None:
            given = self.port.look(channel)
            if given is None:
                return False
            self.fold(given)
        return True

    async def finish(self) -> None:
        while (channel := self.wants()) is not None:
            self.fold(await Awaited(channel))

    def wants(self) -> Channel | None:
        """Send what can be sent; return the channel that comes next, None at the end."""
        while self.at < len(self.steps):
            step = self.steps[self.at]
            if step.is_local(self.port.rank):
                self.combine(step, step.send.of(self.values).copy(), given_first=False)
                self.at += 1
                continue
            if step.send_to is not None and step.send.size and not self.sent:
                self.port.send(step.send_to, self.key, step.send.of(self.values))
            self.sent = True
            if step.receive_from is not None and step.receive.size:
                return step.receive_from, self.port.rank, self.key
            self.at, self.sent = self.at + 1, False
        if not self.over:
            self.over = True
            self.hand_over()
        return None

    def fold(self, given: bytes) -> None:
        step = self.steps[self.at]
        assert step.receive_from is not None
        numbers = np.frombuffer(given, np.float32)
        self.combine(step, numbers, given_first=step.receive_from < self.port.rank)
        self.at, self.sent = self.at + 1, False

    def combine(self, step: Step, given: np.ndarray, *, given_first: bool) -> None:
        mine = step.receive.of(self.values)
        if not step.combine:
            mine[:] = given
        else:
            mine[:] = given + mine if given_first else mine + given

    def hand_over(self) -> None:
        sums = self.values[: self.span.size]
        if self.take is None:
            self.span.of(self.port.gradient)[:] = sums
        else:
            self.take(self.span, sums)


class ModelPort:
    """A port whose messages are what it is told, and which only writes down what it is given."""

    def __init__(self, n: int, rank: int, size: int, answers: Answers) -> None:
        self.rank, self.size = rank, size
        self.role_map = RoleMap(n, workers=tuple(range(size)))
        self.gradient = np.zeros(n + CONTROL, np.float32)
        self.theta = np.zeros(n, np.float32)
        self.waiting_for, self.apply_s = lambda: "", None
        self.sums: list[Summing] = []
        #: What each look and wait came to, in order: a span, or None where it was not there.
        self.answers = answers
        self.answered = 0
        self.asked: Channel | None = None
        self.sent: list[tuple[Channel, bytes]] = []
        self.taken: defaultdict[Channel | None, int] = defaultdict(int)
        #: Where the role stands, as far as it does not show elsewhere.
        self.place = ()

    def now(self) -> float:
        return 0.0

    def amid(self, share: float, action: Callable[[], object]) -> None:
        action()

    def choice(
        self,
        algorithm: str,
        n: int,
        *,
        coded: Coding | None = None,
        sharded: Sharing | None = None,
    ) -> tuple[str, str]:
        return algorithm, "as asked"

    def share_theta(self, algorithm: str) -> None:
        pass

    def reduction(
        self, span: Span, algorithm: str, take: Take | None, codec: SumCodec | None = None
    ) -> Summing:
        self.sums.append(Summing(self, span, algorithm, take, len(self.sums)))
        return self.sums[-1]

    def send(self, to: int, key: int, numbers: np.ndarray) -> None:
        self.sent.append(((self.rank, to, key), numbers.tobytes()))

    def look(self, channel: Channel) -> bytes | None:
        """Say whether the next span of a channel is there, and return it."""
        self.asked = channel
        if self.answered == len(self.answers):
            raise NotDecidedError
        return self.answer()

    def answer(self) -> bytes | None:
        given = self.answers[self.answered]
        self.answered += 1
        self.taken[self.asked] += given is not None
        return given

    def state(self) -> tuple[Any, ...]:
        """Return all that what follows can depend on."""
        sums = tuple((s.at, s.sent, s.over, s.values.tobytes()) for s in self.sums)
        counts = tuple(sorted(self.taken.items()))
        memory = self.gradient.tobytes(), self.theta.tobytes()
        return self.place, self.asked, counts, len(self.sent), sums, memory


def run(role: Role, port: ModelPort) -> str:
    """Run a role until it asks what nobody has answered; return how it then stands."""
    answers = port.answers
    coroutine = role(port)
    try:
        port.asked = coroutine.send(None)
        while port.answered < len(answers):
            port.asked = coroutine.send(port.answer())
    except NotDecidedError:
        return "looks"
    except StopIteration:
        return "is at its end"
    finally:
        coroutine.close()
    return "waits"


#: Makes what a rank does out of its port.
Role = Callable[[ModelPort], Coroutine[Channel, Any, None]]


class Node(NamedTuple):
    """One rank, as far as it can come without asking anything."""

    how: str
    #: What it looks or waits for, and how much it has taken from there.
    channel: Channel | None
    taken: int
    #: Spans that it has sent, by channel.
    sent: dict[Channel, int]
    #: What it comes to where the span is there, or not; nodes by number.
    then: dict[bool, int]


class Ranks:
    """All that each rank can come to."""

    #: What carries a schedule out.
    Summing = Summing

    def __init__(self, role: Role, size: int, n: int) -> None:
        """Follow each rank as far as it goes; ``role`` makes a coroutine out of a port."""
        self.role, self.size, self.n = role, size, n
        self.nodes: list[list[Node]] = [[] for _ in range(size)]
        self.known: list[dict[Any, int]] = [{} for _ in range(size)]
        #: What goes through each channel, which must not depend on who is slow.
        self.spans: defaultdict[Channel, list[bytes]] = defaultdict(list)
        #: Those that wait to be followed: rank, node, answers so far.
        self.open = deque((rank, self.node(rank, ())) for rank in range(size))
        self.answers: list[dict[int, Answers]] = [{0: ()} for _ in range(size)]
        self.follow()

    def node(self, rank: int, answers: Answers) -> int:
        if len(answers) > LONGEST:
            raise TooLongError(f"rank {rank} does not come to its end")
        port = ModelPort(self.n, rank, self.size, answers)
        how = run(self.role, port)
        for channel in dict.fromkeys(channel for channel, _ in port.sent):
            given = [numbers for there, numbers in port.sent if there == channel]
            before = self.spans[channel]
            shorter = min(len(given), len(before))
            assert given[:shorter] == before[:shorter], f"channel {channel} depends on timing"
            self.spans[channel] = max(given, before, key=len)
        state = how, port.state()
        number = self.known[rank].get(state)
        if number is None:
            number = self.known[rank][state] = len(self.nodes[rank])
            sent: defaultdict[Channel, int] = defaultdict(int)
            for channel, _ in port.sent:
                sent[channel] += 1
            asked = None if how == "is at its end" else port.asked
            taken = port.taken[asked] if asked else 0
            self.nodes[rank].append(Node(how, asked, taken, dict(sent), {}))
        return number

    def follow(self) -> None:
        """Follow every node; where the span that it asks for is not known yet, later."""
        in_vain = 0
        while self.open and in_vain <= len(self.open):
            rank, number = self.open.popleft()
            node, answers = self.nodes[rank][number], self.answers[rank][number]
            if node.how == "looks" and False not in node.then:
                self.go(rank, number, False, (*answers, None))
            if node.channel is None or True in node.then:
                continue
            if node.taken < len(self.spans[node.channel]):
                in_vain = 0
                self.go(rank, number, True, (*answers, self.spans[node.channel][node.taken]))
            else:
                in_vain += 1
                self.open.append((rank, number))

    def go(self, rank: int, number: int, there: bool, answers: Answers) -> None:
        found = self.node(rank, answers)
        self.nodes[rank][number].then[there] = found
        if found not in self.answers[rank]:
            self.answers[rank][found] = answers
            self.open.append((rank, found))

    def explore(self) -> tuple[int, int, int]:
        """Visit every combination that can be; return how many states, transitions and ends.

        An end is a state with those who are dead, none or any, in which no other can go on.
        """
        first = (0,) * self.size
        known, todo = {first}, [first]
        transitions = ends = complete = 0
        while todo:
            state = todo.pop()
            nodes = [self.nodes[rank][number] for rank, number in enumerate(state)]
            there = [self.is_there(node, nodes) for node in nodes]
            complete += all(node.channel is None for node in nodes)
            ends += self.check_waiting(nodes, there)
            for rank, node in enumerate(nodes):
                for found, follows in node.then.items():
                    if found and not there[rank]:
                        continue
                    transitions += 1
                    after = (*state[:rank], follows, *state[rank + 1 :])
                    if after not in known:
                        known.add(after)
                        todo.append(after)
        assert complete == 1, "all come to the same end, whoever was slow"
        return len(known), transitions, ends

    def is_there(self, node: Node, nodes: Sequence[Node]) -> bool:
        """Tell whether what a node asks for has been sent."""
        if node.channel is None:
            return False
        return nodes[node.channel[0]].sent.get(node.channel, 0) > node.taken

    def check_waiting(self, nodes: Sequence[Node], there: Sequence[bool]) -> int:
        """Check that all who cannot go on wait for the dead, whoever is; return in how many cases.

        What the dead have sent and what is not there yet is lost.
        """
        ranks, ends = set(range(self.size)), 0
        at_their_end = {rank for rank in ranks if nodes[rank].channel is None}
        for count in range(self.size):
            for dead in itertools.combinations(ranks, count):
                stuck = {
                    rank
                    for rank in ranks.difference(at_their_end, dead)
                    if (channel := nodes[rank].channel) is not None
                    and nodes[rank].how == "waits"
                    and (channel[0] in dead or not there[rank])
                }
                if stuck.union(at_their_end, dead) == ranks:
                    ends += 1
                    for rank in stuck:
                        check_chain(rank, [node.channel for node in nodes], dead)
        return ends


def check_chain(rank: int, channels: Sequence[Channel | None], dead: Sequence[int]) -> None:
    """Check that a rank that cannot go on waits for one of the dead, through whomever."""
    chain = [rank]
    while (channel := channels[chain[-1]]) is not None:
        chain.append(channel[0])
        if chain[-1] in dead:
            return
        assert chain.count(chain[-1]) == 1, f"deadlock: {chain} with {dead} dead"
    raise AssertionError(f"rank {chain[-2]} waits for {chain[-1]}, which is at its end")
