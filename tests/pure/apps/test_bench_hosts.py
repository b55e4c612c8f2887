"""What the tables of ``docs/hosts.md`` make of the rows of a benchmark."""

import json

import hosts
import pytest

M = 1 << 20
#: Seconds of M bytes on a wire of 100 Mbit/s.
WIRE_S = M * 8 / 100e6


def row(algorithm, seconds, *, pattern="back to back", buffer="window", **more):
    return {
        "algorithm": algorithm, "chosen": "ring" if algorithm == "auto" else algorithm,
        "buffer": buffer, "pattern": pattern, "bytes": 4 * M, "seconds": {"median": seconds},
        "predicted_s": 1.0, "over_library": {"median": 2.0}, **more,
    }  # fmt: skip


def found(layout, **seconds):
    rows = [row(name.replace("_", "-").replace("node-", "node+"), s) for name, s in seconds.items()]
    rows += [row("auto", 9.9, pattern="after a barrier"), row("auto", 9.9, buffer="plain")]
    rows += [row("MPI.Allreduce", 9.9, buffer="plain"), row("exchange", 0.1)]
    (size,) = hosts.sizes(rows, layout, 100)
    return size


def test_a_schedule_is_held_against_its_own_bound():
    size = found((1, 1, 1), auto=1.0, ring=2.0, halving_doubling=3.0)
    assert size.bound == pytest.approx(4 / 3 * 4 * WIRE_S)
    assert size.ratios["ring"] == pytest.approx(2.0 / size.bound)
    # Three ranks are no power of two: one hands all over first, and gets all back at the end.
    assert size.ratios["halving-doubling"] == pytest.approx(3.0 / (3 * 4 * WIRE_S))
    assert (size.fastest, size.auto, size.predicted, size.over_library) == ("ring", 1.0, 1.0, 2.0)


def test_ranks_of_a_host_share_its_link():
    size = found((2, 2), auto=1.0, ring=2.0, node_ring=1.0)
    assert size.bound == pytest.approx(4 * WIRE_S)
    assert size.ratios["node+ring"] == pytest.approx(1.0 / (4 * WIRE_S))
    assert size.ratios["ring"] == pytest.approx(2.0 / (1.5 * 4 * WIRE_S))


@pytest.mark.parametrize(
    ("seconds", "misses"),
    [
        ({"auto": 1.1, "ring": 1.0}, []),
        ({"auto": 1.2, "ring": 1.0}, ["auto takes 1.20 times as long as ring at 4 MiB"]),
        ({"auto": 1.0, "ring": 1.16}, ["ring takes 1.16 times its bound at 4 MiB"]),
        ({"auto": 1.0, "ring": 1.0, "tree": 9.0}, []),
    ],
)
def test_what_falls_short_is_named(seconds, misses):
    size = found((1, 1), **{name: s * 4 * WIRE_S for name, s in seconds.items()})
    assert list(size.misses) == misses
    assert hosts.table([size])[-2] == (f"Missed: {misses[0]}." if misses else "Nothing missed.")


def test_an_auto_slower_than_the_library_is_named():
    rows = [row("auto", 1.0, over_library={"median": 0.94}), row("ring", 1.0)]
    (size,) = hosts.sizes(rows, (1, 1), 1)
    assert list(size.misses) == ["auto has 0.94 of MPI.Allreduce's speed at 4 MiB"]


def test_short_calls_of_more_ranks_than_cores_are_left_out():
    rows = [{**row(name, 1e-3), "bytes": n} for name in ("auto", "ring") for n in (1024, 4 * M)]
    assert [size.nbytes for size in hosts.sizes(rows, (1,) * 1000, 100)] == [4 * M]
    assert [size.nbytes for size in hosts.sizes(rows, (1,), 100)] == [1024, 4 * M]


def test_a_table_has_a_line_a_size(tmp_path):
    rows = [row(name, 0.4) for name in ("auto", "ring", "halving-doubling")]
    (tmp_path / "openmpi-1+1-100.json").write_text(json.dumps({"machine": "M", "all-reduce": rows}))
    lines = list(hosts.tables(tmp_path, "openmpi"))
    assert lines[:3] == ["M.", "", "**2 hosts × 1, 100 Mbit/s**"]
    assert lines[6] == (
        "| 4 MiB | 336 ms | `ring` | 1 s | 400 ms | 1.00 | `ring` | 1.00 | 1.19 | 1.19 | 2.00 |"
    )
