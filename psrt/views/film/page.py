"""The page that plays a film: the player, and a table of its steps for those without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator

from psrt.core.errors import ConfigError
from psrt.views.film.film import Film
from psrt.views.film.thin import coarse, thinned
from psrt.views.page import assets
from psrt.views.page.frame import render
from psrt.views.page.parts import Figure, Note, Part, Section, Table

#: Most bytes of a page.
MOST_NBYTES = 1_000_000
#: Most frames of a page; fewer if it would be too large.
_MOST_FRAMES = 400
#: Most cells of all ranks that can be distinguished.
MOST_CELLS = 2048
#: Most bars of lanes; more would be narrower than a hair.
_MOST_BARS = 8000
_WITHOUT = "The steps are in the table below; playing them needs JavaScript."


def page_of(film: Film) -> tuple[str, Film]:
    """Return the page, as HTML, and the film that it plays.

    If the film is too long for a page, it is a shortened one, whose notes say so.

    Raises:
        ConfigError: if jinja2 is not installed, there are too many cells, or even two frames are
            too large.
    """
    if (cells := sum(map(len, film.start))) > MOST_CELLS:
        raise ConfigError(
            f"html would show {cells} chunks of all ranks, at most {MOST_CELLS}: give fewer ranks "
            "or fewer --bytes"
        )
    film, most = coarse(film, _MOST_BARS), _MOST_FRAMES
    while True:
        shown = thinned(film, most)
        page = _page(shown)
        if len(page.encode()) <= MOST_NBYTES:
            return page, shown
        if most <= 2:
            raise ConfigError(
                f"html would take more than {MOST_NBYTES // 1_000_000} MB: explain it for fewer "
                "ranks or steps"
            )
        most = max(2, most // 2)


def _page(film: Film) -> str:
    parts: list[Part] = [
        *(Note(note, "missing") for note in film.notes),
        Figure(film.title, _WITHOUT, caption=" ".join(film.reading), data=film.data(), wide=True),
    ]
    if facts := [*film.facts, *[("in short", film.lesson)] * bool(film.lesson)]:
        parts.append(Table(facts))
    head = "step", "", "messages", "what ranks hold afterwards, if it has changed"
    table = Table(list(_rows(film)), head=head, caption="All steps", folded=True)
    rows = [(it.name, it.whole, it.least) for it in film.costs]
    costs = Table(rows, head=("", "in all", film.bound), caption="Cost", numbers=True)
    sections = [
        Section("play", "Step by step", parts),
        Section("steps", "As a table", [costs, table]),
    ]
    return render(
        film.title, film.lead, sections, scripts=(assets.player(),), style=assets.player_style()
    )


def _rows(film: Film) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each step: its name, what happens, messages, and what ranks hold then."""
    held = [list(cells) for cells in film.start]
    for i, it in enumerate(film.frames):
        for rank, at, cell in it.changes:
            held[rank][at] = cell
        ranks = range(len(held)) if i == 0 else sorted({change.rank for change in it.changes})
        texts = [(film.names[rank], " ".join(cell.text for cell in held[rank])) for rank in ranks]
        yield (
            it.label,
            it.caption,
            "; ".join(message.line for message in it.messages),
            "; ".join(f"{name}: {text}" for name, text in texts if text.strip()),
        )
