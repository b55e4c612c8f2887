"""Which ranks are servers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.errors import ConfigError
from psrt.job.build import role_map_for
from psrt.job.roles import assign_roles
from psrt.partition import Span, even_spans


@pytest.mark.parametrize(
    ("hosts", "servers", "placement", "expected"),
    [
        ([0, 0, 0, 0], 2, "first", (0, 1)),
        ([0, 0, 0, 0], 2, "last", (2, 3)),
        ([0, 0, 0, 0], 2, "spread", (2, 3)),
        ([0, 0, 1, 1], 2, "spread", (1, 3)),
        ([0, 1, 0, 1], 2, "spread", (2, 3)),
        ([0, 0, 0, 1, 1], 3, "spread", (1, 2, 4)),
        ([7, 3, 3], 2, "spread", (0, 2)),
        ([0, 0, 1, 1], 1, "spread", (1,)),
        ([0, 0], 0, "first", ()),
        ([0, 0], 0, "last", ()),
        ([0, 0], 0, "spread", ()),
    ],
)
def test_placements(hosts, servers, placement, expected):
    assert assign_roles(hosts, servers, placement)[0] == expected


@given(
    hosts=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    placement=st.sampled_from(["first", "last", "spread"]),
    data=st.data(),
)
def test_every_rank_has_one_role_and_hosts_share_evenly(hosts, placement, data):
    count = data.draw(st.integers(0, len(hosts) - 1))
    servers, workers = assign_roles(hosts, count, placement)
    assert sorted(servers + workers) == list(range(len(hosts)))
    assert (len(servers), sorted(servers), sorted(workers)) == (count, [*servers], [*workers])
    if placement == "spread":
        on = {host: sum(hosts[rank] == host for rank in servers) for host in hosts}
        with_room = [on[host] for host in on if on[host] < hosts.count(host)]
        assert not with_room or max(on.values()) - min(with_room) <= 1


def test_a_worker_must_be_left():
    with pytest.raises(ConfigError, match="2 servers among 2 ranks leave no worker"):
        assign_roles([0, 0], 2)


def test_an_unknown_placement_is_refused():
    with pytest.raises(ConfigError, match="placement must be spread, first or last, got 'middle'"):
        assign_roles([0, 0], 1, "middle")


def test_shards_are_dealt_out_to_the_servers_in_turn():
    """So the shards of the last layers, which are pushed first, are at all of them."""
    layers = [Span(4, 12), Span(0, 4)]
    role_map = role_map_for(12, (5, 2), (0, 1, 3, 4), shards_per_server=3, layers=layers)
    assert role_map.servers == (5, 2, 5, 2, 5, 2)
    assert [role_map.shards_of(rank) for rank in (5, 2)] == [(0, 2, 4), (1, 3, 5)]
    assert role_map.spans == even_spans(12, 6)
    with pytest.raises(ConfigError, match="14 shards of 12 parameters"):
        role_map_for(12, (5, 2), (0, 1), shards_per_server=7)


def test_one_shard_each_is_an_even_cut_whatever_the_layers():
    role_map = role_map_for(11, (2, 5), (0, 1), layers=[Span(6, 11), Span(0, 6)])
    assert (role_map.servers, role_map.spans) == ((2, 5), even_spans(11, 2))
