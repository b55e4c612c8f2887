"""Jobs in virtual time that are taken apart at every step, and go on from there.

What is compared at the end is everything: `differences` walks over all that two objects hold, not
over what they say of themselves, so that it finds what they forgot to say.
"""

from __future__ import annotations

import enum
import functools
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from psrt.config import TrainConfig
from psrt.job.launcher import Roles
from psrt.job.session import run_job
from psrt.job.virtual import SimulatedRun, VirtualLauncher
from psrt.runtime.server import Server
from psrt.runtime.worker import Worker

#: What two runs may differ in, by the name of the attribute, and of a class where others have one
#: of that name that counts.
FREE = {
    # times, and what was sent before and after a job was interrupted
    *("seconds", "_since", "_start", "_stopped", "_received_at", "waited", "waited_for", "_waited"),
    *("_ready_at", "_untold"),
    # the newest report, which has both
    "_reports",
    *("_waits", "_bytes", "_earlier", "bytes_sent", "bytes_received", "collected"),
    # whose message came last, of several that come at the same time
    *("_cause", "_hindmost", "_awaited"),
    # the buffers of versions and of what is sent, of which another one may be the newest, and views
    *("buffers", "newest", "_holds", "_leases", "_views", "_landings", "_offers"),
    # what a frame leaves of a longer one before it, and of whose push came last
    *("Codec._frame", "PushDecoder._codec"),
    # who asks
    *("at_boundary", "at_version", "at_round"),
}  # fmt: skip


#: The transport, and the model and data, which all workers share.
APART = ("psrt.simulation.", "psrt.model.", "psrt.data.", "psrt.runtime.problem")


class Snapshot(NamedTuple):
    """A job at one step."""

    #: (n,) the parameters that are handed out when it goes on; None if they are in ``parts``.
    theta: np.ndarray | None
    #: The state of each role, by its name.
    parts: dict[str, Any]


class Ended(NamedTuple):
    """A job that was trained to its end."""

    run: SimulatedRun
    roles: dict[str, Any]
    #: By step.
    snapshots: dict[int, Snapshot]


def trained(
    config: TrainConfig,
    *,
    workers: int = 3,
    problem: Any = None,
    seed: int = 0,
    start: Snapshot | None = None,
    cuts: bool = False,
    hosts: Sequence[int] = (),
) -> Ended:
    """Train to the end.

    Args:
        config: of the job.
        workers: W.
        problem: to train; None takes the config's own.
        seed: of the order of events.
        start: where to go on; None begins at the beginning.
        cuts: whether to take a snapshot of every step that is a cut.
        hosts: the number of ranks of each host; empty for one.
    """
    launcher = _Launcher(workers, seed=seed, hosts=hosts, start=start, cuts=cuts)
    # What was never written has the same bits in both runs then.
    with mock.patch("numpy.empty", np.zeros), mock.patch("numpy.empty_like", np.zeros_like):
        run = run_job(launcher, config, problem)
    assert run is not None
    return Ended(launcher.result(run), launcher.named, launcher.snapshots())


class _Launcher(VirtualLauncher):
    def __init__(self, workers: int, *, start: Snapshot | None, cuts: bool, **job: Any):
        super().__init__(workers, **job)
        self.begin, self.cuts = start, cuts
        self.parts: dict[int, dict[str, Any]] = {}
        self.thetas: dict[int, dict[str, np.ndarray]] = {}
        self.named: dict[str, Any] = {}

    def start_of(self, problem: Any) -> Any:
        initial, n = super().start_of(problem)
        if self.begin is not None and self.begin.theta is not None:
            initial = self.begin.theta
        return initial, n

    async def run(self, roles: Roles, finished: Callable[[], bool]) -> None:
        for rank, role in roles.items():
            if isinstance(role, Server):
                for it in role.shards:
                    self.named[f"shard {it.number}"] = it
            else:
                self.named[f"worker {self.world.role_map.worker_of(rank)}"] = role
        for name, it in self.named.items():
            if self.begin is not None:
                it.restore(copied(self.begin.parts[name]))
            if self.cuts:
                hook = functools.partial(self._take, name, it)
                if isinstance(it, Worker):
                    it.at_boundary = hook
                else:
                    it.at_version = hook
        await super().run(roles, finished)

    async def _take(self, name: str, it: Any, step: int) -> bool:
        self.parts.setdefault(step, {})[name] = copied(it.state())
        theta = it.theta if isinstance(it, Worker) else it.shard.theta
        self.thetas.setdefault(step, {})[name] = theta.copy()
        return False

    def snapshots(self) -> dict[int, Snapshot]:
        found = {}
        for step, parts in self.parts.items():
            if set(parts) == set(self.named):
                thetas = self.thetas[step]
                shards = [thetas[name] for name in sorted(self.named) if name.startswith("shard")]
                theta = np.concatenate(shards) if shards else thetas["worker 0"]
                found[step] = Snapshot(theta, parts)
        return found


def copied(tree: Any) -> Any:
    """Return a copy of a tree that has only what a tree may have."""
    if isinstance(tree, dict):
        assert all(type(name) is str and name and "/" not in name for name in tree), tree.keys()
        return {name: copied(it) for name, it in tree.items()}
    if isinstance(tree, list):
        assert all(type(it) in (bool, int, float, str, type(None)) for it in tree), tree
        return list(tree)
    if isinstance(tree, np.ndarray):
        return tree.copy()
    assert type(tree) in (bool, int, float, str, type(None)), tree
    return tree


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return by path what two sets of roles hold and is not the same, to the bit."""
    first, second = dict(leaves(one)), dict(leaves(other))
    return {
        path: (first.get(path), second.get(path))
        for path in {**first, **second}
        if first.get(path, "nothing") != second.get(path, "nothing")
    }


def leaves(value: Any, path: str = "", seen: dict[int, Any] | None = None) -> Iterator[Any]:
    """Yield the path and the value of everything that an object holds, each object once."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | enum.Enum):
        yield path, repr(value)
        return
    if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
        return
    if type(value).__module__.startswith(APART):
        return
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, np.ndarray):
        yield path, (value.shape, str(value.dtype), value.tobytes())
    elif isinstance(value, np.generic):
        yield path, repr(value)
    elif isinstance(value, np.random.Generator):
        yield path, repr(value.bit_generator.state)
    elif isinstance(value, random.Random):
        yield path, repr(value.getstate())
    elif isinstance(value, Mapping):
        yield f"{path}#", sorted(map(repr, value))
        for key, it in value.items():
            if key not in FREE:
                yield from leaves(it, f"{path}[{key!r}]", seen)
    elif isinstance(value, set | frozenset):
        yield path, sorted(map(repr, value))
    elif isinstance(value, functools.partial):
        yield from leaves([value.func, value.args, value.keywords], f"{path}()", seen)
    elif isinstance(value, types.MethodType):
        yield from leaves(value.__self__, f"{path}.self", seen)
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if name not in FREE:
                yield from leaves(cell.cell_contents, f"{path}({name})", seen)
    else:
        own = _attributes(value)
        if not own and hasattr(value, "__iter__") and hasattr(value, "__len__"):
            yield f"{path}#", len(value)
            own = {str(i): it for i, it in enumerate(value)}
        kinds = [kind.__name__ for kind in type(value).__mro__]
        for name, it in own.items():
            if name not in FREE and not FREE.intersection(f"{kind}.{name}" for kind in kinds):
                yield from leaves(it, f"{path}.{name}", seen)


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return found | getattr(value, "__dict__", {})
