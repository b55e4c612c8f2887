"""Lines for the user, from whichever subcommand: what stdout and stderr can take."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator

#: What stands for a character where a terminal or a file has no such one.
_PLAIN = str.maketrans(
    {
        "µ": "u", "μ": "u", "τ": "tau", "θ": "theta", "α": "alpha", "β": "beta", "γ": "gamma",
        "λ": "lambda", "η": "eta", "ε": "eps", "π": "pi", "Σ": "sum", "√": "sqrt", "Δ": "delta",
        "·": ".", "–": "-", "−": "-", "×": "x", "…": "...", "→": "->", "←": "<-", "↑": "^",
        "≤": "<=", "≥": ">=", "½": "1/2", "²": "^2", "³": "^3", "∞": "inf", "′": "'",
        "⌈": "ceil(", "⌉": ")", "⌊": "floor(", "⌋": ")", "⟨": "<", "⟩": ">", "‖": "|",
        "₀": "0", "₁": "1", "₂": "2", "₃": "3",
        "─": "-", "│": "|", "┤": "|", "├": "|", "┼": "+", "┘": "+", "█": "#", "▌": "|",
    }
)  # fmt: skip
_ERRORS = "psrt.plain"

#: Why stdout took no more, if it did not.
_refused: OSError | None = None


def prepare_streams() -> None:
    """Let stdout and stderr write any text, in characters that they have."""
    codecs.register_error(_ERRORS, _replace)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as it runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def say(text: str) -> None:
    """Print at once, also where stdout is a pipe, as it is under mpirun.

    A reader that has seen enough, such as ``head``, is no error, and what is under way goes on
    where the disk behind stdout is full; ``refused`` tells of that afterwards.
    """
    with _writing():
        print(text, flush=True)


def flush() -> None:
    """Print what others have left in the buffer, such as argparse."""
    with _writing():
        sys.stdout.flush()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    global _refused
    try:
        yield
    except BrokenPipeError:
        _print_nowhere()
    except OSError as error:
        _refused = error
        _print_nowhere()


def refused() -> str | None:
    """Return, once, why stdout did not take all that was said; None if it did."""
    global _refused
    error, _refused = _refused, None
    return None if error is None else f"error: cannot write to stdout: {error.strerror}"


def _print_nowhere() -> None:
    """Have no more of stdout: what is left in its buffer must not be tried again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for the characters that cannot be written, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "replace").decode(), error.end
