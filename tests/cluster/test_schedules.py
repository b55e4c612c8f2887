"""Training by every all-reduce between hosts, all in one launch."""

import json

import pytest

from psrt.collective.registry import ALGORITHMS, ALL_REDUCES

pytestmark = pytest.mark.exhaustive

#: Under mpirun: trains by each name, and prints the digests of what it came to.
SCRIPT = """
import json, sys
import psrt
found = {}
for name in sys.argv[1:]:
    run = psrt.run(psrt.TrainConfig(
        mode="allreduce", allreduce=name, check_every=1, steps=5, batch_size=16, hidden=(16,),
        dataset="synthetic:600x20x4"))
    if run is not None:
        found[name] = run.summary.parameters_sha256, run.summary.test_loss
if found:
    print(json.dumps(found))
"""


@pytest.fixture(scope="session")
def trained(hosts):
    """Return what gives (digest, loss) by the all-reduce's name."""
    found = {}

    def run(vendor, ranks):
        if (vendor, ranks) not in found:
            done = hosts.mpirun(vendor, ranks, "-c", SCRIPT, *ALL_REDUCES)
            assert done.status == 0, done.stderr
            found[vendor, ranks] = json.loads(done.stdout)
        return found[vendor, ranks]

    return run


def test_every_all_reduce_trains_and_a_named_one_repeats(trained, vendor, layout):
    here = trained(vendor, layout)
    there = trained(vendor, (sum(layout),))
    assert list(here) == list(ALL_REDUCES)
    assert {name: here[name] for name in ALGORITHMS} == {name: there[name] for name in ALGORITHMS}
    for name, (_, loss) in here.items():
        assert loss == pytest.approx(here["ring"][1], rel=1e-4), name
