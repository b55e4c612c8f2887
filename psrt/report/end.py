"""``end.json``: how a run without a summary ended. The rank that tells the user writes it.

That may be the process that started the ranks, which alone outlives them all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from psrt.core.errors import ConfigError, PsrtError, StoppedError, plain
from psrt.core.files import read_text
from psrt.report.files import CONFIG, END, SUMMARY
from psrt.report.strict_json import dumps

#: Longest line that is kept.
_MOST = 1000
#: A disk that hangs must not keep a job from its end, in seconds.
_WRITE_S = 2.0
#: A frame of a traceback; the number of a rank may precede each of its lines.
_RANK = r"^(?:\[rank \d+\] )?"
_FRAME = re.compile(rf'{_RANK}  (?:File "|\[Previous line ).*\n(?:{_RANK}    .*\n)*', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    #: Why, on one line.
    text: str
    #: The exit status.
    status: int
    #: When, in ISO 8601.
    ended: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"ended early, {self.ended}, with status {self.status}: {self.text}"

    @classmethod
    def read(cls, run: Path) -> RunEnd | None:
        """Read that of a run's folder; None if nobody has written one.

        Raises:
            ConfigError: if the file is damaged.
        """
        if not os.path.lexists(run / END):
            return None
        try:
            found = cls(**json.loads(read_text(str(run / END))))
        except (ValueError, TypeError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{END}: not what psrt writes") from None
        if (type(found.text), type(found.status), type(found.ended)) != (str, int, str):
            raise ConfigError(f"{END}: not what psrt writes")
        return cls(plain(found.text), found.status, plain(found.ended))


@dataclass(frozen=True, slots=True)
class EndFile:
    """Where the end of a run belongs."""

    #: Its folder, absolute, and the text of its ``config.toml``.
    out: str
    config: str
    #: The process that may write it: one that the user's code forks may not.
    pid: int = field(default_factory=os.getpid)

    def write(self, text: str, status: int, *, replaces: bool = True) -> None:
        """Write it if this process sees the folder, and the run is not finished; never raise.

        Args:
            text: what the user sees: lines, of a traceback the last one counts.
            status: with which the job ends.
            replaces: whether this is known better than what is there.
        """
        if os.getpid() != self.pid:
            return
        with contextlib.suppress(RuntimeError):  # of an interpreter that ends
            thread = threading.Thread(
                target=self._write, args=(text, status, replaces), daemon=True
            )
            thread.start()
            thread.join(_WRITE_S)

    def _write(self, text: str, status: int, replaces: bool) -> None:
        out = Path(self.out)
        with contextlib.suppress(OSError, ValueError, PsrtError):
            # A folder of the same name on another host is not part of this run.
            if read_text(str(out / CONFIG)) != self.config or (
                (out / SUMMARY).exists() and status != StoppedError.exit_status
            ):
                return
            if not replaces and (out / END).exists():
                return
            ended = datetime.now(UTC).isoformat(timespec="seconds")
            part = out / f".{END}-{os.getpid()}"
            try:
                with open(part, "x", encoding="utf-8") as file:
                    file.write(dumps(asdict(RunEnd(one_line(text), status, ended))) + "\n")
                part.replace(out / END)
            finally:
                part.unlink(missing_ok=True)


def one_line(text: str) -> str:
    r"""Return what counts of what the user sees when a job ends.

    >>> one_line("psrt: error: worker 1 was killed\n")
    'worker 1 was killed'
    >>> one_line('[rank 2] Traceback:\n[rank 2]   File "a"\n[rank 2]     f()\n[rank 2] Mine: no\n')
    '[rank 2] Mine: no'
    """
    lines = (_FRAME.split(text)[-1].strip() or text.strip()).splitlines() or [""]
    return plain(re.sub(r"^(psrt: )?(error: )?", "", lines[0]))[:_MOST]
