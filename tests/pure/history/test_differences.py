"""What differs between two runs, in words; and what does not count."""

import dataclasses

import pytest

from psrt.config import TrainConfig, resolve
from psrt.history import Header
from psrt.history.differences import differences, knob_differences


def header(*, workers=2, servers=2, **changes):
    """Return the header of an asynchronous run, or another one."""
    told = changes.pop("header", {})
    knobs = {"mode": "async", "servers": servers or None} | changes
    config = resolve(TrainConfig(**knobs), ranks=workers + servers)
    ranks = range(workers + servers)
    values = {
        "config": dataclasses.asdict(config),
        "n": 100,
        "workers": tuple(ranks[servers:]),
        "servers": tuple(ranks[:servers]),
        "spans": tuple((50 * shard, 50 * shard + 50) for shard in range(servers)),
        "initial_sha256": "a" * 64,
        "data_sha256": "b" * 64,
        "code_sha256": "c" * 64,
        "psrt": "0.1.0",
        "numpy": "2.0.0",
        "files": ("events.npy",),
        "hosts": (0,) * len(ranks),
    }
    return Header(**(values | told))


def test_the_same_run():
    assert differences(header(), header()) == []


def test_a_header_that_has_been_a_file():
    with_lists = header(hidden=(3, 4), inject=((0, "slow", (2.0, 1)),))
    assert differences(with_lists, Header.from_json(with_lists.to_json())) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 3}, "seed 3 instead of 0"),
        ({"lr": 0.5}, "lr 0.5 instead of 0.1"),
        ({"hidden": (8,)}, "hidden 8 instead of 128,64"),
        ({"dataset": "synthetic"}, "dataset synthetic instead of digits"),
        ({"staleness_rate": "inverse"}, "staleness-rate inverse instead of constant"),
        ({"clip_norm": 1.0}, "clip-norm 1 instead of none"),
        ({"workers": 3}, "3 workers instead of 2"),
        ({"header": {"psrt": "0.2.0"}}, "psrt 0.2.0 instead of 0.1.0"),
        ({"header": {"numpy": "2.1.0"}}, "numpy 2.1.0 instead of 2.0.0"),
        (
            {"header": {"code_sha256": "d" * 64}},
            "other source code of psrt (dddddddd instead of cccccccc)",
        ),
        (
            {"header": {"data_sha256": "d" * 64}},
            "other training data (dddddddd instead of bbbbbbbb)",
        ),
        ({"header": {"data_sha256": ""}}, "other training data"),
        (
            {"header": {"initial_sha256": "d" * 64}},
            "other initial parameters (dddddddd instead of aaaaaaaa)",
        ),
        ({"header": {"n": 99}}, "99 parameters instead of 100"),
        ({"header": {"spans": ((0, 40), (40, 100))}}, "shards that begin and end elsewhere"),
    ],
)
def test_one_difference(change, told):
    assert differences(header(**change), header()) == [told]


def test_several_differences():
    found = differences(header(seed=3, lr=0.5, mode="sync"), header())
    assert "seed 3 instead of 0" in found
    assert "lr 0.5 instead of 0.1" in found
    assert "mode sync instead of async" in found


def test_other_numbers_of_servers_are_told_once():
    found = differences(header(servers=1), header())
    assert found == ["servers 1 instead of 2"]


@pytest.mark.parametrize(
    "change",
    [
        {"out": "here"},
        {"log_every": 5},
        {"inject": ((0, "delay", (1.0,)),)},
        {"shared_memory": False},
        {"placement": "last"},
        {"timeout_s": 5.0},
        {"header": {"hosts": (0, 0, 1, 1)}},
        {"header": {"simulated": True}},
    ],
)
def test_what_does_not_touch_the_numbers(change):
    assert differences(header(**change), header()) == []


def summed(now="auto", then="auto", *, algorithm="ring", hosts=(0, 0, 0)):
    told = {"algorithm": algorithm}
    rest = {"mode": "allreduce", "servers": 0, "workers": 3}
    return differences(
        header(allreduce=now, header={"hosts": hosts}, **rest),
        header(allreduce=then, header=told | {"hosts": (0, 0, 0)}, **rest),
    )


def test_what_auto_chose_counts():
    assert summed("ring") == []
    assert summed("tree") == ["allreduce tree instead of ring"]
    assert summed("ring", "tree", algorithm="tree") == ["allreduce ring instead of tree"]


def test_sums_inside_hosts_ask_for_the_same_hosts():
    assert summed("node+ring", algorithm="node+ring", hosts=(5, 5, 5)) == []
    assert summed("node+ring", algorithm="node+ring", hosts=(0, 1, 1)) == [
        "ranks on other hosts, which node+ring sums by"
    ]
    assert summed("node", algorithm="node", hosts=(0, 1, 1)) == [
        "ranks on other hosts, which node sums by"
    ]
    assert summed("ring", hosts=(0, 1, 1)) == []


def test_knobs_of_another_psrt_are_passed_over():
    assert knob_differences({"warp": 9}, {}) == []


def test_hosts_inside_of_which_workers_average():
    def found(there, here):
        base = {"mode": "gossip", "by_host": True, "workers": 3, "servers": 0}
        return differences(header(**base, header={"hosts": here}),
                           header(**base, header={"hosts": there}))  # fmt: skip

    assert found((0, 0, 2), (4, 4, 7)) == []
    assert found((0, 0, 2), (0, 1, 1)) == ["ranks on other hosts, inside of which they average"]
