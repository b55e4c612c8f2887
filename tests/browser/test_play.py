"""A page that plays an explanation, in a real browser: pressed, looked at, and read."""

import pytest

from psrt.codec.table import Sign
from psrt.config import TrainConfig
from psrt.pipeline import PIPELINES
from psrt.views.explain.codec import run as coded
from psrt.views.explain.exchange import run as exchanged
from psrt.views.explain.gossip import explained as mixed
from psrt.views.explain.pipeline import explained as piped
from psrt.views.explain.timeline import run
from psrt.views.film import codec, collective, exchange, gossip, page, pipeline, timeline
from support.browser import tab_in
from support.explanations import EXAMPLE, explained

#: By rank, the texts of its cells.
HELD = """[...document.querySelectorAll('.strip')].map((strip) =>
  [...strip.querySelectorAll('[data-cell]')].sort((a, b) => a.dataset.cell - b.dataset.cell)
    .map((it) => it.textContent).join(' '))"""
STEP = "Number(document.documentElement.dataset.step)"
SAID = "document.querySelector('.said').textContent"
#: Texts that reach beyond the picture.
OUTSIDE = """(() => {
  const picture = document.querySelector('.chart > svg').getBoundingClientRect();
  return [...document.querySelectorAll('.chart > svg text')].filter((it) => {
    const box = it.getBoundingClientRect();
    return box.left < picture.left || box.right > picture.right || box.top < picture.top ||
      box.bottom > picture.bottom;
  }).map((it) => it.textContent);
})()"""
#: The film of each kind of explanation.
FILMS = {
    "ring": lambda: collective.film_of(explained("ring", example=EXAMPLE, order=(0, 1, 3, 2))),
    "pipeline": lambda: pipeline.film_of(piped(PIPELINES["zero-bubble"], 3, 4)),
    "timeline": lambda: timeline.film_of(
        run(TrainConfig(mode="ssp:staleness=1", steps=3), workers=3, slow={1: 3.0})
    ),
    "exchange": lambda: exchange.film_of(
        exchanged(TrainConfig(mode="sync", steps=1, shards_per_server=2), workers=2, slow={})
    ),
    "gossip": lambda: gossip.film_of(mixed("star", 4, nbytes=4)),
    "codec": lambda: codec.film_of(coded(Sign(8), (1.5, -2.0, 0.25), error_feedback=True)),
    "broadcast": lambda: collective.film_of(explained("broadcast", size=5)),
    "double-tree": lambda: collective.film_of(explained("double-tree", size=8, n=16)),
}


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tab")
    with tab_in(folder) as tab:
        tab.colours("light")
        yield tab


@pytest.fixture
def opened(tab, tmp_path):
    """Returns the tab with the page of a film in it."""

    def show(kind):
        path = tmp_path / "page.html"
        path.write_text(page.page_of(FILMS[kind]())[0])
        tab.console.clear()
        tab.requests.clear()
        tab.open(path)
        return tab

    return show


@pytest.mark.parametrize("kind", FILMS)
def test_every_step_is_drawn_without_a_word_and_without_a_network(opened, kind):
    tab, film = opened(kind), FILMS[kind]()
    for number, frame in enumerate(film.frames):
        assert tab.ask(STEP) == number
        assert tab.ask(SAID) == frame.caption
        arrows = [it for it in frame.messages if it.source != it.target]
        assert tab.ask("document.querySelectorAll('.arrow').length") == len(arrows)
        lines = tab.ask("[...document.querySelectorAll('.lines li')].map((it) => it.textContent)")
        assert lines == [it.line for it in frame.messages]
        assert tab.ask(OUTSIDE) == []
        tab.press("ArrowRight")
    assert tab.ask(STEP) == len(film.frames) - 1
    assert tab.console == []
    assert [it for it in tab.requests if not it.startswith("file:")] == []


def test_keys_go_to_every_step_and_the_worked_example_ends_with_its_sums(opened):
    tab = opened("ring")
    assert tab.ask(HELD) == ["17 11 1 9", "5 13 23 14", "3 6 10 8", "12 7 2 12"]
    for keys, number in (
        (["ArrowRight"], 1), (["ArrowRight", "ArrowRight"], 3), (["ArrowLeft"], 2), (["End"], 7),
        (["ArrowRight"], 7), (["Home"], 0), (["ArrowLeft"], 0),
    ):  # fmt: skip
        tab.press(*keys)
        assert tab.ask(STEP) == number
        assert tab.ask("document.querySelector('.controls input').value") == str(number)
    tab.ask("document.querySelector('.controls .last').click()")
    assert tab.ask(HELD) == ["37 37 36 43"] * 4


def test_a_space_plays_to_the_end_and_stops(opened):
    tab = opened("ring")
    tab.press("End", "ArrowLeft", " ")
    assert tab.ask("document.documentElement.dataset.plays") == "true"
    tab.wait(f"{STEP} === 7")
    tab.wait("document.documentElement.dataset.plays === 'false'")
    tab.press(" ")  # at the end it begins anew
    assert tab.ask(STEP) == 0
    tab.press(" ")
    assert tab.ask("document.documentElement.dataset.plays") == "false"


def test_a_film_alone_plays_by_itself_again_and_again_unless_nothing_is_to_move(tab, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page.page_of(FILMS["broadcast"]())[0])
    tab.open(path, "?film")
    assert tab.ask("document.documentElement.dataset.plays") == "false"
    try:
        tab.call("Emulation.setEmulatedMedia", features=[])
        tab.open(path, "?film")
        tab.wait(f"{STEP} === 4")
        tab.wait(f"{STEP} === 0")
        assert tab.ask("document.documentElement.dataset.plays") == "true"
        assert tab.ask("getComputedStyle(document.querySelector('.lines')).display") == "none"
    finally:
        tab.colours("light")


COLOURS = """(() => {
  const of = (selector, key) => getComputedStyle(document.querySelector(selector))[key];
  return [
    of("body", "backgroundColor"), of(".held", "fill"), of(".message", "stroke"),
    of(".node", "fill"),
  ];
})()"""


def test_dark_has_other_colours_than_light(opened):
    tab = opened("ring")
    tab.press("ArrowRight")
    light = tab.ask(COLOURS)
    tab.colours("dark")
    dark = tab.ask(COLOURS)
    tab.colours("light")
    assert tab.ask(COLOURS) == light
    assert [one == other for one, other in zip(light, dark, strict=True)] == [False] * 4
    assert light[0] == "rgb(255, 255, 255)"


def test_without_scripts_every_step_is_read(tab, opened):
    tab.scripts(run=False)
    try:
        opened("ring")
        assert tab.ask("document.querySelector('.controls')") is None
        assert "in the table below" in tab.ask("document.querySelector('.chart').innerText")
        rows = "[...document.querySelectorAll('#steps details tbody tr')].map((it) => it.innerText)"
        tab.ask("document.querySelector('#steps summary').click()")
        texts = tab.ask(rows)
    finally:
        tab.scripts(run=True)
    assert len(texts) == 8
    assert "B → D: chunk 3 (31)" in texts[3]
    assert "C: 37 37 36 43" in texts[6]
    assert "(37, 37, 36, 43)" in texts[-1]


@pytest.mark.parametrize("kind", FILMS)
def test_it_fits_a_narrow_screen(opened, kind):
    tab = opened(kind)
    tab.size(400, 900)
    wide = tab.ask("document.documentElement.scrollWidth")
    tab.size(1000, 900)
    assert wide <= 400
