import json
import sys
from itertools import pairwise

import pytest

from psrt.collective import ALGORITHMS
from psrt.collective.analysis.cost import lower_bounds
from psrt.collective.analysis.machine import DEFAULT_COSTS
from psrt.collective.costs import LinkCosts
from psrt.errors import ConfigError
from psrt.explain.compare import Stretch, as_document, as_text, compare, crossovers, plot
from psrt.explain.inputs import MOST_RANKS, read_ranks, read_sizes

KB, MB = 1 << 10, 1 << 20
COSTS = DEFAULT_COSTS.between


def best(ranks, nbytes, costs=COSTS):
    [row] = compare([ranks], [nbytes], costs).rows
    return row.best


class TestCompare:
    def test_a_row_per_ranks_and_size(self):
        found = compare([2, 7], [100, KB, MB], COSTS)
        assert [(row.ranks, row.nbytes) for row in found.rows] == [
            (p, n) for p in (2, 7) for n in (100, KB, MB)
        ]
        assert found.of(7) == list(found.rows[3:])

    def test_times_are_those_of_the_forms(self):
        [row] = compare([6], [MB], COSTS).rows
        assert row.seconds == {name: ALGORITHMS[name].seconds(6, MB, COSTS) for name in ALGORITHMS}
        assert row.least == lower_bounds(6, MB, COSTS).seconds
        assert row.seconds[row.best] == min(row.seconds.values())

    def test_one_rank(self):
        [row] = compare([1], [MB], COSTS).rows
        assert set(row.seconds.values()) == {0.0}


