"""Histograms as text: nothing is lost, and the longest bar is the mode."""

from __future__ import annotations

import pytest

from psrt.report.histogram import histogram_lines


def test_nothing_is_no_lines():
    assert histogram_lines([]) == histogram_lines([0, 0]) == []


def test_one_value():
    assert histogram_lines([7]) == ["0  " + "#" * 40 + "  100.0 %"]


@pytest.mark.parametrize("size", [1, 11, 12, 13, 24, 25, 100, 119, 121, 1000, 98_765])
def test_every_value_is_in_one_line_of_few(size):
    lines = histogram_lines([1] * size)
    assert len(lines) <= 12
    ends = [tuple(map(int, line.split()[0].split("-"))) for line in lines]
    if size <= 12:
        assert [a for (a,) in ends] == list(range(size))
        return
    assert [a for a, _ in ends[1:]] == [b + 1 for _, b in ends[:-1]]
    assert ends[0][0] == 0
    assert ends[-1][1] >= size - 1
    shares = [float(line.split()[-2]) for line in lines]
    assert sum(shares) == pytest.approx(100, abs=0.6)


def test_what_is_rare_still_shows():
    few, many = histogram_lines([1, 100_000])
    assert few.count("#") == 1
    assert many.count("#") == 40
    assert "#" not in histogram_lines([5, 0, 5])[1]
