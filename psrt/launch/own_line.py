"""A user's own command line that starts ranks of ``psrt train``, as words; no shell sees it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psrt.core.errors import ConfigError
from psrt.launch.environment import finds_hosts
from psrt.launch.library import is_open_mpi
from psrt.launch.lines import DEAF_S, MPICH_BOXED, NO_INPUT, OPEN_MPI_BOXED, Line

#: Programs that start ranks, by their names.
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "prun", "srun")
#: Their flags that change the current folder of the ranks.
_FOLDERS = ("-wdir", "--wdir", "-wd", "--wd", "-D", "--chdir", "-cwd", "--cwd")

#: Their flags for hosts.
_HOSTS = (
    "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f", "-H", "-host", "--host",
    "-hosts", "--hosts", "-dvm", "--dvm",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnLine:
    """Such a line."""

    words: Sequence[str]
    #: The index of its launcher among them; None if it has no known launcher.
    launcher: int | None
    #: The index of ``train``.
    train: int

    @property
    def moves(self) -> bool:
        """Whether ranks may have another current folder than this process."""
        return any(word.partition("=")[0] in _FOLDERS for word in self.words[: self.train])

    @property
    def flags(self) -> Sequence[str]:
        """The flags of ``psrt train``."""
        flags = list(self.words[self.train + 1 :])
        # A single : begins another program of mpirun.
        return flags[: flags.index(":")] if ":" in flags else flags

    @property
    def spreads(self) -> bool:
        """Whether ranks may be on other hosts, as far as the words tell."""
        if self.launcher is None or Path(self.words[self.launcher]).name == "srun":
            return True
        return may_spread(self.words[: self.train])

    def line(self, exported: Sequence[str]) -> Line:
        """Return the line to start.

        Args:
            exported: names of variables that the ranks should see. MPICH and Slurm export all
                variables to other hosts, Open MPI only those that its flags name.
        """
        if self.launcher is None:
            return Line(self.words, {})
        name = Path(self.words[self.launcher]).name
        path = shutil.which(self.words[self.launcher])
        if name == "srun" or path is None:
            return Line(self.words, {})
        if not is_open_mpi(Path(path)):
            return Line(self.words, {}, deaf_s=DEAF_S, boxed=MPICH_BOXED)
        more = [word for variable in exported for word in ("-x", variable)]
        if NO_INPUT[0] not in self.words:
            more += NO_INPUT
        return Line(
            self.words, {}, unshown=more, unshown_at=self.launcher + 1, boxed=OPEN_MPI_BOXED
        )


def may_spread(flags: Sequence[str]) -> bool:
    """Return whether an mpirun with these flags may start ranks on other hosts."""
    return finds_hosts() or any(flag.partition("=")[0] in _HOSTS for flag in flags)


def own_line(words: Sequence[str]) -> OwnLine:
    """Split a line into its parts.

    Args:
        words: words of the line; the first one is a program.

    Raises:
        ConfigError: if it does not start ``psrt train``.

    >>> own_line("mpirun -n 2 python -m psrt train --out run".split()).flags
    ['--out', 'run']
    >>> own_line("srun psrt train --out a : psrt train --out a".split()).flags
    ['--out', 'a']
    """
    at = next((k for k in range(1, len(words)) if _trains(words, k)), None)
    if at is None:
        raise ConfigError(
            "--restarts needs train, which writes checkpoints, or your own line with psrt train in "
            f"it, got {words[0]}"
        )
    names = [Path(word).name.partition(".")[0] for word in words[:at]]
    launcher = next((k for k, name in enumerate(names) if name in _LAUNCHERS), None)
    return OwnLine(list(words), launcher, at)


def _trains(words: Sequence[str], at: int) -> bool:
    """Return whether this word is ``train`` of psrt, run as a module or a program."""
    if words[at] != "train":
        return False
    before = words[at - 1]
    return Path(before).name == "psrt" and ("/" in before or before == "psrt")
