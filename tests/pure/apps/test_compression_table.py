"""From runs with and without codecs to standings and a verdict."""

import pytest
from studies.compression_table import COSTS, FAILS, OPEN, PAYS, cells, table, time_text, verdict


def run(setting, seconds, *, accuracy=0.95, sent=1e6, link="slow", mode="sync", lr=0.1):
    return {
        "mode": mode, "setting": setting, "link": link, "lr": lr, "bytes_sent": sent,
        "test_accuracy": accuracy, "seconds_to_accuracy": seconds,
    }  # fmt: skip


PLAIN = [run("none", seconds) for seconds in (4.0, 5.0, 6.0)]


def standing(*seconds):
    found = cells([*PLAIN, *[run("sign", it) for it in seconds]])
    return found[1]["standing"], found[1]["ratio"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((1.0, 3.9, 9.0), (PAYS, 0.78)),
        ((4.0, 4.0, 4.0), (OPEN, 0.8)),
        ((6.0, 6.0, 6.0), (OPEN, 1.2)),
        ((1.0, 6.1, 6.2), (COSTS, 1.22)),
        ((1.0, None, None), (FAILS, None)),
    ],
)
def test_a_codec_pays_where_its_median_is_outside_the_spread(seconds, expected):
    found, ratio = standing(*seconds)
    assert (found, ratio) == (expected[0], pytest.approx(expected[1]))


def test_what_the_runs_of_a_setting_come_to():
    rows = [*PLAIN, run("sign", 2.0, accuracy=None, sent=None), run("sign", 3.0, sent=5e5)]
    _, cell = cells(rows)
    assert cell == {
        "mode": "sync", "link": "slow", "setting": "sign", "lr": 0.1, "runs": 2, "reached": 2,
        "median": 2.5, "fastest": 2.0, "slowest": 3.0, "accuracy": 0.475, "worst": 0.0,
        "bytes_sent": 5e5, "ratio": 0.5, "standing": PAYS,
    }  # fmt: skip


def test_where_nobody_comes_to_the_target():
    found = cells([run("none", None), run("sign", 3.0), run("int8", None)])
    assert [cell["standing"] for cell in found] == [FAILS, PAYS, FAILS]
    assert [cell["ratio"] for cell in found] == [None] * 3


def test_the_first_of_few_may_reach_it():
    found = cells([*PLAIN, run("sign", 2.0), run("sign", None), run("sign", None)])
    assert time_text(found[1]) == "1 of 3"
    assert time_text(found[0]) == "5 s"


def test_table_and_verdict():
    rows = [*PLAIN, *[run("sign", 2.0, sent=3e5)] * 3, *[run("int8", 5.5)] * 3]
    rows += [run("none", 1.0, link="fast"), run("sign", 1.5, link="fast")]
    rows += [run("int8", None, link="fast")]
    found = cells(rows)
    lines = table(found).splitlines()
    assert lines[0] == "sync"
    assert lines[1].split() == ["codec", "lr", "sent", "accuracy", "(worst)", "slow", "fast"]
    assert " ".join(lines[2].split()) == "none 0.1 977 KiB 95.0 (95.0) % 5 s 1 s"
    signs = "sign 0.1 293 KiB 95.0 (95.0) % 2 s (0.40 pays) 1.5 s (1.50 costs)"
    assert " ".join(lines[3].split()) == signs
    assert lines[4].split()[-3:] == ["(1.10", "open)", "never"]
    assert verdict(found) == [
        "sync at slow:",
        "  pays: sign (0.40)",
        "  open, too close to tell: int8 (1.10)",
        "sync at fast:",
        "  costs time: sign (1.50)",
        "  misses the target: int8",
        "1 of 4 cases pay.",
    ]
