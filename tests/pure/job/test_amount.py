"""How far training is: what the workers of a process know of it, or its servers."""

import pytest

from psrt.config import TrainConfig
from psrt.job.amount import Training
from psrt.job.session import run_job
from psrt.job.virtual import VirtualLauncher
from psrt.progress import PROGRESS
from psrt.runtime.server import Server


class Looked(VirtualLauncher):
    """Keeps what is known at each report: of all roles, and as servers alone would know it."""

    async def run(self, roles, finished):
        servers = {rank: it for rank, it in roles.items() if isinstance(it, Server)}
        self.amounts, self.told, hear = [], [], self.on_report
        alone = Training(self.config, self, servers, None) if servers else None

        def on_report(report):
            hear(report)
            part = PROGRESS._parts[-1]
            self.amounts.append(part.look())
            if alone is not None:
                self.told.append(alone())

        self.on_report = on_report
        await super().run(roles, finished)


def looked(**knobs):
    config = TrainConfig(hidden=(4,), **knobs)
    launcher = Looked(3, seed=1)
    launcher.config = config
    before = PROGRESS._parts
    run_job(launcher, config)
    assert PROGRESS._parts == before
    return launcher


@pytest.mark.parametrize("mode", ["async", "sync", "allreduce", "gossip"])
def test_steps_are_counted_of_those_that_are_planned(mode):
    launcher = looked(mode=mode, steps=20, log_every=5)
    for amounts in filter(None, (launcher.amounts, launcher.told)):
        done = [it.done for it in amounts]
        assert {(it.total, it.noun) for it in amounts} == {(20, "step")}
        assert done == sorted(done)
        assert done[0] < 10
        assert done[-1] in (19, 20)  # the last report may come before the last push of others
        assert all(it.note.endswith(" of virtual time") for it in amounts)
    assert bool(launcher.told) == (mode in ("async", "sync"))
    assert launcher.amounts[-1].detail.startswith("epoch ")


def test_epochs_are_where_they_say_how_long_it_takes():
    launcher = looked(mode="async", epochs=2, log_every=5)
    for amounts in (launcher.amounts, launcher.told):
        done = [it.done for it in amounts]
        assert {(it.total, it.noun) for it in amounts} == {(2, "epoch")}
        assert done == sorted(done)
        assert 0 < done[0] < 1
        assert done[-1] == pytest.approx(2, abs=0.1)
        assert amounts[-1].note.startswith("step 30  ")
