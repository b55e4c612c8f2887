"""What goes wrong, as texts: each is read, written and counted over attempts."""

from __future__ import annotations

import pytest

from psrt.config.faults import KINDS, Elapsed, Fault, read_fault
from psrt.errors import ConfigError
from support.cases import each

WORKERS, SERVERS, HOSTS = (2, 3, 4), (0, 1), (0, 0, 1, 1, 2)


@each(
    ("text", "fault"),
    [
        ("crash:worker1@event120", Fault("crash", (("worker", 1),), "event", 120)),
        ("disk:torn@op7", Fault("disk", (), "op", 7, how="torn")),
        ("slow:rank1:50@1s+2s", Fault("slow", (("rank", 1),), "s", 1.0, 2.0, 50.0)),
        ("pause:rank1@event3+2s", Fault("pause", (("rank", 1),), "event", 3, 2.0)),
        ("crash:rank3@2.5s", Fault("crash", (("rank", 3),), "s", 2.5)),
        ("crash:host0@0s+1e-3s", Fault("crash", (("host", 0),), "s", 0.0, 1e-3)),
        (
            "crash:worker1,server0@event1+2s",
            Fault("crash", (("worker", 1), ("server", 0)), "event", 1, 2.0),
        ),
    ],
)
def test_a_fault_is_read_and_written(text, fault):
    assert read_fault(text) == fault
    assert read_fault(str(fault)) == fault


@each(
    "text",
    [
        *("pause:worker1:2@1s", "cut:worker1@op1", "slow:worker1@1s", "slow:worker1:0.5@1s"),
        *("suspect:worker1@1s+1s", "pause:full@1s", "disk:full@1s", "disk:worker1@op1"),
        *("disk:slow@op1", "disk:full@op1+1s", "disk:full@event1"),
    ],
)
def test_each_kind_takes_what_it_needs(text):
    kind = text.partition(":")[0]
    with pytest.raises(ConfigError, match=f"^fault must be {kind}:(WHO|HOW)"):
        read_fault(text)


@each(
    "text",
    [
        *("crash", "crash:worker1", "crash:@1s", "crash:worker1@1", "crash:worker@1s"),
        *("crash:worker1@event0", "crash:worker1@event1.5", "crash:worker1@-1s", "crash:full@1s"),
        *("crash:worker1@1s+1", "crash:worker1@op3", "crash:worker1:2@1s", "crash:worker1,@1s"),
        *("crash:worker1@nans", "crash:worker1@1e10s", "crash:worker1 @1s", "crash:worker-1@1s"),
    ],
)
def test_what_is_no_fault_is_refused_with_its_form(text):
    line = rf"^fault must be {KINDS['crash'].form}, with a WHO like .*, got '{text}'$"
    with pytest.raises(ConfigError, match=line.replace("+", r"\+").replace("[", r"\[")):
        read_fault(text)


def test_an_unknown_kind_is_told_which_there_are():
    with pytest.raises(ConfigError, match=r"^fault must be one of crash:WHO@WHEN.*, got 'fire:x'$"):
        read_fault("fire:x")


@each(
    ("who", "ranks"),
    [
        ("worker1", [3]),
        ("server1", [1]),
        ("rank4", [4]),
        ("host0", [0, 1]),
        ("worker0,host1,rank0", [2, 3, 0]),
    ],
)
def test_who_is_which_rank(who, ranks):
    assert read_fault(f"crash:{who}@1s").ranks(WORKERS, SERVERS, HOSTS) == ranks


@each(
    ("who", "line"),
    [
        ("worker3", "worker 3, the last is 2"),
        ("server2", "server 2, the last is 1"),
        ("rank5", "rank 5, the last is 4"),
        ("host3", "host 3, the last is 2"),
    ],
)
def test_there_must_be_such_a_rank(who, line):
    with pytest.raises(ConfigError, match=f"names {line}$"):
        read_fault(f"crash:{who}@1s").ranks(WORKERS, SERVERS, HOSTS)


def test_without_servers_there_is_none():
    with pytest.raises(ConfigError, match=r"names server 0, there is none$"):
        read_fault("crash:server0@1s").ranks((0, 1), (), (0, 0))


@each(
    ("text", "left"),
    [
        *(("event101", "event1"), ("event250", "event150"), ("event100", "event1")),
        *(("5.5s", "0.5s"), ("5.0s", "0s"), ("4.0s", "0s")),
    ],
)
def test_faults_are_counted_from_the_start_of_the_job(text, left):
    fault = read_fault(f"crash:worker0@{text}")
    assert Elapsed().since(fault) == fault
    assert Elapsed(events=100, seconds=5.0).since(fault) == read_fault(f"crash:worker0@{left}")
