"""Every mode between hosts: it trains, keeps its contract, and repeats where it promises to."""

import hashlib
from typing import Any, NamedTuple

import pytest

from psrt.cli.simulate import main as simulate
from psrt.config.modes import MODES
from psrt.history.check.run import check_run
from psrt.history.reading import read_header
from psrt.report.files import MODEL
from support.hosts import VENDORS

JOB = ["--dataset", "synthetic:600x20x4", "--hidden", "16", "--batch-size", "16", "--steps", "25"]
#: What `auto` takes depends on the hosts, and with it the order of a sum.
NAMED = ["--servers", "0", "--allreduce", "ring"]


class Case(NamedTuple):
    """A way to train."""

    flags: list[Any]
    #: Whether the same command ends in the same bits, see docs/guarantees.md.
    repeats: bool


def cases():
    """Every mode of the registry by its row, with servers and without where it may have both."""
    found = {}
    for mode in MODES.values():
        flags, repeats = ["--mode", mode.name], not mode.is_stale
        if mode.may_have_servers:
            found[mode.name] = Case(flags, repeats)
        if mode.sums:
            found[f"{mode.name} without servers"] = Case(flags + NAMED, repeats)
        if mode.mixes:
            found[mode.name] = Case([*flags, "--servers", 0], repeats)
        if mode.backup:
            found[f"{mode.name} with a backup"] = Case([*flags, f"--{mode.backup}", 1], False)
        if mode.asynchronous:
            even = ["--topology", "star"] if mode.mixes else []  # no cycle of three ranks
            more = [*found[mode.name].flags, *even, f"--{mode.asynchronous}"]
            found[f"{mode.name} {mode.asynchronous}"] = Case(more, False)
    return found


CASES = cases()


def flags_of(case, ranks, *more):
    """Return the flags: as many servers as hosts but one, where there are any."""
    servers = [] if "--servers" in case.flags else ["--servers", len(ranks) - 1]
    return [*JOB, *case.flags, *servers, *more]


@pytest.fixture(scope="session")
def on_one_host(train):
    """Return what trains with the same ranks on one host, once."""
    runs = {}

    def trained(name, vendor, ranks):
        key = name, sum(ranks)
        if key not in runs:
            folder = f"one-host/{name}-{sum(ranks)}".replace(" ", "-")
            runs[key] = train(folder, vendor, (sum(ranks),), *flags_of(CASES[name], ranks))
        return runs[key]

    return trained


def model_sha256(run):
    return hashlib.sha256((run / MODEL).read_bytes()).hexdigest()


#: Each mode under either MPI, on one layout under one and on the other under the other.
ONCE = [
    (name, vendor, ("two", "three")[(i + j) % 2])
    for i, name in enumerate(CASES)
    for j, vendor in enumerate(VENDORS)
]


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("name", "vendor", "layout"), ONCE, indirect=["vendor", "layout"])
def test_a_mode(train, on_one_host, capsys, vendor, layout, name):
    case = CASES[name]
    spread = [] if "--servers" in case.flags else ["--placement", "spread"]
    folder = f"{vendor}-{len(layout)}/{name}".replace(" ", "-")
    run = train(folder, vendor, layout, *flags_of(case, layout, *spread))
    outcome = check_run(run)
    assert outcome.ok, outcome.lines()
    assert len(set(read_header(run).hosts)) == len(layout)
    if case.repeats:
        assert model_sha256(run) == model_sha256(on_one_host(name, vendor, layout))
    assert simulate(["--replay", str(run)]) == 0
    assert "the same parameters to the bit" in capsys.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.parametrize(("servers", "ranks"), [(2, (1, 3)), (3, (1, 3, 4))])
def test_servers_are_spread_over_the_hosts(train, vendor, servers, ranks):
    flags = ["--mode", "sync", "--servers", servers, "--placement", "spread"]
    run = train(f"{vendor}-spread-{servers}", vendor, (2, 2, 1), *JOB, *flags)
    assert read_header(run).servers == ranks
