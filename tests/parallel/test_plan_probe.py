"""What planning measures on ranks."""

import pytest

from psrt.config import TrainConfig
from psrt.planning.families import FAMILIES
from psrt.planning.fitting import fitted
from psrt.planning.known import Known
from psrt.planning.probe import measure_job


@pytest.mark.mpi(min_size=2)
def test_a_job_is_measured(comm):
    lines = []
    config = TrainConfig(dataset="synthetic:512x8x3", hidden=(16,), batch_size=8)
    known = measure_job(comm, config, say=lines.append)
    work, site = known.workload, known.site
    assert work.n == 8 * 16 + 16 + 16 * 3 + 3
    assert work.batch_size == 8
    assert len(work.gradient_s) == comm.size
    assert min(min(its) for its in work.gradient_s) > 0
    assert site.hosts == (0,) * comm.size
    families = [it for it in FAMILIES if not it.codec and it.is_possible(comm.size - it.servers)]
    assert [it.family for it in known.runs] == [it.name for it in families]
    assert min(it.samples_per_s for it in known.runs) > 0
    assert (len(lines) > len(families)) == (comm.rank == 0)
    assert set(comm.allgather(known.to_json())) == {known.to_json()}
    assert Known.from_json(known.to_json()) == known
    if comm.rank == 0:
        assert fitted(known, config).details["rest sums"] > 0
