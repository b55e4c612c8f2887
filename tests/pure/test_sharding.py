"""The memory that sharing out leaves, by hand."""

from __future__ import annotations

import pytest

from psrt.sharding import Memory, Sharing, memory


@pytest.mark.parametrize(
    ("sharing", "due"),
    [
        (None, (4000, 4000, 8000, 0)),
        (Sharing.OPTIMIZER, (4000, 4000, 1000, 0)),
        (Sharing.GRADIENTS, (4000, 2400, 1000, 0)),
        (Sharing.PARAMETERS, (500, 2400, 1000, 2400)),
    ],
)
def test_adam_on_eight_workers(sharing, due):
    """k = 2 vectors; buckets of 300, 300, 300 and 100 parameters, two of which are there."""
    found = memory(sharing, 1000, workers=8, vectors=2, buckets=[300, 300, 300, 100])
    assert found == Memory(*due)
    assert found.total == sum(due)


def test_a_single_bucket_is_there_once():
    found = memory(Sharing.PARAMETERS, 100, workers=2, vectors=0, buckets=[100])
    assert found == Memory(200, 400, 0, 400)
