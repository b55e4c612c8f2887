"""Restores the roles of a run that resumes from a checkpoint."""

from __future__ import annotations

from psrt.checkpoint import Tree
from psrt.config import from_toml
from psrt.core.errors import CheckpointError, ConfigError, PsrtError
from psrt.core.partition import Span
from psrt.history.log import Owner
from psrt.job.build import policy_of
from psrt.job.checkpoints import hosts_text, parts_at
from psrt.job.launcher import Roles
from psrt.job.regroup import recut, shard_tree, worker_tree
from psrt.job.resuming import HOSTS, Resumption, is_shard, refusal
from psrt.job.saving import Part
from psrt.job.setup import Setup
from psrt.runtime.shard_server import ShardServer
from psrt.runtime.worker import Worker


def give_back(setup: Setup, roles: Roles, recorded_step: int) -> dict[int, dict[Owner, int]]:
    """Restore the roles of this process to their state in the checkpoint.

    Args:
        setup: the job.
        roles: of this process.
        recorded_step: the step of the run's last record; −1 if there is none.

    Returns:
        By rank, the number of events of each owner up to then, if events are recorded; otherwise
        nothing.

    Raises:
        ConfigError: if a part is missing, cannot be read here, or is of another run.
    """
    it, recorded = setup.resumption, dict[int, dict[Owner, int]]()
    if it is None:
        return recorded
    anew = _Anew(setup, it, recorded_step)
    for rank, role in roles.items():
        for part, owner in parts_at(setup, rank, role):
            try:
                owner.restore(anew.found(part, owner))
                if setup.config.record:
                    who = isinstance(owner, ShardServer), owner.number
                    recorded.setdefault(rank, {})[who] = _events_of(it.part(part.name))
            except CheckpointError as error:
                raise ConfigError(f"--resume {it.path}: {error}") from error
    return recorded


def _events_of(tree: Tree) -> int:
    """Return the number of its role's events when a part was saved."""
    count = tree.get("events")
    if type(count) is not int or count < 0:
        raise CheckpointError("--record needs a history from the start, but the run has none")
    return count


class _Anew:
    """Restores roles, from the same roles or from others."""

    def __init__(self, setup: Setup, it: Resumption, recorded_step: int) -> None:
        self._setup, self._it, self._recorded_step = setup, it, recorded_step
        self._old = {entry.name: entry.spans for entry in it.manifest.parts}
        more = it.manifest.more
        workers = len(setup.role_map.workers)
        self._other_workers = bool(it.manifest.absent) or workers != it.manifest.workers
        #: Which worker updates which element depends on the hosts, if workers sum by hosts.
        self._other_owners = more.get(HOSTS, "") != hosts_text(setup)

    def found(self, part: Part, owner: Worker | ShardServer) -> Tree:
        """Return the tree with which a role should continue.

        Raises:
            CheckpointError: if the checkpoint does not have it.
        """
        try:
            return self._tree(part, owner)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, PsrtError):
                raise
            raise CheckpointError(f"its parts are of other roles: {error!r}") from error

    def _tree(self, part: Part, owner: Worker | ShardServer) -> Tree:
        """Return the tree with which a role should continue.

        Raises:
            CheckpointError: if the checkpoint does not have it.
        """
        it, setup = self._it, self._setup
        if setup.cut is not None:
            return self._of_cut(part)
        workers, n = len(setup.role_map.workers), setup.role_map.n
        if isinstance(owner, ShardServer):
            if self._old.get(part.name) == part.spans and not self._other_workers:
                return _role(it, part.name)
            beside = setup.role_map.beside(owner.number)
            parts, others = list[tuple[tuple[Span, ...], Tree]](), list[tuple[Span, ...]]()
            for name, of in self._old.items():
                if not is_shard(name):
                    continue
                if any(_meet(span, one) for span in of for one in beside):
                    parts.append((of, it.part(name)["role"]))
                else:
                    others.append(of)
            before = it.manifest.workers
            return shard_tree(
                parts,
                owner,
                part.spans[0],
                n,
                (before, workers),
                it.manifest.absent,
                others=others,
                parks=setup.config.scheme.parks,
            )
        if not self._other_workers:
            own = it.part(part.name)
            # A worker that was given up may still have saved its part.
            is_of_all = own["role"]["among"] == workers
            if is_of_all and not (self._other_owners and "owned" in own):
                return recut(own["role"], owner)
        trees = {_number(name): it.part(name) for name in self._old if not is_shard(name)}
        if sorted([*trees, *it.manifest.absent]) != [*range(it.manifest.workers)]:
            raise CheckpointError("it has other workers than it says")
        then = from_toml(it.manifest.config, source=str(it.path)).batch_size
        samples = then, setup.config.batch_size
        packed = setup.config.scheme.shard is not None
        # The weight of a push in an update depends on the number of pushes; that of a force on
        # the number of workers.
        weight = 1.0
        if setup.config.scheme.elastic is not None:
            weight = workers / it.manifest.workers
        elif setup.role_map.servers:
            now, before = (policy_of(setup.config, it).quorum for it in (workers, len(trees)))
            weight = now / before
        return worker_tree(
            trees,
            owner,
            _number(part.name),
            n,
            (it.manifest.workers, workers),
            samples,
            self._recorded_step,
            parks=setup.config.scheme.parks,
            packed=packed,
            weight=weight,
        )

    def _of_cut(self, part: Part) -> Tree:
        """Return the tree of a role of a split model, which only the same role may use.

        Raises:
            ConfigError: if there was no such role, or it had other parameters.
        """
        if self._old.get(part.name) != part.spans:
            why = f"the parts of --parallel {self._setup.config.parallel} have other servers"
            raise refusal(str(self._it.path), [why])
        own = self._it.part(part.name)
        if self._other_owners and "owned" in own:
            raise refusal(str(self._it.path), ["ranks on other hosts, with --parallel"])
        role: Tree = own["role"]
        return role


def _meet(one: Span, other: Span) -> bool:
    return one.start < other.stop and other.start < one.stop


def _number(name: str) -> int:
    """Return the number of the role of a part."""
    return int(name.split("-")[1])


def _role(it: Resumption, name: str) -> Tree:
    tree: Tree = it.part(name)["role"]
    return tree
