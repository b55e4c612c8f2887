"""A topology as a film: what it shows is what the graph, the weights and the simulation say."""

import numpy as np
import pytest

from psrt.errors import ConfigError
from psrt.explain.gossip import explained
from psrt.pages.play.gossip import film_of
from psrt.topology.names import NAMES
from psrt.topology.spectrum import disagreement, simulated
from psrt.units import size_text

CASES = [(name, False) for name in NAMES] + [("exponential", True), ("star", True)]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}{' push-sum' * case[1]}")
def pair(request):
    name, push_sum = request.param
    found = explained(name, 8, nbytes=1024, push_sum=push_sum, seed=3)
    return found, film_of(found)


def test_messages_are_the_edges_of_each_round(pair):
    found, film = pair
    for turn, frame in enumerate(film.frames[1:]):
        graph = found.graphs[turn % len(found.graphs)]
        assert [(it.source, it.target) for it in frame.messages] == sorted(graph.edges)
        edges = {film.scene.edges[i] for i in frame.edges}
        assert edges == {(min(edge), max(edge)) for edge in graph.edges}


def test_ranks_end_with_what_the_simulation_says(pair):
    found, film = pair
    topology = found.topology
    rounds = simulated(topology.matrices, push_sum=topology.push_sum, seed=3)
    values = [next(rounds) for _ in film.frames]
    assert [cells[0].text for cells in film.holds(-1)] == [f"{it:+.2f}" for it in values[-1][:, 0]]
    left = [disagreement(it) / disagreement(values[0]) for it in values]
    assert left[-1] <= 0.01 < left[-2]
    assert [it.costs[1].share for it in film.frames] == pytest.approx(left)
    assert film.costs[1].whole == film.frames[-1].costs[1].text == f"{left[-1]:.1%}"


def test_half_of_it_is_gone_when_the_explanation_says(pair):
    found, film = pair
    assert found.rounds[0].share == 0.5
    shares = [it.costs[1].share for it in film.frames]
    assert next(i for i, it in enumerate(shares) if it <= 0.5) == found.rounds[0].simulated


def test_the_gap_bounds_what_is_left(pair):
    found, film = pair
    for turn, frame in enumerate(film.frames):
        said = "by the spectral gap at most" in frame.caption
        period = found.topology.period
        assert said == (turn > 0 and turn % period == 0 and not found.topology.push_sum)
        if said:
            assert frame.costs[1].share <= found.topology.contraction ** (turn // period) + 1e-12


def test_bytes_are_beside_those_of_an_all_reduce(pair):
    found, film = pair
    rounds = len(film.frames) - 1
    assert film.costs[2].whole == size_text(round(max(found.sent) * rounds))
    assert film.costs[2].least == size_text(round(found.all_reduce))
    assert film.frames[-1].costs[2].text == film.costs[2].whole


def test_weights_are_those_of_the_matrix():
    film = film_of(explained("ring", 4, nbytes=4))
    assert film.frames[1].messages[0].line == "0 → 1: its vector, which 1 takes with 1/3"
    film = film_of(explained("exponential", 4, nbytes=4, push_sum=True))
    assert film.frames[1].messages[0].line == "0 → 1: a share of 1/3"


def test_hosts_send_the_mean_of_their_ranks():
    found = explained("ring", 7, nbytes=4, hosts=(2, 3, 2))
    film = film_of(found)
    assert len(film.scene.nodes) == 3
    assert film.frames[1].messages[0].line == "host 0 → host 1: the mean of its ranks"
    start = next(simulated(found.topology.matrices))
    assert film.holds(0)[1][0].text == f"{np.mean(start[2:5, 0]):+.2f}"


def test_a_crowd_is_drawn_and_not_listed():
    film = film_of(explained("full", 14, nbytes=4))
    assert film.notes == ("A round has 182 messages: they are drawn as lines, and not listed.",)
    assert film.frames[1].messages == ()
    assert len(film.frames[1].edges) == 91
    with pytest.raises(ConfigError, match="html plays at most 64 ranks, got 65"):
        film_of(explained("ring", 65, nbytes=4))


def test_one_that_takes_long_is_played_in_part():
    film = film_of(explained("ring", 60, nbytes=4))
    assert len(film.frames) == 101
    assert film.notes == ("Only the first 100 rounds are played.",)


def test_a_grid_begins_at_its_upper_left():
    film = film_of(explained("torus", 12, nbytes=4))
    assert len({it.y for it in film.scene.nodes[:4]}) == 1
    assert film.scene.nodes[0].x < film.scene.nodes[1].x
    assert film.scene.nodes[0].y < film.scene.nodes[4].y