class TestStretches:
    @pytest.mark.parametrize("ranks", [2, 3, 12, 16, 100])
    def test_they_follow_each_other_from_end_to_end(self, ranks):
        found = compare([ranks], [KB, 64 * KB, 64 * MB], COSTS).stretches(ranks)
        assert (found[0].first, found[-1].last) == (KB, 64 * MB)
        for before, after in pairwise(found):
            assert before.last == after.first
            assert before.algorithm != after.algorithm

    @pytest.mark.parametrize("ranks", [3, 12, 16, 100])
    def test_each_is_the_fastest_on_its_own(self, ranks):
        for name, first, last in compare([ranks], [KB, 64 * KB, 64 * MB], COSTS).stretches(ranks):
            assert best(ranks, first + (first // 50 if first > KB else 0)) == name
            assert best(ranks, last - (last // 50 if last < 64 * MB else 0)) == name

    def test_the_crossover_of_ring_and_butterfly_is_where_they_cost_the_same(self):
        """For 2 ranks butterfly saves an α, and halving-doubling half of nγ: n = 2α/γ."""
        costs = LinkCosts(alpha=1e-6, beta=0.0, gamma=1e-9)
        first, second = compare([2], [100, 4000], costs).stretches(2)[:2]
        assert (first.algorithm, second.algorithm) == ("butterfly", "halving-doubling")
        assert first.last == pytest.approx(2000, rel=1 / 32)

    def test_what_wins_only_in_between_is_found(self):
        names = [s.algorithm for s in compare([12], [KB, 64 * MB], COSTS).stretches(12)]
        assert names == ["butterfly", "halving-doubling-blocks", "ring"]

    def test_one_size(self):
        assert compare([16], [KB], COSTS).stretches(16) == [Stretch("butterfly", KB, KB)]


class TestText:
    def test_sentence(self):
        costs = LinkCosts(alpha=1e-6, beta=1e-9, gamma=0.0)
        found = compare([2, 12], [KB, 256 * MB], costs)
        assert crossovers(found, 2) == "for 2 ranks: butterfly throughout"
        assert crossovers(compare([12], [KB, 64 * MB], COSTS), 12) == (
            "for 12 ranks: butterfly up to 46.5 KiB, halving-doubling-blocks up to 849 KiB, "
            "ring beyond"
        )

    def test_table(self):
        lines = as_text(compare([1, 16], [KB, MB], COSTS)).splitlines()
        assert lines[0] == (
            "predicted time of an all-reduce, α = 25 µs a message, "
            "β = 0.833 ns and γ = 0.1 ns a byte"
        )
        assert lines[lines.index("1 rank") + 1] == "nothing to sum"
        at = lines.index("16 ranks")
        assert "".join(lines[at + 2].split()) == "halving-segmented-double-doubling-all-"
        short, long = lines[at + 4 : at + 6]
        assert short.startswith("1 KiB    104 µs* ")
        assert short.endswith("  100 µs")
        assert short.count("*") == long.count("*") == 1
        assert long.startswith("1 MiB ")
        assert {len(line) for line in lines[at + 3 : at + 6]} <= {len(short), len(short) - 1}
        assert lines[-1].startswith("  for 16 ranks: butterfly up to ")
        assert not any(line.startswith("  for 1 rank") for line in lines)

    def test_the_mark_is_at_the_best(self):
        row = as_text(compare([16], [MB], COSTS)).splitlines()[7].split("  ")
        [marked] = [cell for cell in row if "*" in cell]
        assert marked.split("*")[0].strip() == "1.94 ms"  # 8α + 15/16·1 MiB·(2β + γ)

    def test_it_fits_a_wide_terminal(self):
        text = as_text(compare([2, 1024], [100, 1 << 40], COSTS))
        assert max(map(len, text.splitlines())) <= 120


def test_document():
    found = compare([1, 16], [KB, MB], COSTS)
    document = json.loads(json.dumps(as_document(found)))
    assert document["format"] == "psrt explain compare 1"
    assert document["costs"] == {"alpha": COSTS.alpha, "beta": COSTS.beta, "gamma": COSTS.gamma}
    assert [(row["ranks"], row["bytes"]) for row in document["rows"]] == [
        (1, KB), (1, MB), (16, KB), (16, MB)
    ]  # fmt: skip
    last = document["rows"][-1]
    assert last["seconds"] == found.rows[-1].seconds
    assert last["best"] == "halving-doubling"
    assert last["least"] == found.rows[-1].least
    first, *_, end = document["crossovers"]
    assert (first["ranks"], first["algorithm"], first["from"]) == (16, "butterfly", KB)
    assert (end["algorithm"], end["to"]) == ("halving-doubling", MB)


class TestRanges:
    @pytest.mark.parametrize(
        ("text", "ranks"),
        [
            ("2:1024", [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]),
            ("2:48", [2, 4, 8, 16, 32, 48]),
            ("3:3", [3]),
            ("7", [7]),
            (" 8 , 3 ,3", [3, 8]),
            ("1:100:10", [1, 10, 100]),
            ("2:8,5", [2, 4, 5, 8]),
        ],
    )
    def test_ranks(self, text, ranks):
        assert read_ranks(text) == ranks

    @pytest.mark.parametrize(
        ("text", "sizes"),
        [
            ("1K:1M", [KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB]),
            ("1K:2K", [KB, 2 * KB]),
            ("1K:5K:2", [KB, 2 * KB, 4 * KB, 5 * KB]),
            ("1M,100", [100, MB]),
            ("1G", [1 << 30]),
        ],
    )
    def test_bytes(self, text, sizes):
        assert read_sizes(text) == sizes

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "ranks must be like FIRST:LAST, or values with commas, got ''"),
            ("2,,4", "ranks must be like FIRST:LAST, or values with commas, got ''"),
            (":4", "ranks must be like FIRST:LAST, or values with commas, got ':4'"),
            ("2:", "ranks must be a whole number, got ''"),
            ("2:4:8:16", "ranks must be like FIRST:LAST, .* got '2:4:8:16'"),
            ("two", "ranks must be a whole number, got 'two'"),
            ("-2", "ranks must be at least 1, got -2"),
            ("0", "ranks must be at least 1, got 0"),
            (f"{MOST_RANKS + 1}", f"ranks must be at most {MOST_RANKS}, got {MOST_RANKS + 1}"),
            ("8:2", "ranks '8:2' end before they begin"),
            ("2:8:1", "the factor of ranks must be at least 2, got 1"),
            (",".join(map(str, range(1, 67))), "ranks '.*' are 66 values, at most 64"),
        ],
    )
    def test_bad_ranks(self, text, message):
        with pytest.raises(ConfigError, match=message):
            read_ranks(text)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("0", "bytes must be at least 1, got 0"),
            ("1K:", "bytes must be a number of bytes such as .*, got ''"),
            ("1K:1X", "bytes must be a number of bytes such as .*, got '1X'"),
            ("1M:1K", "bytes '1M:1K' end before they begin"),
            ("1K:1G:1.5", "the factor of bytes must be a whole number, got '1.5'"),
        ],
    )
    def test_bad_bytes(self, text, message):
        with pytest.raises(ConfigError, match=message):
            read_sizes(text)


