"""Fixtures of many folders, and the tables that tests fill by their properties."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

from support.recording import COSTS
from support.temporary import temporary

__all__ = ["temporary"]

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("psrt", deadline=None)
hypothesis.settings.load_profile("psrt")


@pytest.fixture(scope="session", params=COSTS)
def costs(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def explored(record_property: Callable[[str, Any], None]) -> Callable[..., None]:
    """Report how many (states, transitions, ends) an exploration found; they add up.

    As a property of the test, which also reaches the summary from another process (pytest-xdist).
    """

    def add(columns: str, row: str, column: str, found: tuple[int, int, int]) -> None:
        record_property("explored", [columns, row, column, list(found)])

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    properties = defaultdict(list)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    properties[name].append(value)
    if properties["explored"]:
        _tell_explorations(terminalreporter, properties["explored"])
    if properties["mutants"]:
        terminalreporter.section("broken schedules")
        terminalreporter.line(f"{'schedule':24} mutants  refuted  equivalent, all of them swaps")
        for name, refuted, equivalent in sorted(properties["mutants"]):
            total = refuted + equivalent
            share = f"{refuted / total:7.1%}"
            terminalreporter.line(f"{name:24} {total:7}  {share}  {equivalent}")


def _tell_explorations(terminalreporter: Any, found: list[Any]) -> None:
    tables: dict[str, dict[str, dict[str, list[int]]]] = {}
    for columns, row, column, numbers in found:
        cells = tables.setdefault(columns, {}).setdefault(row, {})
        before = cells.get(column, [0, 0, 0])
        cells[column] = [a + b for a, b in zip(before, numbers, strict=True)]
    for columns, rows in tables.items():
        terminalreporter.section(f"every interleaving, with leaves and deaths: states by {columns}")
        names = sorted({column for cells in rows.values() for column in cells})
        lines = [["", *names, "transitions", "ends"]]
        totals = [0, 0, 0]
        for row, cells in rows.items():
            sums = [sum(numbers) for numbers in zip(*cells.values(), strict=True)]
            states = [str(cells[name][0]) if name in cells else "" for name in names]
            lines.append([row, *states, *map(str, sums[1:])])
            totals = [a + b for a, b in zip(totals, sums, strict=True)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells_of_line = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
            terminalreporter.line("  ".join([line[0].ljust(widths[0]), *cells_of_line[1:]]))
        terminalreporter.line("in all {} states, {} transitions, {} ends".format(*totals))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved, to look into."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    saved: list[Any] = []
    save = Figure.savefig

    def keep(figure: Any, path: Any, **options: Any) -> None:
        saved.append(figure)
        save(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved
