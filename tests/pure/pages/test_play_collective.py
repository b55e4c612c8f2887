"""A collective as a film: what it shows is what the trace and the prices say."""

import pytest

from psrt.collective import SCHEDULES
from psrt.errors import ConfigError
from psrt.explain.inputs import Example
from psrt.pages.play.collective import film_of
from support.explanations import EXAMPLE, explained

SIZES = (1, 2, 5, 8)


def ring():
    return explained("ring", example=EXAMPLE, order=(0, 1, 3, 2))


def texts(cells):
    return [cell.text for cell in cells]


def test_the_worked_example_ends_as_its_page_says():
    film = film_of(ring())
    assert [texts(held) for held in film.holds(-1)] == [["37", "37", "36", "43"]] * 4
    assert film.frames[-1].caption == "all ranks end with (37, 37, 36, 43)"
    assert texts(film.holds(0)[0]) == ["17", "11", "1", "9"]
    assert texts(film.holds(1)[1]) == ["22", "13", "23", "14"]
    assert film.frames[1].messages[0].line == "A → B: chunk 0 (17)   B: 17 + 5 = 22"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_messages_are_those_of_the_plan_and_the_end_is_the_proved_one(name, size):
    shown = explained(name, size=size, n=3 * size)
    film = film_of(shown)
    hops = [hop for _, hops in shown.trace.by_round() for hop in hops]
    messages = [it for frame in film.frames for it in frame.messages]
    assert [(it.source, it.target) for it in messages] == [(it.source, it.target) for it in hops]
    assert sum(it.source != it.target for it in messages) == shown.totals.price.messages
    for rank, held in enumerate(film.holds(-1)):
        assert [i for i, cell in enumerate(held) if cell.style >= 0] == sorted(
            cell for cell, _ in shown.result(rank)
        )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_costs_add_up_to_the_price(name, size):
    shown = explained(name, size=size, n=3 * size)
    film = film_of(shown)
    for row, cost in enumerate(film.costs):
        shares = [frame.costs[row].share for frame in film.frames]
        assert shares == sorted(shares)
        assert film.frames[-1].costs[row].text == cost.whole
        assert shares[-1] in (0, pytest.approx(1))
    totals = shown.totals
    assert len(totals.arrivals) == totals.price.rounds
    assert all(it <= totals.price.seconds * (1 + 1e-9) for it in totals.arrivals)


def test_a_round_takes_its_time():
    film = film_of(explained("ring", size=4, n=1000))
    assert [frame.costs[3].share for frame in film.frames[:5:2]] == [
        0, pytest.approx(1 / 3, abs=0.05), pytest.approx(2 / 3, abs=0.05),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "shown",
    [
        explained("ring", size=4, n=16), explained("ring", size=32, n=1024),
        explained("all-to-all", size=12, n=144),
        explained("ring", example=Example(("a machine", "of", "some rack or other"), ((1,),) * 3)),
    ],
    ids=["4", "32", "table", "names"],
)  # fmt: skip
def test_nothing_on_the_circle_overlaps(shown):
    film = film_of(shown)
    columns = min(film.scene.strip.columns, len(film.start[0]))
    wide, high = (
        columns * film.scene.strip.width,
        -(-len(film.start[0]) // columns) * film.scene.strip.height,
    )
    for i, one in enumerate(film.scene.nodes):
        assert 0 <= one.left <= one.left + wide <= film.scene.width
        assert 0 <= one.top <= one.top + high <= film.scene.height
        for j, other in enumerate(film.scene.nodes):
            x = min(max(other.x, one.left), one.left + wide)
            y = min(max(other.y, one.top), one.top + high)
            assert (x - other.x) ** 2 + (y - other.y) ** 2 > film.scene.radius**2
            if i != j:
                assert abs(one.left - other.left) > wide or abs(one.top - other.top) > high


def test_what_nobody_could_see_is_refused():
    with pytest.raises(ConfigError, match="html plays at most 32 ranks, got 33"):
        film_of(explained("butterfly", size=33))
    with pytest.raises(ConfigError, match="2197 chunks of all ranks, at most 2048: give fewer"):
        film_of(explained("all-to-all", size=13, n=169))
