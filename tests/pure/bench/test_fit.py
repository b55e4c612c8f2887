"""Constants come back out of times that were made from them."""

from dataclasses import replace

import numpy as np
import pytest

from psrt.bench.fit import Readings, as_text, doubt, fit_machine, solve
from psrt.collective.analysis.choose import predict
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts, NodeCosts
from psrt.collective.costs import LinkCosts

SIZES = [64, 1024, 65536, 1 << 20, 1 << 23]
TRUE = MachineCosts(
    inside=LinkCosts(4e-6, 3e-10, 2e-10),
    between=LinkCosts(30e-6, 9e-10, 2e-10),
    node=NodeCosts(sync_s=3e-6, byte_s=2e-10),
    cores=2,
    measured=(("mpi", (2,), 1024, 5e-6), ("mpi", (2,), 1 << 20, 1e-3)),
)


def readings_of(costs, **changed):
    exact = {
        "inside": {m: costs.inside.alpha + m * costs.inside.beta for m in SIZES},
        "between": {m: costs.between.alpha + m * costs.between.beta for m in SIZES},
        "fold": {m: m * costs.inside.gamma for m in SIZES},
        "node": {(p, n): predict("node", [p], n, 4, costs) for p in (2, 4) for n in SIZES},
        "library": {(p, n): s for _, (p,), n, s in costs.measured},
    }
    return Readings(**(exact | changed))


def close(a, b):
    return a == pytest.approx(b, rel=1e-6)


def test_exact_times_give_the_costs_back():
    fitted = fit_machine(readings_of(TRUE), cores=2)
    got = fitted.costs
    for name in ("inside", "between"):
        for constant in ("alpha", "beta", "gamma"):
            assert close(
                getattr(getattr(got, name), constant), getattr(getattr(TRUE, name), constant)
            )
    assert close(got.node.sync_s, 3e-6)
    assert close(got.node.byte_s, 2e-10)
    assert (got.cores, got.measured) == (2, TRUE.measured)
    assert all(fit.worst < 1e-6 for fit in fitted.fits.values())
    assert MachineCosts.from_json(got.to_json()) == got


def test_small_times_count_as_much_as_large_ones():
    rng = np.random.default_rng(0)
    sizes = np.repeat(SIZES, 20)
    times = (5e-6 + sizes * 4e-10) * rng.uniform(0.9, 1.1, sizes.size)
    fit = solve([(1.0, m) for m in sizes], times.tolist())
    # Plain least squares would leave α to the noise of the largest times, some 300 µs.
    assert fit.values[0] == pytest.approx(5e-6, rel=0.1)
    assert fit.values[1] == pytest.approx(4e-10, rel=0.1)
    assert 0.03 < fit.typical < 0.08
    assert fit.typical < fit.worst < 0.2
    assert fit.readings == 100


def test_residuals_tell_of_what_no_line_fits():
    fit = solve([(1.0, m) for m in (1, 10, 100)], [1.0, 5.0, 1.0])
    assert fit.worst > 0.3


def test_no_constant_is_negative():
    # Falling times: the best line has a negative slope.
    fit = solve([(1, 1), (1, 2), (1, 3)], [3.0, 2.0, 1.0])
    assert fit.values[1] == 0.0
    # Below the line through the origin: its intercept would be negative.
    fit = solve([(1, 100), (1, 1000)], [0.5e-6, 1e-5])
    assert fit.values[0] == 0.0
    assert fit.values[1] > 0


def test_what_was_not_measured_is_the_guess_and_is_said_to_be():
    fitted = fit_machine(readings_of(TRUE, inside={}, node={}, library={}), cores=7)
    default = DEFAULT_COSTS
    assert fitted.costs.inside == LinkCosts(default.inside.alpha, default.inside.beta, 2e-10)
    assert fitted.costs.node == default.node
    assert fitted.costs.cores == 7
    assert set(fitted.fits) == {"between", "fold"}
    assert as_text(fitted).count("not measured") == 4
    assert fit_machine(Readings(), cores=2).costs == default


def test_the_table_has_each_constant_in_its_unit():
    text = as_text(fit_machine(readings_of(TRUE), cores=2))
    lines = {line.split("  ")[0]: line.split()[-4:] for line in text.splitlines()[2:]}
    assert lines["α inside a host, per step (µs)"] == ["4", "0%", "0%", "5"]
    assert lines["β between hosts (ns/byte)"] == ["0.9", "0%", "0%", "5"]
    assert lines["byte, a rank's pass over the vector (ns/byte)"] == ["0.2", "0%", "0%", "10"]


def test_costs_of_a_busy_machine_are_doubted_and_those_of_another_are_not():
    assert doubt(fit_machine(readings_of(TRUE), cores=2)) is None
    readings = readings_of(TRUE)
    late = {m: s + 1.6e-3 for m, s in readings.inside.items()}  # turns of the scheduler
    found = doubt(fit_machine(replace(readings, inside=late), cores=2))
    assert found.startswith("α inside a host, per step: 1,60")
    # Some of the turns only: no line is near.
    for name in ("inside", "between", "fold", "node"):
        each = getattr(readings, name)
        odd = {key: s * (100.0 if k % 2 else 1.0) for k, (key, s) in enumerate(each.items())}
        assert doubt(fit_machine(replace(readings, **{name: odd}), cores=2)) is not None, name
