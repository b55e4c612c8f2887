"""What compare_modes.py makes of its runs: medians, ties, and who wins and loses where."""

from __future__ import annotations

import pytest
from studies import standings, verdict


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


class TestMedians:
    def test_of_the_seeds(self):
        rows = runs("sync", 3.0, 1.0, 2.0, staleness_mean=1.5)
        rows[0]["test_accuracy"] = 0.9
        [cell] = standings.medians(rows)
        assert (cell["seconds_to_accuracy"], cell["fastest"], cell["slowest"]) == (2.0, 1.0, 3.0)
        assert (cell["runs"], cell["reached"]) == (3, 3)
        assert (cell["test_accuracy"], cell["worst_accuracy"]) == (0.96, 0.9)
        assert cell["staleness_mean"] == 1.5

    @pytest.mark.parametrize(
        ("seconds", "median", "spread", "reached"),
        [
            ((1.0, None, 2.0), 2.0, (1.0, None), 2),
            ((1.0, None, None), None, (1.0, None), 1),
            ((None, None), None, (None, None), 0),
            ((1.0, None), None, (1.0, None), 1),
        ],
    )
    def test_never_is_longer_than_any_time(self, seconds, median, spread, reached):
        [cell] = standings.medians(runs("sync", *seconds))
        assert cell["seconds_to_accuracy"] == median
        assert (cell["fastest"], cell["slowest"]) == spread
        assert cell["reached"] == reached

    def test_modes_and_scenarios_are_apart(self):
        rows = runs("a", 1.0) + runs("b", 2.0) + runs("a", 5.0, scenario="tail")
        cells = standings.medians(rows)
        assert [(c["mode"], c["scenario"], c["seconds_to_accuracy"]) for c in cells] == [
            ("a", "calm", 1.0),
            ("b", "calm", 2.0),
            ("a", "tail", 5.0),
        ]
        assert [c["standing"] for c in cells] == ["first", "behind", "first"]


def standing(*groups, **options):
    rows = [row for group in groups for row in group]
    return [(c["standing"], c["ratio"]) for c in standings.medians(rows, **options)]


class TestStandings:
    @pytest.mark.parametrize(
        ("other", "expected"),
        [
            ((1.5, 3.0, 4.0), "tied"),  # the best's median is in its spread
            ((1.9, 2.0, 4.0), "tied"),  # or the other way round
            ((1.51, 2.01, 4.0), "behind"),  # the spreads overlap, but no median
            ((2.1, 3.0, 4.0), "behind"),
            ((1.0, 3.0, None), "behind"),  # no tie with what does not always get there
            ((None, None, None), "never"),
            ((1.5, None, None), "never"),
        ],
    )
    def test_beside_the_best(self, other, expected):
        (first, one), (second, ratio) = standing(runs("best", 1.0, 1.5, 2.0), runs("other", *other))
        assert (first, one) == ("first", 1.0)
        assert second == expected
        assert ratio == (None if expected == "never" else pytest.approx(other[1] / 1.5))

    def test_near_is_within_a_tenth_but_apart(self):
        groups = [runs(str(seconds), seconds) for seconds in (1.0, 1.0, 1.1, 1.11)]
        assert [word for word, _ in standing(*groups)] == ["first", "near", "behind"]

    def test_the_best_is_the_one_with_the_least_median(self):
        found = standing(runs("a", 1.0, 5.0, 6.0), runs("b", 2.0, 2.0, 2.0))
        assert found == [("tied", 2.5), ("first", 1.0)]

    def test_equal_times_are_a_tie(self):
        assert standing(runs("a", 1.0), runs("b", 1.0)) == [("first", 1), ("tied", 1)]

    def test_a_baseline_does_not_compete(self):
        found = standing(runs("serial", 1.0), runs("a", 2.0), baseline="serial")
        assert found == [("baseline", 0.5), ("first", 1.0)]
        assert standing(runs("serial", 1.0), baseline="serial") == [("baseline", None)]

    def test_where_nobody_gets_there_nobody_is_first(self):
        assert standing(runs("a", None), runs("b", None)) == [("never", None)] * 2


class TestRepeats:
    def test_the_same_parameters_whoever_is_late(self):
        rows = runs("sync", 1.0, 1.0) + runs("sync", 2.0, 2.0, scenario="tail")
        assert standings.repeats(rows) is True
        rows[-1]["parameters_sha256"] = "other"
        assert standings.repeats(rows) is False

    def test_one_scenario_does_not_tell(self):
        assert standings.repeats(runs("sync", 1.0, 1.0)) is None


