"""Law: what a run does keeps the contract of its mode, as its history tells it.

Promised in docs/guarantees.md, row by row. Seen red: a gate that lets workers one step further; and
see ``tests/pure/history``, where the policy, servers and workers are broken in turn; an event that
comes when the job is over.
"""

from __future__ import annotations

import numpy as np

from psrt.core.errors import TransportError
from psrt.history.check.run import check_run


def who_is_to_die_did(job, found):
    """Check that a job did not end before its event, and so show nothing."""
    ended = any(it.startswith("the job ended with status") for it in found.said)
    dies = job["event"] in ("is killed", "loses a worker")
    assert dies == (ended or bool(found.run.world.crashed)), found.said


def test_it_ends_with_a_result_or_names_who_died(job, result):
    found = result(job)
    if found.error is not None:
        assert isinstance(found.error, TransportError), found.error
        assert job["event"] == "loses a worker", found.error
        assert f"worker {job.workers - 1}" in str(found.error)
        assert "crashed at" in str(found.error)
        return
    who_is_to_die_did(job, found)
    assert np.isfinite(found.run.theta).all()
    outcome = check_run(found.out)
    assert outcome.ok, "\n".join(outcome.lines())
