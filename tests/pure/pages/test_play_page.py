"""The page of a film: small, thinned where it must be, readable without scripts, and its own."""

import json

import pytest

from psrt.errors import ConfigError
from psrt.explain.inputs import Example
from psrt.pages.play import page
from psrt.pages.play.collective import film_of
from psrt.pages.play.thin import thinned
from support.explanations import EXAMPLE, explained
from support.pages import Page


@pytest.fixture(scope="module")
def film():
    return film_of(explained("ring", example=EXAMPLE, order=(0, 1, 3, 2)))


@pytest.mark.parametrize("most", [2, 3, 5, 7])
def test_a_thinned_film_ends_alike_and_says_so(film, most):
    thin = thinned(film, most)
    assert 2 <= len(thin.frames) <= most
    assert thin.holds(-1) == film.holds(-1)
    assert (thin.frames[0].label, thin.frames[-1].label) == ("start", "result")
    assert thin.notes[-1].startswith(f"Of 8 steps {len(thin.frames)} are shown, one in ")
    for i, frame in enumerate(thin.frames):
        at = [it.label for it in film.frames].index(frame.label)
        assert thin.holds(i) == film.holds(at)
    assert len({(it.rank, it.at) for it in thin.frames[-1].changes}) == len(thin.frames[-1].changes)


def test_a_short_film_stays_whole(film):
    assert thinned(film, 8) is film


def test_a_page_that_would_be_too_large_is_thinned(film, monkeypatch):
    whole = page.page_of(film)[0]
    monkeypatch.setattr(page, "MOST_NBYTES", len(whole.encode()) - 1)
    thin, shown = page.page_of(film)
    assert len(shown.frames) == 5
    assert len(thin.encode()) < len(whole.encode())
    # 6, the first of 400, 200, … that is less than 8, leaves every second one, and the last.
    assert "Of 8 steps 5 are shown, one in 2" in Page(thin).text
    monkeypatch.setattr(page, "MOST_NBYTES", 1000)
    with pytest.raises(ConfigError, match="explain it of fewer ranks or steps"):
        page.page_of(film)


def test_without_scripts_there_is_a_table_of_all_steps(film):
    found = Page(page.page_of(film)[0])
    rows = found.tables["steps"][1]
    assert [row[0] for row in rows[1:]] == [it.label for it in film.frames]
    assert "C → A: chunk 0 (37)   A: 37" in rows[5][2]
    assert rows[1][3] == "A: 17 11 1 9; B: 5 13 23 14; C: 3 6 10 8; D: 12 7 2 12"
    assert rows[2][3].startswith("A: 17 11 1 17; B: 22 13 23 14; ")
    assert rows[7][3] == "; ".join(f"{name}: 37 37 36 43" for name in "ABCD")
    assert "all ranks end with (37, 37, 36, 43)" in rows[8][1]
    assert ["rounds", "6", "2"] in found.tables["steps"][0]


def test_what_the_player_reads_is_the_film(film):
    found = dict(Page(page.page_of(film)[0]).scripts)
    [data] = json.loads(found["application/json"])
    assert data["names"] == ["A", "B", "C", "D"]
    assert len(data["frames"]) == len(film.frames)
    held = [dict(enumerate(cells)) for cells in data["start"]]
    for frame in data["frames"]:
        for rank, index, *cell in frame.get("changes", []):
            held[rank][index] = cell
    assert [held[0][i][0] for i in range(4)] == ["37", "37", "36", "43"]


def test_names_of_ranks_do_nothing():
    evil = "</script><img src=x onerror=alert(1)>"
    example = Example((evil, "B"), EXAMPLE.values[:2])
    found = Page(page.page_of(film_of(explained("ring", example=example)))[0])
    assert not [tag for tag, _ in found.elements if tag == "img"]