@pytest.fixture
def lines():
    """What is said of these runs: by mode (and "" for the scenarios) lines without their indent."""

    def told(*groups, baseline=""):
        rows = [row for group in groups for row in group]
        said = {"": []}
        mode = ""
        for line in verdict.verdicts(standings.medians(rows, baseline=baseline), rows):
            if line and not line.startswith(" "):
                mode = line
            elif line.startswith(" " * 11):
                said[mode][-1] += f" {line.strip()}"
            elif line:
                said.setdefault(mode, []).append(" ".join(line.split()))
        return said

    return told


class TestWords:
    def test_winners_and_losers(self, lines):
        said = lines(
            runs("a", 1.0, 1.0), runs("b", 3.0, 3.0), runs("c", 1.5, 1.7),
            runs("a", 9.0, 9.0, scenario="tail"), runs("b", 3.0, 3.0, scenario="tail"),
        )  # fmt: skip
        assert said[""] == ["calm a, 1 s", "tail b, 3 s"]
        assert said["a"][:2] == ["wins calm: the next, c, takes 1.60 x", "loses tail: 3.0 x b"]
        assert said["b"][:2] == ["wins tail: the next, a, takes 3.0 x", "loses calm: 3.0 x a"]
        assert said["c"] == ["loses calm: 1.60 x a"]

    def test_a_tie_is_told_as_a_tie(self, lines):
        said = lines(runs("a", 1.0, 2.0), runs("b", 1.9, 2.1), runs("c", 1.4, 8.6))
        assert said[""] == ["calm a, 1.5 s, a tie with b and c"]
        assert said["a"] == ["ties calm: with b and c"]
        assert said["b"] == ["ties calm: 1.33 x a"]
        assert not any("wins" in line or "loses" in line for mode in said.values() for line in mode)

    def test_almost_as_fast(self, lines):
        said = lines(runs("a", 1.0), runs("b", 1.05))
        assert said["b"] == ["is near calm: 1.05 x a"]
        assert said["a"] == ["wins calm: the next, b, takes 1.05 x"]

    def test_who_never_gets_there_loses(self, lines):
        said = lines(
            runs("a", 1.0, 1.0, 1.0), runs("b", None, None, None), runs("c", 4.0, 4.0, None)
        )
        assert said["b"] == ["loses calm: never reaches the target"]
        assert said["c"] == ["loses calm: 4.0 x a, misses the target with 1 of 3 seeds"]
        alone = lines(runs("a", 1.0), runs("b", None))
        assert alone["a"] == ["wins calm: nobody else reaches the target"]
        nobody = lines(runs("a", None), runs("b", 1.0, None, None))
        assert nobody[""] == []
        assert nobody["b"] == ["loses calm: misses the target with 2 of 3 seeds"]

    def test_a_winner_may_lose_accuracy(self, lines):
        said = lines(runs("a", 1.0, test_accuracy=0.949), runs("b", 2.0), runs("c", 2.0))
        assert said["a"][1] == "loses calm: 1.1 points of accuracy below the best"
        slightly = lines(runs("a", 1.0, test_accuracy=0.951), runs("b", 2.0))
        assert len(slightly["a"]) == 1

    def test_the_accuracy_is_that_of_the_worst_seed(self, lines):
        rows = runs("a", 1.0, 1.0, 1.0)
        rows[1]["test_accuracy"] = 0.9
        assert "6.0 points" in lines(rows, runs("b", 2.0))["a"][1]

    def test_the_price(self, lines):
        said = lines(
            runs("a", 1.0, staleness_mean=0.5, staleness_max=7, dropped=3, waiting_share=0.1),
            runs("a", 1.0, scenario="tail", staleness_mean=0.25, staleness_max=9, dropped=40),
            runs("b", 1.0),
            runs("b", 1.0, scenario="tail", parameters_sha256="other"),
        )
        assert said["a"][-1] == (
            "price staleness 0.50 (calm), at most 9, 40 gradients dropped a run (tail), "
            "workers wait 10 % of the time (calm), the same bits whoever is late"
        )
        assert said["b"][-1] == "price other bits if another is late"

    def test_a_baseline_is_shown(self, lines):
        said = lines(runs("serial", 1.0), runs("a", 4.0), baseline="serial")
        assert said["serial"] == ["shows one process by itself, never late: 1 s; calm: 0.25 x a"]
        assert "a" not in said  # there is nobody to win against
        assert lines(runs("serial", None), baseline="serial")["serial"] == [
            "shows one process by itself, never late: never at the target"
        ]

    def test_lines_are_no_longer_than_a_page(self):
        rows = [
            row
            for scenario in ("calm", "delay", "tail", "pause", "slow")
            for mode in range(14)
            for row in runs(f"a-mode-of-{mode}", 1.0 + mode % 3, 2.0 + mode, scenario=scenario)
        ]
        lines = verdict.verdicts(standings.medians(rows), rows)
        assert max(len(part) for line in lines for part in line.split("\n")) <= 100
