"""What a run held is free when it ends, without Python's collector of cycles: many may follow."""

import gc
import weakref

import pytest

import psrt
from psrt.history.ring import EventRing
from psrt.runtime.updater import Updater

#: Of all strategies, with what makes another one of them, or gives it more to be called back by.
RUNS = {
    "sync": {"mode": "sync", "shards_per_server": 2},
    "async": {"mode": "async", "codec": "top-k"},
    "softsync": {"mode": "softsync"},
    "local-sgd": {"mode": "local-sgd", "local_steps": 1},
    "fragments": {"mode": "local-sgd", "local_steps": 2, "fragments": 2},
    "easgd": {"mode": "easgd"},
    "allreduce": {"mode": "allreduce", "bucket_bytes": 1000},
    "gradients": {"mode": "allreduce", "bucket_bytes": 1000, "shard": "gradients"},
    "parameters": {"mode": "allreduce", "shard": "parameters"},
    "pipeline": {"mode": "allreduce", "parallel": "pipeline:3"},
    "push-sum": {"mode": "gossip", "push_sum": True},
    "by-host": {"mode": "gossip", "by_host": True},
    "choco": {"mode": "gossip", "codec": "top-k"},
    "pairs": {"mode": "gossip", "asynchronous": True, "topology": "star"},
    "checkpoints": {"mode": "allreduce", "checkpoint_every": 1},
    "servers' checkpoints": {"mode": "sync", "checkpoint_every": 1},
}


@pytest.mark.mpi(min_size=3)
def test_a_run_leaves_nothing_to_the_collector(comm, shared_folder, monkeypatch):
    made = []

    def noted(kind):
        class Noted(kind):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                made.append(weakref.ref(self))

        return Noted

    monkeypatch.setattr("psrt.job.last_events.EventRing", noted(EventRing))
    monkeypatch.setattr("psrt.job.build.Updater", noted(Updater))
    left = {}
    gc.collect()
    gc.disable()
    try:
        for name, knobs in RUNS.items():
            if "parallel" in knobs and comm.size % 3:
                continue
            made.clear()
            out = str(shared_folder / name) if "checkpoint_every" in knobs else None
            psrt.run(psrt.TrainConfig(steps=2, hidden=(4, 4), out=out, **knobs), comm=comm)
            left[name] = [type(it()).__mro__[1].__name__ for it in made if it() is not None]
            assert made
    finally:
        gc.enable()
    assert not any(left.values()), left
