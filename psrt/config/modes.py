"""The modes: everything about a mode that is data, one row each.

Knobs, policies (`psrt.sync`), job set-up, the checker of histories and `psrt explain` read these
rows; no other code compares a mode's name. A row declares a promise, such as "at most s steps
ahead"; the policy and, independently, the checker each have their own formula for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from psrt.rows.registry import Registry


class Servers(Enum):
    """Whether servers apply the updates of a mode."""

    NEVER = "never"
    ALWAYS = "always"
    #: Without servers an all-reduce takes their place.
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One synchronization scheme."""

    #: As ``--mode`` spells it.
    name: str
    #: One line for the help text.
    summary: str
    #: Other names that a user may try.
    synonyms: tuple[str, ...] = ()
    servers: Servers = Servers.NEVER
    #: Whether it is a single process.
    single: bool = False
    #: Whether its workers take steps of their own, and parameters are averaged, not gradients.
    averages: bool = False
    #: Whether its workers take steps of their own, and each mixes its parameters with those of its
    #: neighbours on a graph.
    mixes: bool = False
    #: Whether updates are rounds: an update waits for the gradients of all live workers, and no
    #: worker begins the next round before it.
    rounds: bool = False
    #: Knobs of this mode that not every mode has; the first one characterizes it.
    knobs: tuple[str, ...] = ()
    #: Knob b: a round is complete without the b slowest, whose gradients for it are dropped.
    backup: str | None = None
    #: Knob s: a worker may run at most s steps ahead of the slowest.
    lead: str | None = None
    #: Knob k: an update waits for the first 1/k of the live workers.
    share: str | None = None
    #: Switch under which updates are no rounds: each worker's is one of its own, at once.
    asynchronous: str | None = None
    #: Knob β: a centre at the servers and a worker draw each other by β/W of how they differ.
    elastic: str | None = None
    #: Defaults of its own, of knobs that have another one elsewhere.
    usual: tuple[tuple[str, Any], ...] = ()
    #: Whether vectors may be sent by a codec.
    codecs: bool = False
    #: Whether checkpoints are made of it.
    saves: bool = False
    #: Whether it goes on from one with other workers.
    regroups: bool = False
    #: Module and function that make its strategy at a worker, see ``runtime.strategies.builders``.
    builder: str = "psrt.runtime.strategies.builders:pushing"
    #: Its first knob in words: ``{}`` is the value, ``{s}`` makes the plural.
    words: str = ""

    def __post_init__(self) -> None:
        # The gate counts pushes that still wait for their quorum, and would let workers past it.
        assert not (self.lead and self.share), "a mode has a lead or a share"

    @property
    def needs_servers(self) -> bool:
        """Whether servers are required."""
        return self.servers is Servers.ALWAYS

    @property
    def may_have_servers(self) -> bool:
        """Whether servers are possible."""
        return self.servers is not Servers.NEVER

    @property
    def sums(self) -> bool:
        """Whether workers without a server sum by an all-reduce."""
        return not self.single and not self.needs_servers and not self.mixes

    @property
    def sums_gradients(self) -> bool:
        """Whether that all-reduce sums gradients, in every step."""
        return self.sums and not self.averages

    @property
    def encodes_gradients(self) -> bool:
        """Whether a codec is of gradients, and not of how parameters differ."""
        return self.codecs and not self.averages and not self.mixes

    @property
    def is_stale(self) -> bool:
        """Whether a gradient can be applied to parameters newer than those it was computed on."""
        return self.needs_servers and not self.rounds

    @property
    def weakens(self) -> bool:
        """Whether gradients are weakened by servers if they are stale; else pushes are not any."""
        return self.is_stale and not self.averages

    @property
    def means_gradients(self) -> bool:
        """Whether an update is of a mean gradient of several workers, where there are several."""
        if self.single or self.averages or self.mixes:
            return False
        return not self.is_stale or self.share is not None

    @property
    def policy_knobs(self) -> tuple[str, ...]:
        """The knobs whose numbers its policy takes."""
        return tuple(filter(None, (self.backup, self.lead, self.share, self.asynchronous)))

    @property
    def default_servers(self) -> int:
        """Default number of servers."""
        return int(self.needs_servers)

    def under(self, value_of: Callable[[str], Any]) -> Mode:
        """Return the row as its knobs make it: under ``asynchronous`` without rounds.

        Args:
            value_of: returns the value of a knob, ``None`` where it is not known.

        >>> MODES["easgd"].rounds, MODES["easgd"].under({"asynchronous": True}.get).rounds
        (True, False)
        """
        if self.asynchronous is None or not value_of(self.asynchronous):
            return self
        return replace(self, rounds=False)

    def parks(self, value_of: Callable[[str], Any]) -> bool:
        """Return whether workers stop for a checkpoint, each at a clock of its own.

        Elsewhere, if any are made, all save themselves after the same step.

        Args:
            value_of: returns the value of a knob.

        >>> MODES["async"].parks({}.get), MODES["sync"].parks({"backup": 0}.get)
        (True, False)
        >>> [MODES["gossip"].parks({"asynchronous": it}.get) for it in (True, False)]
        [True, False]
        """
        if self.asynchronous is not None and value_of(self.asynchronous):
            return True
        backup = self.backup is not None and value_of(self.backup)
        return self.needs_servers and (not self.rounds or bool(backup))

    def described(self, value_of: Callable[[str], Any]) -> str:
        """Return the mode with its number, as a user would say it.

        Args:
            value_of: returns the value of a knob, ``None`` where it is not known.

        >>> MODES["ssp"].described({"staleness": 3}.get), MODES["sync"].described({"backup": 0}.get)
        ('ssp (staleness 3)', 'sync')
        >>> MODES["sync"].described({"backup": 1}.get)
        'sync (1 backup)'
        >>> MODES["easgd"].described({"elastic": 0.9, "asynchronous": True}.get)
        'easgd (elastic 0.9, asynchronous)'
        """
        value = value_of(self.knobs[0]) if self.words else None
        notes = []
        if value is not None and (value or not self.backup):
            notes.append(self.words.format(value, s="" if value == 1 else "s"))
        if self.asynchronous is not None and value_of(self.asynchronous):
            notes.append("asynchronous")
        return f"{self.name} ({', '.join(notes)})" if notes else self.name