class TestPlot:
    @pytest.fixture
    def draw(self, figures, tmp_path):
        """Draw, and return the axes to look into."""

        def run(ranks, sizes=(KB, MB, 64 * MB), costs=COSTS):
            path = tmp_path / "plot.png"
            plot(compare(ranks, sizes, costs), path)
            assert path.read_bytes().startswith(b"\x89PNG")
            return figures[-1].axes

        return run

    def test_curves_and_a_map(self, draw):
        *panels, last = draw([1, 2, 4, 8, 16, 32])
        assert [panel.get_title().split(":")[0] for panel in panels] == [
            "2 ranks", "8 ranks", "32 ranks"
        ]  # fmt: skip
        _, labels = panels[0].get_legend_handles_labels()
        assert labels == list(ALGORITHMS)
        assert [label.get_text() for label in last.get_yticklabels()] == ["2", "4", "8", "16", "32"]

    def test_a_curve_is_time_over_the_lower_bound(self, draw):
        [panel] = draw([16])
        [ring] = [line for line in panel.lines if line.get_label() == "ring"]
        first, last = (compare([16], [n], COSTS).rows[0] for n in (KB, 64 * MB))
        assert (ring.get_xdata()[0], ring.get_xdata()[-1]) == (KB, 64 * MB)
        assert ring.get_ydata()[0] == first.seconds["ring"] / first.least
        assert ring.get_ydata()[-1] == last.seconds["ring"] / last.least

    def test_the_map_is_cut_at_the_crossovers(self, draw):
        found = compare([12, 16], [KB, MB, 64 * MB], COSTS)
        axes = draw([12, 16])[-1]
        bars = [(b.get_x(), b.get_x() + b.get_width()) for c in axes.containers for b in c]
        assert bars == [(s.first, s.last) for p in (12, 16) for s in found.stretches(p)]

    @pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
    def test_no_panel_lies_on_another(self, draw, count):
        boxes = [axes.get_position() for axes in draw(list(range(2, 2 + count)))]
        for i, one in enumerate(boxes):
            for other in boxes[:i]:
                assert not one.overlaps(other)

    @pytest.mark.parametrize(
        ("ranks", "sizes", "costs", "message"),
        [
            ([1], [KB, MB], COSTS, "a plot needs a number of ranks above 1 and at least two sizes"),
            ([4], [KB], COSTS, "a plot needs a number of ranks above 1 and at least two sizes"),
            ([4], [KB, MB], LinkCosts(0.0, 0.0, 0.0), "a plot needs costs above 0"),
        ],
    )
    def test_too_little_to_draw(self, tmp_path, ranks, sizes, costs, message):
        with pytest.raises(ConfigError, match=message):
            plot(compare(ranks, sizes, costs), tmp_path / "plot.png")

    def test_without_matplotlib(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ConfigError, match="plots need matplotlib: pip install"):
            plot(compare([4], [KB, MB], COSTS), tmp_path / "plot.png")

    @pytest.mark.parametrize("name", ["missing/plot.png", "plot.nothing"])
    def test_a_file_that_cannot_be_written(self, tmp_path, name):
        pytest.importorskip("matplotlib")
        with pytest.raises(ConfigError, match=r"cannot write .*plot"):
            plot(compare([4], [KB, MB], COSTS), tmp_path / name)
