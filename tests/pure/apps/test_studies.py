"""What the studies make of their runs: medians, ties, who wins and loses where, and verdicts."""

from __future__ import annotations

import pytest
from studies import faults, standings
from studies.compression_table import COSTS, FAILS, OPEN, PAYS, cells
from studies.faults import FAULTS, MODES
from studies.softsync_lines import Errors, lines_of

from support.cases import each


def runs(mode, *seconds, scenario="calm", **fields):
    """Return a row for each seed's time."""
    defaults = {
        "test_accuracy": 0.96, "staleness_mean": 0.0, "staleness_max": 0, "dropped": 0,
        "waiting_share": 0.0, "bytes_sent": 10, "samples_per_second": 5.0,
    }  # fmt: skip
    return [
        {"mode": mode, "scenario": scenario, "seed": seed, "parameters_sha256": f"{mode} {seed}"}
        | {"seconds_to_accuracy": time}
        | defaults
        | fields
        for seed, time in enumerate(seconds)
    ]


def test_medians_are_of_the_seeds():
    rows = runs("sync", 3.0, 1.0, 2.0, staleness_mean=1.5)
    rows[0]["test_accuracy"] = 0.9
    [cell] = standings.medians(rows)
    assert (cell["seconds_to_accuracy"], cell["fastest"], cell["slowest"]) == (2.0, 1.0, 3.0)
    assert (cell["runs"], cell["reached"], cell["staleness_mean"]) == (3, 3, 1.5)
    assert (cell["test_accuracy"], cell["worst_accuracy"]) == (0.96, 0.9)


@each(("seconds", "median", "spread", "reached"), [
    ((1.0, None, 2.0), 2.0, (1.0, None), 2),
    ((1.0, None, None), None, (1.0, None), 1),
    ((None, None), None, (None, None), 0),
])  # fmt: skip
def test_never_is_longer_than_any_time(seconds, median, spread, reached):
    [cell] = standings.medians(runs("sync", *seconds))
    assert cell["seconds_to_accuracy"] == median
    assert (cell["fastest"], cell["slowest"], cell["reached"]) == (*spread, reached)


def standing(*groups, **options):
    rows = [row for group in groups for row in group]
    return [(c["standing"], c["ratio"]) for c in standings.medians(rows, **options)]


@each(("other", "expected"), [
    ((1.5, 3.0, 4.0), "tied"),  # the best's median is in its spread
    ((1.9, 2.0, 4.0), "tied"),  # or the other way round
    ((1.51, 2.01, 4.0), "behind"),  # the spreads overlap, but no median
    ((1.0, 3.0, None), "behind"),  # no tie with what does not always get there
    ((None, None, None), "never"),
    ((1.5, None, None), "never"),
])  # fmt: skip
def test_a_standing_is_beside_the_best(other, expected):
    (first, one), (second, ratio) = standing(runs("best", 1.0, 1.5, 2.0), runs("other", *other))
    assert (first, one) == ("first", 1.0)
    assert second == expected
    assert ratio == (None if expected == "never" else pytest.approx(other[1] / 1.5))


def test_near_is_within_a_tenth_but_apart_and_a_baseline_does_not_compete():
    groups = [runs(str(seconds), seconds) for seconds in (1.0, 1.0, 1.1, 1.11)]
    assert [word for word, _ in standing(*groups)] == ["first", "near", "behind"]
    found = standing(runs("serial", 1.0), runs("a", 2.0), baseline="serial")
    assert found == [("baseline", 0.5), ("first", 1.0)]


def compressed(setting, seconds, *, accuracy=0.95, sent=1e6, link="slow", mode="sync", lr=0.1):
    return {
        "mode": mode, "setting": setting, "link": link, "lr": lr, "bytes_sent": sent,
        "test_accuracy": accuracy, "seconds_to_accuracy": seconds,
    }  # fmt: skip


PLAIN = [compressed("none", seconds) for seconds in (4.0, 5.0, 6.0)]


def compression_standing(*seconds):
    found = cells([*PLAIN, *[compressed("sign", it) for it in seconds]])
    return found[1]["standing"], found[1]["ratio"]


@pytest.mark.parametrize(("seconds", "expected"), [
    ((1.0, 3.9, 9.0), (PAYS, 0.78)),
    ((4.0, 4.0, 4.0), (OPEN, 0.8)),
    ((6.0, 6.0, 6.0), (OPEN, 1.2)),
    ((1.0, 6.1, 6.2), (COSTS, 1.22)),
    ((1.0, None, None), (FAILS, None)),
])  # fmt: skip
def test_a_codec_pays_where_its_median_is_outside_the_spread(seconds, expected):
    found, ratio = compression_standing(*seconds)
    assert (found, ratio) == (expected[0], pytest.approx(expected[1]))


def softsync(n, rate, error, histogram=(0, 1)):
    diverged = error is None
    return {
        "softsync": n, "staleness_rate": rate, "test_error": error,
        "errors": [] if diverged else [[1, 0.5], [2, error]],
        "histogram": None if diverged else list(histogram),
    }  # fmt: skip


def test_lines_pool_the_runs_of_an_n():
    rows = [
        softsync(30, "constant", 0.9, [0] * 29 + [3]),
        softsync(30, "inverse", 0.05, [0] * 60 + [4, 1]),  # 60 is 2n: only the last is beyond
        softsync(1, "inverse", 0.02, [0, 8, 1, 1]),
        softsync(30, "inverse", 0.03, [0, 0]),
    ]
    thirty, one = lines_of(rows)
    assert (thirty.n, one.n) == (30, 1)
    assert thirty.staleness.histogram == {29: 3, 60: 4, 61: 1}
    assert thirty.staleness.mean == pytest.approx((3 * 29 + 4 * 60 + 61) / 8)
    assert (thirty.staleness.max, thirty.beyond) == (61, 1 / 8)
    assert (one.staleness.mean, one.staleness.max, one.beyond) == (1.3, 3, 0.1)
    assert list(thirty.errors) == list(one.errors) == ["constant", "inverse"]
    assert thirty.errors["inverse"] == Errors((0.05, 0.03), 0)
    assert one.errors["constant"] == Errors((), 0)


def test_the_page_has_every_row_and_no_other():
    page = faults.PAGE.read_text()
    table = page[page.index(faults.BEGIN) : page.index(faults.END)].splitlines()[3:]
    rows = [(fault, mpi) for fault in FAULTS for mpi in faults.VENVS]
    for row, (fault, mpi) in zip(table, rows, strict=True):
        begin = f"{faults.key(mpi, fault)} {fault.promised(mpi)} |"
        assert row.startswith(begin)
        cells = row.removeprefix(begin).split("|")[:-1]
        tried = [mode for mode, cell in zip(MODES, cells, strict=True) if cell.strip()]
        assert tried == [mode for mode in MODES if mode in fault.modes]
