"""``psrt launch --restarts``: restarts a job, on those of its hosts that answer."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from psrt.cli.flags import parse_train, train_parser, values_of
from psrt.cli.printing import refuse
from psrt.config import from_toml
from psrt.config.names import AUTO
from psrt.core.errors import ConfigError
from psrt.faults.parent import Parent
from psrt.job.attempt import Ended, attempt
from psrt.job.elastic import Elastic, Size, described
from psrt.job.resuming import found_in
from psrt.job.stall import Stall
from psrt.job.supervise import supervise
from psrt.launch.environment import start_limit_s
from psrt.launch.hostfile import Host
from psrt.launch.lines import Line
from psrt.launch.own_line import OwnLine, may_spread, own_line
from psrt.launch.reach import OTHER_WAYS, unreachable

#: Flags of the launcher about where and how ranks start, which a user's own line decides itself.
_OF_STARTS = (
    "knobs", "ranks", "workers", "hostfile", "launcher", "interface", "bind_to", "env", "flags",
    "elastic", "min_workers",
)  # fmt: skip

#: Assumed number of ranks, for limits on open files, if a line does not say how many it starts.
_MANY = 10_000


class Supervised:
    """A job that is restarted when it dies."""

    def __init__(
        self, given: argparse.Namespace, rest: Sequence[str], hosts: Sequence[Host], limit: int
    ) -> None:
        """Check that the job can resume.

        Args:
            given: the flags of ``psrt launch``.
            rest: the words of the command, or of the user's own line.
            hosts: hosts of the hostfile, if there is one.
            limit: restarts in a row without a new checkpoint.

        Raises:
            ConfigError: if it could not resume.
        """
        self._limit, self._hosts, self._verbose = limit, hosts, bool(given.verbose)
        self._spreads = bool(hosts) or may_spread(given.flags.split())
        #: The user's own line; None if psrt makes the line.
        self.own: OwnLine | None = None if rest[0] == "train" else own_line(rest)
        if self.own is not None:
            _check_own(given, self.own)
        flags = rest[1:] if self.own is None else self.own.flags
        asked = values_of(train_parser().parse(flags))
        for name in ("out", "checkpoint_every", "resume"):
            if asked.get(name) is None:
                raise ConfigError(
                    "--restarts needs a run that can resume: train --out DIR --checkpoint-every N "
                    "--resume auto"
                )
        if asked["resume"] != AUTO:
            raise ConfigError(
                f"--restarts needs --resume auto, got --resume {asked['resume']}: each restart "
                "would resume from there instead of from the newest checkpoint"
            )
        self._config = parse_train(flags)  # raises for anything else that is wrong
        self._run = Path(asked["out"])
        if self.own is not None and self.own.moves and not self._run.is_absolute():
            raise ConfigError(
                f"--out {self._run} must be an absolute path, since the line changes the folder of "
                "the ranks"
            )
        self._start_s = start_limit_s()
        other_ways = any(word in given.flags for word in OTHER_WAYS)
        self._asked_hosts = () if other_ways else hosts
        self._elastic = self._of_elastic(given, "batch_size" in asked)
        #: The hosts and the size of the next attempt; None: as the flags say.
        self._there: Sequence[Host] | None = None
        self._size: Size | None = None if self._elastic is None else self._elastic.full

    def _of_elastic(self, given: argparse.Namespace, has_batch: bool) -> Elastic | None:
        if not given.elastic:
            if given.min_workers is not None:
                raise ConfigError("--min-workers has no effect without --elastic")
            return None
        if not self._asked_hosts:
            raise ConfigError(
                "--elastic needs --hostfile FILE, and reaches its hosts by plain ssh: put ports "
                "and keys into ~/.ssh/config"
            )
        slots = sum(host.slots for host in self._hosts)
        ranks = slots if given.ranks is None else whole(given.ranks, "-n")
        least = 1 if given.min_workers is None else whole(given.min_workers, "--min-workers")
        newest = None if has_batch else found_in(str(self._run))
        samples = 0
        if newest is not None:
            then = from_toml(newest.manifest.config, source=str(newest.path))
            samples = then.batch_size * newest.manifest.workers
        return Elastic.of(self._config, ranks, slots, samples, least)

    def run(
        self,
        line_of: Callable[[Sequence[Host] | None, Size | None], Line],
        tell: Callable[[str], None],
    ) -> Ended:
        """Run it until it is done, is asked to end, or dies too often.

        Args:
            line_of: returns the line of an attempt, given its hosts and its size; None leaves
                either as the flags say.
            tell: takes text for the user.
        """

        def start() -> Ended:
            line = line_of(self._there, self._size)
            tell(f"{line}\n")
            several = self._spreads if self.own is None else self.own.spreads
            parent = Parent(line.ranks or _MANY, tell, several_hosts=several)
            stall = Stall(
                parent,
                self._run,
                start_s=self._start_s,
                timeout_s=self._config.timeout_s,
                busy_s=self._config.busy_timeout_s,
            )
            return attempt(
                line.command,
                line.variables,
                parent,
                deaf_s=line.deaf_s,
                saves=True,
                boxed=line.boxed,
                verbose=self._verbose,
                stall=stall,
                refused=refuse,
            )

        self._began = time.time()
        if self._elastic is not None:
            self._ready()  # if too few hosts answer, the end of the attempt says so
        return supervise(
            start,
            self._run,
            self._limit,
            tell=lambda text: tell(f"psrt launch: {text}\n"),
            ready=self._ready,
        )

    def _ready(self) -> str | None:
        """Find out which hosts answer; return why no attempt is possible now, or None."""
        hosts = self._asked_hosts
        missing = unreachable([host.address for host in hosts], time.time() - self._began)
        if self._elastic is None:
            return described(hosts, missing) if missing else None
        self._there = [host for host in hosts if host.address not in missing]
        size = self._elastic.on(sum(host.slots for host in self._there))
        if isinstance(size, str):
            return f"{described(hosts, missing)}: {size}"
        self._size = size
        return None


def _check_own(given: argparse.Namespace, own: OwnLine) -> None:
    for name in _OF_STARTS:
        if getattr(given, name):
            flag = "-n" if name == "ranks" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{flag} has no effect on your own line, {own.words[0]}, which itself sets where "
                "and how ranks start"
            )


def whole(text: str, flag: str, most: int = 1_000_000) -> int:
    """Return the number in a flag.

    Raises:
        ConfigError: if it is not a number.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        what = f"{flag} must be a number of ranks" if flag == "-n" else f"{flag} must be a number"
        raise ConfigError(f"{what} from 1 to {most}, got {text!r}")
    return int(text)
