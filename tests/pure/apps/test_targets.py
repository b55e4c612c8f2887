"""Targets of rows of our own making: which are reached, which not, and by which size."""

import json

import pytest
import targets as script

from psrt.bench.figures import Summary, table, to_json
from psrt.errors import ConfigError

K, M = 1 << 10, 1 << 20
SIZES = [K << power for power in range(0, 17, 2)]


def row(
    algorithm, buffer, nbytes, *,
    hosts=1, ranks=2, library=4.0, copy=0.5, wire=None, pattern="back to back",
):  # fmt: skip
    def summary(value):
        return None if value is None else {"median": value}

    return {
        "algorithm": algorithm, "buffer": buffer, "pattern": pattern,
        "ranks": ranks, "hosts": hosts, "bytes": nbytes,
        "over_library": summary(library), "over_copy": summary(copy), "over_wire": summary(wire),
        "over_bound": summary(None if wire is None else wire * 0.9),
    }  # fmt: skip


def good(ranks=2):
    rows = [row("auto", "window", n, ranks=ranks) for n in SIZES]
    rows += [row("auto", "window", n, ranks=ranks, pattern="after a barrier") for n in SIZES[:4]]
    rows += [row("ring", "plain", n, ranks=ranks, library=1.0) for n in SIZES]
    rows += [row("ring", "window", n, ranks=ranks, hosts=ranks, wire=1.1) for n in SIZES[5:]]
    return rows


def verdict(rows):
    return {found["target"]: found for found in script.targets(rows)}


def the(found, *words):
    (one,) = (told for name, told in found.items() if all(word in name for word in words))
    return one


def test_all_reached():
    found = verdict(good())
    reached = [target["reached"] for target in found.values()]
    assert reached == [True, True, None, True, True, True, True, None]
    assert the(found, "geometric")["read"] == pytest.approx(4.0)
    assert the(found, "copyto")["read"] == 0.5
    assert the(found, "nβ)")["read"] == 1.1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (row("auto", "window", 4 * M, library=2.69), ("windows", "worst × MPI")),
        (row("auto", "window", 256 * K, library=2.69), ("windows", "worst × MPI")),
        (row("auto", "window", 64 * K, library=0.89), ("auto below",)),
        (row("auto", "window", K, library=0.5, pattern="after a barrier"), ("after a barrier",)),
        (row("ring", "plain", M, library=0.89), ("plain arrays",)),
        (row("ring", "window", 4 * M, hosts=2, wire=1.16), ("between hosts", "nβ)")),
    ],
)
def test_one_bad_size_misses_one_target_and_is_named(changed, words):
    key = ("algorithm", "buffer", "bytes", "hosts", "pattern")
    rows = [r for r in good() if any(r[k] != changed[k] for k in key)]
    assert len(rows) == len(good()) - 1
    found = verdict([*rows, changed])
    missed = [target for target in found.values() if target["reached"] is False]
    assert missed == [the(found, *words)]
    assert missed[0]["at"] == changed["bytes"]


@pytest.mark.parametrize(
    "fine",
    [
        row("auto", "window", 256 * K, library=2.7),
        row("ring", "plain", 256 * K, library=0.1),
        row("ring", "window", M, hosts=2, wire=9.0),
        row("tree", "window", M, library=0.1),
    ],
)
def test_what_nobody_aims_at_misses_nothing(fine):
    assert False not in [target["reached"] for target in script.targets([*good(), fine])]


def test_the_mean_is_geometric_over_long_vectors_only():
    rows = [row("auto", "window", K, library=100.0)]
    rows += [row("auto", "window", n, library=x) for n, x in ((M, 2.7), (4 * M, 4.0))]
    mean = the(verdict(rows), "geometric")
    assert mean["read"] == pytest.approx((2.7 * 4.0) ** 0.5)
    assert mean["reached"] is False


def test_each_number_of_ranks_has_its_own():
    found = script.targets([*good(2), *good(4)])
    assert [target["ranks"] for target in found] == [2] * 8 + [4] * 8


def test_nothing_is_said_of_what_was_not_measured():
    assert script.targets([]) == []
    assert [target["target"] for target in script.targets([row("auto", "window", K)])] == [
        "auto below 256 KiB: worst × MPI.Allreduce"
    ]


def test_table():
    rows = [r for r in good() if r["bytes"] != M] + [row("auto", "window", M, library=2.0)]
    lines = table(script.targets(rows), script.COLUMNS).splitlines()
    worst = next(line for line in lines if "worst × MPI" in line and "windows" in line)
    assert worst.split()[-5:] == ["2.7", "2.00", "1", "MiB", "NO"]
    share = next(line for line in lines if "copyto" in line)
    assert not share.rstrip().endswith(("yes", "NO"))


def test_rows_come_from_what_the_benchmark_wrote(tmp_path, capsys):
    path = tmp_path / "all.json"
    rows = [r | {"over_library": Summary(4.0, 4.0, 4.0, 9)} for r in good()]
    path.write_text(to_json({"machine": "", "all-reduce": rows}))
    assert script.main([str(path)]) == 0
    assert capsys.readouterr().out.count("yes") == 6
    for text in ("{}", "[]", "1", "rows", json.dumps({"all-reduce": None})):
        path.write_text(text)
        with pytest.raises(ConfigError, match="not the figures"):
            script.read_rows(str(path))
    with pytest.raises(ConfigError, match="missing"):
        script.read_rows(str(tmp_path / "missing"))
