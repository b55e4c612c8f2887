"""What benchmarks and studies make of their rows: bounds, targets, medians, ties and verdicts."""

from __future__ import annotations

from itertools import pairwise, product

import hosts
import hosts_ps
import numpy as np
import pytest
import targets as script
from studies import faults, learner_merges, learners, standings
from studies.compression_table import COSTS, FAILS, OPEN, PAYS, cells
from studies.faults import BARE, FAULTS, Fault, Seen
from studies.softsync_lines import Errors, lines_of

from psrt.history import EVENT, Kind
from support.cases import each


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


def test_medians_are_of_the_seeds():
    rows = runs("sync", 3.0, 1.0, 2.0, staleness_mean=1.5)
    rows[0]["test_accuracy"] = 0.9
    [cell] = standings.medians(rows)
    assert (cell["seconds_to_accuracy"], cell["fastest"], cell["slowest"]) == (2.0, 1.0, 3.0)
    assert (cell["runs"], cell["reached"], cell["staleness_mean"]) == (3, 3, 1.5)
    assert (cell["test_accuracy"], cell["worst_accuracy"]) == (0.96, 0.9)


@each(("seconds", "median", "spread", "reached"), [
    ((1.0, None, 2.0), 2.0, (1.0, None), 2),
    ((1.0, None, None), None, (1.0, None), 1),
    ((None, None), None, (None, None), 0),
])  # fmt: skip
def test_never_is_longer_than_any_time(seconds, median, spread, reached):
    [cell] = standings.medians(runs("sync", *seconds))
    assert cell["seconds_to_accuracy"] == median
    assert (cell["fastest"], cell["slowest"], cell["reached"]) == (*spread, reached)


def standing(*groups, **options):
    rows = [row for group in groups for row in group]
    return [(c["standing"], c["ratio"]) for c in standings.medians(rows, **options)]


@each(("other", "expected"), [
    ((1.5, 3.0, 4.0), "tied"),  # the best's median is in its spread
    ((1.9, 2.0, 4.0), "tied"),  # or the other way round
    ((1.51, 2.01, 4.0), "behind"),  # the spreads overlap, but no median
    ((1.0, 3.0, None), "behind"),  # no tie with what does not always get there
    ((None, None, None), "never"),
    ((1.5, None, None), "never"),
])  # fmt: skip
def test_a_standing_is_beside_the_best(other, expected):
    (first, one), (second, ratio) = standing(runs("best", 1.0, 1.5, 2.0), runs("other", *other))
    assert (first, one) == ("first", 1.0)
    assert second == expected
    assert ratio == (None if expected == "never" else pytest.approx(other[1] / 1.5))


def test_near_is_within_a_tenth_but_apart_and_a_baseline_does_not_compete():
    groups = [runs(str(seconds), seconds) for seconds in (1.0, 1.0, 1.1, 1.11)]
    assert [word for word, _ in standing(*groups)] == ["first", "near", "behind"]
    found = standing(runs("serial", 1.0), runs("a", 2.0), baseline="serial")
    assert found == [("baseline", 0.5), ("first", 1.0)]


def compressed(setting, seconds, *, accuracy=0.95, sent=1e6, link="slow", mode="sync", lr=0.1):
    return {
        "mode": mode, "setting": setting, "link": link, "lr": lr, "bytes_sent": sent,
        "test_accuracy": accuracy, "seconds_to_accuracy": seconds,
    }  # fmt: skip


PLAIN = [compressed("none", seconds) for seconds in (4.0, 5.0, 6.0)]


def compression_standing(*seconds):
    found = cells([*PLAIN, *[compressed("sign", it) for it in seconds]])
    return found[1]["standing"], found[1]["ratio"]


@pytest.mark.parametrize(("seconds", "expected"), [
    ((1.0, 3.9, 9.0), (PAYS, 0.78)),
    ((4.0, 4.0, 4.0), (OPEN, 0.8)),
    ((6.0, 6.0, 6.0), (OPEN, 1.2)),
    ((1.0, 6.1, 6.2), (COSTS, 1.22)),
    ((1.0, None, None), (FAILS, None)),
])  # fmt: skip
def test_a_codec_pays_where_its_median_is_outside_the_spread(seconds, expected):
    found, ratio = compression_standing(*seconds)
    assert (found, ratio) == (expected[0], pytest.approx(expected[1]))


def softsync(n, rate, error, histogram=(0, 1)):
    diverged = error is None
    return {
        "softsync": n, "staleness_rate": rate, "test_error": error,
        "errors": [] if diverged else [[1, 0.5], [2, error]],
        "histogram": None if diverged else list(histogram),
    }  # fmt: skip


