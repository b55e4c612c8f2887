"""Law: what a run does keeps the contract of its mode, as its history tells it.

Promised in docs/guarantees.md, row by row. Seen red: a gate that lets workers one step further; and
see ``tests/pure/history``, where the policy, servers and workers are broken in turn.
"""

from __future__ import annotations

import numpy as np

from psrt.errors import TransportError
from psrt.history.check.run import check_run


def test_it_ends_with_a_result_or_names_who_died(job, result):
    found = result(job)
    if found.error is not None:
        assert isinstance(found.error, TransportError), found.error
        assert job["event"] == "loses a worker", found.error
        assert f"worker {job.workers - 1}" in str(found.error)
        assert "crashed at" in str(found.error)
        return
    assert np.isfinite(found.run.theta).all()
    outcome = check_run(found.out)
    assert outcome.ok, "\n".join(outcome.lines())
