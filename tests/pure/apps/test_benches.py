"""What benchmarks measure, and what tables and targets make of their rows."""

from itertools import product

import hosts
import hosts_ps
import pytest
import targets as script

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


def test_a_schedule_is_held_against_its_own_bound_and_ranks_of_a_host_share_its_link():
    size = found((1, 1, 1), auto=1.0, ring=2.0, halving_doubling=3.0)
    assert size.bound == pytest.approx(4 / 3 * 4 * WIRE_S)
    assert size.ratios["ring"] == pytest.approx(2.0 / size.bound)
    # Three ranks are no power of two: one hands all over first, and gets all back at the end.
    assert size.ratios["halving-doubling"] == pytest.approx(3.0 / (3 * 4 * WIRE_S))
    assert (size.fastest, size.auto, size.predicted, size.over_library) == ("ring", 1.0, 1.0, 2.0)
    size = found((2, 2), auto=1.0, ring=2.0, node_ring=1.0)
    assert size.bound == pytest.approx(4 * WIRE_S)
    assert size.ratios["node+ring"] == pytest.approx(1.0 / (4 * WIRE_S))
    assert size.ratios["ring"] == pytest.approx(2.0 / (1.5 * 4 * WIRE_S))


@pytest.mark.parametrize(("seconds", "misses"), [
    ({"auto": 1.1, "ring": 1.0}, []),
    ({"auto": 1.2, "ring": 1.0}, ["auto takes 1.20 times as long as ring at 4 MiB"]),
    ({"auto": 1.0, "ring": 1.16}, ["ring takes 1.16 times its bound at 4 MiB"]),
    ({"auto": 1.0, "ring": 1.0, "tree": 9.0}, []),
])  # fmt: skip
def test_what_falls_short_is_named(seconds, misses):
    size = found((1, 1), **{name: s * 4 * WIRE_S for name, s in seconds.items()})
    assert list(size.misses) == misses
    assert hosts.table([size])[-2] == (f"Missed: {misses[0]}." if misses else "Nothing missed.")


def test_each_time_is_held_against_the_bytes_of_one_direction():
    # Of 4 workers, 4 MiB each, at 12.5 MB/s.
    assert hosts_ps.bound_s(1, 100) == pytest.approx(4 * (4 << 20) / 12.5e6)
    rows = []
    for servers, mode, shards in product(hosts_ps.SERVERS, hosts_ps.MODES, hosts_ps.SHARDS):
        bound = hosts_ps.bound_s(servers, 100)
        rows.append({
            "servers": servers, "mode": mode, "shards_per_server": shards,
            "psrt_s": {"median": (2 if shards == 1 else 1.2) * bound},
            "plain_s": {"median": 2 * bound},
        })  # fmt: skip
    lines = hosts_ps.table(rows, 100)
    assert lines[2].split(" | ")[1:] == [
        "sync", "1.34 s", "2.68 s", "2.00", "2.68 s", "2.00", "1.61 s", "1.20 |"
    ]  # fmt: skip
    assert lines[-2] == "Nothing missed."


K, MIB = 1 << 10, 1 << 20
LENGTHS = [K << power for power in range(0, 17, 2)]


def sized(
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
    rows = [sized("auto", "window", n, ranks=ranks) for n in LENGTHS]
    rows += [
        sized("auto", "window", n, ranks=ranks, pattern="after a barrier") for n in LENGTHS[:4]
    ]
    rows += [sized("ring", "plain", n, ranks=ranks, library=1.0) for n in LENGTHS]
    rows += [sized("ring", "window", n, ranks=ranks, hosts=ranks, wire=1.1) for n in LENGTHS[5:]]
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


@pytest.mark.parametrize(("changed", "words"), [
    (sized("auto", "window", 4 * MIB, library=2.69), ("windows", "worst × MPI")),
    (sized("auto", "window", 256 * K, library=2.69), ("windows", "worst × MPI")),
    (sized("auto", "window", 64 * K, library=0.89), ("auto below",)),
    (sized("auto", "window", K, library=0.5, pattern="after a barrier"), ("after a barrier",)),
    (sized("ring", "plain", MIB, library=0.89), ("plain arrays",)),
    (sized("ring", "window", 4 * MIB, hosts=2, wire=1.16), ("between hosts", "nβ)")),
])  # fmt: skip
def test_one_bad_size_misses_one_target_and_is_named(changed, words):
    key = ("algorithm", "buffer", "bytes", "hosts", "pattern")
    rows = [r for r in good() if any(r[k] != changed[k] for k in key)]
    assert len(rows) == len(good()) - 1
    found = verdict([*rows, changed])
    missed = [target for target in found.values() if target["reached"] is False]
    assert missed == [the(found, *words)]
    assert missed[0]["at"] == changed["bytes"]
