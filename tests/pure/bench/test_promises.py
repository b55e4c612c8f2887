"""The verdict on rows of our own making: what is kept, what is not, and by which size."""

import pytest

from psrt.bench.measure import Summary
from psrt.bench.promises import promises, table

K, M = 1 << 10, 1 << 20
SIZES = [K << power for power in range(0, 17, 2)]


def row(algorithm, buffer, nbytes, *, hosts=1, ranks=2, library=4.0, copy=0.5, wire=None):
    def summary(value):
        return None if value is None else Summary(value, value, value, 9)

    return {
        "algorithm": algorithm, "buffer": buffer, "ranks": ranks, "hosts": hosts, "bytes": nbytes,
        "over_library": summary(library), "over_copy": summary(copy), "over_wire": summary(wire),
        "over_bound": summary(None if wire is None else wire * 0.9),
    }  # fmt: skip


def good(ranks=2):
    rows = [row("auto", "window", n, ranks=ranks) for n in SIZES]
    rows += [row("ring", "plain", n, ranks=ranks, library=1.0) for n in SIZES]
    rows += [row("ring", "window", n, ranks=ranks, hosts=ranks, wire=1.1) for n in SIZES[5:]]
    return rows


def call(own_s):
    return {"figure": "a call", "own_s": Summary(own_s, own_s, own_s, 9)}


def verdict(rows, calls=()):
    return {told["promise"]: told for told in promises(rows, calls)}


def the(found, *words):
    (one,) = (told for name, told in found.items() if all(word in name for word in words))
    return one


def test_all_kept():
    found = verdict(good(), [call(12e-6)])
    assert [told["kept"] for told in found.values()] == [
        True,
        True,
        None,
        True,
        True,
        True,
        None,
        True,
    ]
    assert the(found, "geometric")["read"] == pytest.approx(4.0)
    assert the(found, "copyto")["read"] == 0.5
    assert the(found, "nβ)")["read"] == 1.1
    assert the(found, "a call")["read"] == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (row("auto", "window", 4 * M, library=2.69), ("windows", "worst × MPI")),
        (row("auto", "window", 256 * K, library=2.69), ("windows", "worst × MPI")),
        (row("auto", "window", 64 * K, library=0.89), ("auto below",)),
        (row("ring", "plain", M, library=0.89), ("plain arrays",)),
        (row("ring", "window", 4 * M, hosts=2, wire=1.16), ("between hosts", "nβ)")),
    ],
)
def test_one_bad_size_breaks_one_promise_and_is_named(changed, words):
    key = ("algorithm", "buffer", "bytes", "hosts")
    rows = [r for r in good() if any(r[k] != changed[k] for k in key)]
    assert len(rows) == len(good()) - 1
    found = verdict([*rows, changed])
    broken = [told for told in found.values() if told["kept"] is False]
    assert broken == [the(found, *words)]
    assert broken[0]["at"] == changed["bytes"]


@pytest.mark.parametrize(
    "fine",
    [
        row("auto", "window", 256 * K, library=2.7),
        row("ring", "plain", 256 * K, library=0.1),
        row("ring", "window", M, hosts=2, wire=9.0),
        row("tree", "window", M, library=0.1),
    ],
)
def test_what_is_not_promised_breaks_nothing(fine):
    assert False not in [told["kept"] for told in promises([*good(), fine], [])]


def test_the_mean_is_geometric_over_long_vectors_only():
    rows = [row("auto", "window", K, library=100.0)]
    rows += [row("auto", "window", n, library=x) for n, x in ((M, 2.7), (4 * M, 4.0))]
    mean = the(verdict(rows), "geometric")
    assert mean["read"] == pytest.approx((2.7 * 4.0) ** 0.5)
    assert mean["kept"] is False


def test_each_number_of_ranks_is_judged_by_itself():
    found = promises([*good(2), *good(4)], [])
    assert [told["ranks"] for told in found] == [2] * 7 + [4] * 7


def test_nothing_is_said_of_what_was_not_measured():
    assert promises([], []) == []
    assert [told["promise"] for told in promises([row("auto", "window", K)], [])] == [
        "auto below 256 KiB: worst × MPI.Allreduce"
    ]


def test_table():
    rows = [r for r in good() if r["bytes"] != M] + [row("auto", "window", M, library=2.0)]
    lines = table(promises(rows, [call(15.1e-6)])).splitlines()
    worst = next(line for line in lines if "worst × MPI" in line and "windows" in line)
    assert worst.split()[-5:] == ["2.7", "2.00", "1", "MiB", "NO"]
    assert lines[-1].split()[-4:] == ["≤", "15", "15.10", "NO"]
    share = next(line for line in lines if "copyto" in line)
    assert not share.rstrip().endswith(("yes", "NO"))
