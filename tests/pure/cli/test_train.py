"""``psrt train`` on one rank: what it says of the ranks that a job needs."""

import pytest

from psrt.cli.simulate import main as simulate
from psrt.cli.train import main
from psrt.errors import ConfigError

JOB = ["--dataset", "synthetic:64x4x2", "--hidden", "none", "--steps", "2", "--batch-size", "4"]


def test_a_mode_with_servers_needs_ranks():
    with pytest.raises(ConfigError, match=r"needs at least a server and a worker.* launch -n 4 "):
        main(["--mode", "sync"])


def test_a_replay_needs_as_many_ranks_as_the_run_had(tmp_path):
    words = ["--mode", "async", "--workers", "5", "--servers", "2", *JOB]
    simulate([*words, "--record", "--out", str(tmp_path / "run")])
    with pytest.raises(ConfigError, match=r"needs at least a server and a worker.* launch -n 7 "):
        main(["--replay", str(tmp_path / "run")])
