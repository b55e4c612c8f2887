import pytest
from studies.softsync_lines import Errors, lines_of, share_beyond, table


def run(n, rate, error, histogram=(0, 1)):
    diverged = error is None
    return {
        "softsync": n, "staleness_rate": rate, "test_error": error,
        "errors": [] if diverged else [[1, 0.5], [2, error]],
        "histogram": None if diverged else list(histogram),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("histogram", "limit", "share"),
    [({}, 2, 0.0), ({2: 3}, 2, 0.0), ({3: 3}, 2, 1.0), ({0: 1, 2: 1, 3: 1, 9: 1}, 2, 0.5)],
)
def test_share_beyond_counts_what_is_above_the_limit(histogram, limit, share):
    assert share_beyond(histogram, limit) == share


def test_lines_pool_the_runs_of_an_n():
    rows = [
        run(30, "constant", 0.9, [0] * 29 + [3]),
        run(30, "inverse", 0.05, [0] * 60 + [4, 1]),  # 60 is 2n: only the last is beyond
        run(1, "inverse", 0.02, [0, 8, 1, 1]),
        run(30, "inverse", 0.03, [0, 0]),
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


@pytest.mark.parametrize(
    ("known", "diverged", "text"),
    [
        ((0.9,), 0, "90.0"),
        ((0.03, 0.05), 0, "4.0 (5.0)"),
        ((0.9,), 2, "90.0, 2 of 3 diverged"),
        ((), 3, "diverged"),
        ((), 0, "–"),
    ],
)
def test_errors_tell_mean_worst_and_what_diverged(known, diverged, text):
    assert str(Errors(known, diverged)) == text


def test_table():
    rows = [
        run(1, "constant", 0.03), run(1, "constant", 0.05), run(30, "constant", None),
        run(1, "inverse", 0.04), run(30, "inverse", None),
    ]  # fmt: skip
    heading, *lines = table(lines_of(rows)).splitlines()
    assert heading.split() == [
        "n",
        "mean",
        "τ",
        "max",
        "τ",
        "P(τ",
        ">",
        "2n)",
        "constant",
        "inverse",
    ]
    assert [line.split() for line in lines] == [
        ["1", "1.00", "1", "0", "4.0", "(5.0)", "4.0"],
        ["30", "–", "–", "–", "diverged", "diverged"],
    ]
    assert len({len(line) for line in [heading, *lines]}) == 1


def test_nothing_to_tell():
    assert lines_of([]) == []
    assert "P(τ > 2n)" in table([])