_SERVED = ("placement", "shards_per_server")
_STALE = (*("staleness_rate", *_SERVED),)
_SUMMED = ("allreduce", "machine_costs", "check_every")

_ROWS = (
    Mode(
        name="serial",
        builder="psrt.runtime.strategies.builders:serial",
        saves=True,
        summary="one process, without communication",
        single=True,
    ),
    Mode(
        name="sync",
        synonyms=("bsp",),
        saves=True,
        regroups=True,
        summary="every update averages the gradients of all workers, who wait for one another",
        servers=Servers.ALWAYS,
        codecs=True,
        rounds=True,
        backup="backup",
        knobs=("backup", *_SERVED),
        words="{} backup{s}",
    ),
    Mode(
        name="async",
        synonyms=("asp", "asgd", "hogwild"),
        saves=True,
        regroups=True,
        summary="every gradient is applied as soon as it arrives; no worker waits for another",
        servers=Servers.ALWAYS,
        codecs=True,
        knobs=_STALE,
    ),
    Mode(
        name="ssp",
        saves=True,
        regroups=True,
        summary="as async, but no worker runs more than --staleness steps ahead of the slowest",
        servers=Servers.ALWAYS,
        codecs=True,
        lead="staleness",
        knobs=("staleness", *_STALE),
        words="staleness {}",
    ),
    Mode(
        name="softsync",
        saves=True,
        regroups=True,
        summary="every update averages the next workers/K gradients to arrive; no worker waits",
        servers=Servers.ALWAYS,
        codecs=True,
        share="softsync",
        knobs=("softsync", *_STALE),
        words="k = {}",
    ),
    Mode(
        name="local-sgd",
        builder="psrt.runtime.strategies.builders:averaging",
        synonyms=("fedavg", "diloco"),
        saves=True,
        regroups=True,
        summary="workers train alone for --local-steps steps, then average their parameters",
        servers=Servers.OPTIONAL,
        averages=True,
        rounds=True,
        codecs=True,
        knobs=(
            *("local_steps", "post_local_epoch", "outer"),
            *("fragments", "fragment_order", "eager", "sync_delay", "mixing"),
            *(*_SUMMED, *_SERVED),
        ),
        words="{} local step{s}",
    ),
    Mode(
        name="easgd",
        builder="psrt.runtime.strategies.builders:averaging",
        saves=True,
        regroups=True,
        summary="workers train alone; a centre at the servers and they draw each other at times",
        servers=Servers.ALWAYS,
        averages=True,
        rounds=True,
        codecs=True,
        asynchronous="asynchronous",
        elastic="elastic",
        usual=(("local_steps", 10),),
        knobs=("elastic", "local_steps", "asynchronous", *_SERVED),
        words="elastic {}",
    ),
    Mode(
        name="allreduce",
        builder="psrt.runtime.strategies.builders:summing",
        synonyms=("ddp",),
        saves=True,
        regroups=True,
        summary="as sync, but an all-reduce sums the gradients; there are no servers",
        codecs=True,
        knobs=("allreduce", "machine_costs", "overlap", "bucket_bytes", "check_every", "shard"),
        words="{}",
    ),
    Mode(
        name="gossip",
        builder="psrt.runtime.strategies.builders:mixing",
        synonyms=("d-psgd", "dpsgd"),
        saves=True,
        summary="workers average with their neighbours on a graph; nobody waits for all",
        mixes=True,
        codecs=True,
        asynchronous="asynchronous",
        knobs=(
            *("topology", "order", "push_sum", "gradient_tracking"),
            *("asynchronous", "by_host", "consensus_every", "consensus_rate"),
        ),
        words="{}",
    ),
)

#: Every mode by its name.
MODES: Final = Registry("mode", "psrt.modes", Mode, _ROWS)


def default_mode(ranks: int) -> Mode:
    """Return the default mode of a job of that many ranks."""
    return MODES["serial" if ranks == 1 else "sync"]