def test_lines_pool_the_runs_of_an_n():
    rows = [
        softsync(30, "constant", 0.9, [0] * 29 + [3]),
        softsync(30, "inverse", 0.05, [0] * 60 + [4, 1]),  # 60 is 2n: only the last is beyond
        softsync(1, "inverse", 0.02, [0, 8, 1, 1]),
        softsync(30, "inverse", 0.03, [0, 0]),
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


def test_a_learner_is_away_for_a_restart_and_fails_again_only_later():
    cluster = learners.Cluster(workers=3, spread=2, mtbf=50)
    model = learners.Model(step_s=0.1, parameters=10, local_steps=4, restart=20)
    speeds = learners.speeds_of(cluster)
    faults = list(learners.failures(cluster, model, speeds, seed=0, until_s=1000))
    assert {it.lasts for it in faults} == {2.0}
    for worker, slow in enumerate(speeds):
        mine = [it.at for it in faults if it.who == (("worker", worker),)]
        assert all(b - a > 2.0 for a, b in pairwise(mine))
        assert 1000 / len(mine) - 2.0 == pytest.approx(50 * 0.1 * slow, rel=0.2)
    calm = learners.Cluster(mtbf=float("inf"))
    assert not list(learners.failures(calm, model, [1.0], seed=0, until_s=1e9))


def test_goodput_is_what_was_computed_over_what_could_be():
    # Two workers, steps of 1 s and 2 s; from 2 s to 10 s they take 8, and 2 and a half.
    steps = [(0, t + 1.0, 1.0) for t in range(11)] + [(1, 3, 2.0), (1, 6, 2.0), (1, 9, 2.0)]
    events = np.zeros(len(steps) + 1, EVENT)
    for event, (worker, time, seconds) in zip(events, steps, strict=False):
        event["kind"], event["worker"] = Kind.STEP, worker
        event["time"], event["seconds"] = time, seconds
    events[-1]["kind"], events[-1]["time"] = Kind.LEAVE, 10.0
    found = learners.measured(events, np.array([1.0, 2.0]))
    assert found["goodput"] == pytest.approx((8 * 1 + 2.5 * 2) / (2 * 8))


def test_the_wrong_learner_is_the_last_and_only_its_gradients_are():
    class Ones:
        def loss_and_grad(self, theta, batch, out):
            out[:] = 1
            return 0.5

    out = np.empty(4, np.float32)
    for wrong, norm in ((learner_merges.SIGN, 2), (learner_merges.NOISE, 20)):
        problem = learner_merges.Wronged(Ones(), wrong, 3, 10, seed=0)
        for worker in range(2):
            assert problem.of_worker(worker).loss_and_grad(None, None, out) == 0.5
            assert out.tolist() == [1] * 4
        problem.of_worker(2).loss_and_grad(None, None, out)
        assert np.linalg.norm(out) == pytest.approx(norm)
        assert not (out > 0).all()


def test_what_diverged_is_said_instead_of_a_mean():
    rows = [{"accuracy": 0.9}, {"accuracy": 0.92}]
    assert learner_merges.cell(rows) == "91.0 ± 1.4"
    assert learner_merges.cell([*rows, {"accuracy": None}]) == "1 of 3 diverged"


def rows_of_the_page():
    page = faults.PAGE.read_text()
    return page[page.index(faults.BEGIN) : page.index(faults.END)].splitlines()[1:]


def test_the_page_has_every_row_and_no_other():
    for row, fault in zip(rows_of_the_page()[2:], FAULTS, strict=True):
        begin = f"{faults.key(fault)} {fault.tried} | {fault.promised} |"
        assert row.startswith(begin)
        cells = row.removeprefix(begin).split("|")[:-1]
        assert [bool(cell.strip()) for cell in cells] == [True] * len(faults.VENVS)


def test_a_cell_is_changed_and_all_others_stay():
    rows = rows_of_the_page()
    got = faults.changed(rows[2:], FAULTS[1], "MPICH", "5, 9 s")
    assert got[3] == rows[3].replace(rows[3].split(" | ")[-1], "5, 9 s |")
    assert got[:3] + got[4:] == rows[:3] + rows[4:]
    assert faults.changed(rows[3:], FAULTS[0], "MPICH", "5, 9 s")[2].endswith("|  | 5, 9 s |")


KILLED, BARELY = Fault("one host", "SIGKILL", 2), Fault(BARE, "SIGKILL", 2)


def came(status, seconds, *ranks, results=False, left=False):
    lines = "".join(f"psrt: error: worker 1 (rank {rank}) was killed\n" for rank in ranks)
    return Seen(status, f"other words\n{lines}", seconds, results, left)


@each(("fault", "mpi", "async_", "expected"), [
    (KILLED, "MPICH", came(5, 1.4, 2), "5, 1 s"),
    (KILLED, "MPICH", came(5, 3.2, 2), "5, 1 to 3 s"),
    (KILLED, "MPICH", came(4, 1, 2), "4 or 5, 1 s; **async: status 4**"),
    (KILLED, "MPICH", came(5, 1, 1), "5, 1 s; **async: another rank named**"),
    (KILLED, "MPICH", came(5, 1, 2, 2), "5, 1 s; **async: 2 lines**"),
    (KILLED, "MPICH", came(5, 1), "5, 1 s; no line in 1 of 2; **async: no line**"),
    (KILLED, "MPICH", came(5, 1, 2, results=True), "5, 1 s; **async: results**"),
    (KILLED, "MPICH", came(5, 1, 2, left=True), "5, 1 s; **async: a process is left**"),
    (BARELY, "MPICH", came(9, 1), "5 or 9, 1 s; no line in 1 of 2"),
    (BARELY, "Open MPI", came(9, 1), "5 or 9, 1 s; no line in 1 of 2; **async: no line**"),
    (BARELY, "MPICH", came(0, 1, 2), "0 or 5, 1 s; **async: status 0**"),
])  # fmt: skip
def test_what_was_seen_in_all_modes_is_summed_up(fault, mpi, async_, expected):
    seen = {"sync": came(5, 1.2, 2), "async": async_}
    assert faults.summed_up(fault, mpi, seen) == expected


def test_results_are_promised_where_the_others_continue():
    stopped = Fault("one host", "SIGSTOP", 2)
    with_results = came(4, 6, 2, results=True)
    assert faults.summed_up(stopped, "MPICH", {"async": with_results}) == "4, 6 s"
    told = faults.summed_up(stopped, "MPICH", {"sync": with_results, "ssp": came(4, 6, 2)})
    assert told == "4, 6 s; **sync: results**; **ssp: no results**"


# --- benchmarks ----------------------------------------------------------------------------------

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
