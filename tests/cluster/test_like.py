"""``simulate --like`` of a run over hosts, each of which has its own clock."""

import json

import numpy as np
import pytest

from psrt.cli.simulate import main as simulate
from psrt.history import read_history
from psrt.history.reading import read_header

pytestmark = pytest.mark.exhaustive

JOB = ["--dataset", "synthetic:600x20x4", "--hidden", "16", "--batch-size", "16", "--steps", "60"]


@pytest.mark.parametrize("mode", ["sync", "async", "ssp"])
def test_a_run_over_hosts_is_simulated(train, vendor, tmp_path, mode):
    flags = ["--mode", mode, "--servers", 1, "--inject", "*:delay:0.01"]
    run = train(f"{vendor}-like-{mode}", vendor, (2, 1), *JOB, *flags)
    out = tmp_path / "simulated"
    assert simulate(["--like", str(run), "--timing-only", "--out", str(out)]) == 0
    real, found = (
        json.loads((folder / "summary.json").read_text())["seconds"] for folder in (run, out)
    )
    # A clock that is taken for another host's is hours off; what else a busy machine does to a run
    # is not the simulation's.
    assert real / 2 < found < 2 * real


def test_the_clocks_of_hosts_are_in_the_header(train, vendor):
    run = train(f"{vendor}-clocks", vendor, (1, 1), *JOB, "--mode", "async")
    clocks = read_header(run).clocks
    assert [host for host, *_ in clocks] == [0, 1, 0, 1]
    assert [ahead for host, _, ahead, _ in clocks if host == 0] == [0, 0]
    for host, at, ahead, error in clocks:
        if host == 1:
            # Hosts that this machine plays have boots of their own, but the ticks of one clock.
            assert ahead == pytest.approx(10_000, abs=0.01)
            assert 0 < error < 0.01
        assert (at > 0) == ((host, at, ahead, error) in clocks[2:])
    history = read_history(run)
    pushed, received = history.workers[0]["time"], history.shards[0]["time"]
    assert np.abs(pushed[-1] - received[-1]) < 1
