"""All-reduces compared: who is fastest where, as text, document and plot."""

from itertools import pairwise

import pytest

from psrt.collective import ALGORITHMS
from psrt.collective.analysis.cost import lower_bounds
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.collective.costs import LinkCosts
from psrt.core.errors import ConfigError
from psrt.views.explain.compare import as_text, compare, crossovers, plot
from psrt.views.explain.inputs import MOST_RANKS, read_ranks, read_sizes
from support.cases import each

KB, MB = 1 << 10, 1 << 20
COSTS = DEFAULT_COSTS.between


def test_times_are_those_of_the_forms():
    [row] = compare([6], [MB], COSTS).rows
    assert row.seconds == {name: ALGORITHMS[name].seconds(6, MB, COSTS) for name in ALGORITHMS}
    assert row.least == lower_bounds(6, MB, COSTS).seconds
    assert row.seconds[row.best] == min(row.seconds.values())


def test_the_crossover_of_ring_and_butterfly_is_where_they_cost_the_same():
    """For 2 ranks butterfly saves an α, and halving-doubling half of nγ: n = 2α/γ."""
    costs = LinkCosts(alpha=1e-6, beta=0.0, gamma=1e-9)
    first, second = compare([2], [100, 4000], costs).stretches(2)[:2]
    assert (first.algorithm, second.algorithm) == ("butterfly", "halving-doubling")
    assert first.last == pytest.approx(2000, rel=1 / 32)


def test_the_fastest_follow_each_other_from_end_to_end():
    for ranks in (2, 3, 12, 16, 100):
        found = compare([ranks], [KB, 64 * KB, 64 * MB], COSTS).stretches(ranks)
        assert (found[0].first, found[-1].last) == (KB, 64 * MB)
        for before, after in pairwise(found):
            assert before.last == after.first
            assert before.algorithm != after.algorithm
    # What wins only in between is found.
    assert crossovers(compare([12], [KB, 64 * MB], COSTS), 12) == (
        "for 12 ranks: butterfly up to 46.5 KiB, halving-doubling-blocks up to 849 KiB, ring beyond"
    )
    free = LinkCosts(alpha=1e-6, beta=1e-9, gamma=0.0)
    assert crossovers(compare([2], [KB, MB], free), 2) == "for 2 ranks: butterfly throughout"


def test_table():
    lines = as_text(compare([1, 16], [KB, MB], COSTS)).splitlines()
    assert lines[0] == (
        "predicted time of an all-reduce, α = 25 µs per message, "
        "β = 0.833 ns and γ = 0.1 ns per byte"
    )
    assert lines[lines.index("1 rank") + 1] == "nothing to sum"
    at = lines.index("16 ranks")
    assert "".join(lines[at + 2].split()) == "halving-segmented-double-doubling-all-"
    short, long = lines[at + 4 : at + 6]
    assert short.startswith("1 KiB    104 µs* ")
    assert short.endswith("  100 µs")
    assert long.startswith("1 MiB ")
    [marked] = [cell for cell in long.split("  ") if "*" in cell]
    assert marked.split("*")[0].strip() == "1.94 ms"  # 8α + 15/16·1 MiB·(2β + γ)
    assert {len(line) for line in lines[at + 3 : at + 6]} <= {len(short), len(short) - 1}
    assert lines[-1].startswith("  for 16 ranks: butterfly up to ")
    assert not any(line.startswith("  for 1 rank") for line in lines)


@each(("text", "ranks"), [
    ("2:48", [2, 4, 8, 16, 32, 48]), ("3:3", [3]), ("7", [7]), (" 8 , 3 ,3", [3, 8]),
    ("1:100:10", [1, 10, 100]), ("2:8,5", [2, 4, 5, 8]),
])  # fmt: skip
def test_ranks(text, ranks):
    assert read_ranks(text) == ranks


def test_a_range_of_bytes_is_by_four_and_ends_where_it_says():
    assert read_sizes("1K:1M") == [KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB]
    assert read_sizes("1K:5K:2") == [KB, 2 * KB, 4 * KB, 5 * KB]
    assert read_sizes("1M,100") == [100, MB]


@each(("read", "text", "message"), [
    (read_ranks, "2,,4", "ranks must be like FIRST:LAST, or values with commas, got ''"),
    (read_ranks, f"{MOST_RANKS + 1}", f"ranks must be at most {MOST_RANKS}, got {MOST_RANKS + 1}"),
    (read_ranks, "8:2", "ranks '8:2' ends before it begins"),
    (read_ranks, "2:8:1", "the factor of ranks must be at least 2, got 1"),
    (read_ranks, ",".join(map(str, range(1, 67))), "ranks '.*' has 66 values, more than 64"),
    (read_sizes, "1K:1X", "bytes must be a number of bytes such as .*, got '1X'"),
])  # fmt: skip
def test_ranges_that_are_none(read, text, message):
    with pytest.raises(ConfigError, match=message):
        read(text)


@pytest.mark.exhaustive
def test_curves_and_a_map(figures, tmp_path):
    plot(compare([1, 2, 16], (KB, 64 * MB), COSTS), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    *panels, last = figures[-1].axes
    assert [panel.get_title().split(":")[0] for panel in panels] == ["2 ranks", "16 ranks"]
    _, labels = panels[0].get_legend_handles_labels()
    assert labels == list(ALGORITHMS)
    assert [label.get_text() for label in last.get_yticklabels()] == ["2", "16"]
    # A curve is a time over the lower bound.
    [ring] = [line for line in panels[1].lines if line.get_label() == "ring"]
    first, last = (compare([16], [n], COSTS).rows[0] for n in (KB, 64 * MB))
    assert (ring.get_xdata()[0], ring.get_xdata()[-1]) == (KB, 64 * MB)
    assert ring.get_ydata()[0] == first.seconds["ring"] / first.least
    assert ring.get_ydata()[-1] == last.seconds["ring"] / last.least
