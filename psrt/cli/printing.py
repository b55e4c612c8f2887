"""Lines for the user, from any subcommand, in characters that stdout and stderr can encode."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator

from psrt.core.errors import plain
from psrt.core.progress import PROGRESS

#: Replacement of a character that the terminal or file cannot encode.
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

#: The error that stopped output to stdout; None if there was none.
_refused: OSError | None = None


def prepare_streams() -> None:
    """Let stdout and stderr replace characters that they cannot encode."""
    codecs.register_error(_ERRORS, _replace)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent of this process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as it runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def say(text: str) -> None:
    """Print and flush: stdout is a pipe under mpirun.

    A reader that closes the pipe early, such as ``head``, is not an error. A full disk behind
    stdout does not stop the job either; ``refused`` returns that error afterwards.
    """
    with _writing(), PROGRESS.above():
        # One write, even if stdout has no buffer, so that no line of stderr comes in between.
        print(f"{plain(text)}\n", end="", flush=True)


def flush() -> None:
    """Flush what other code, such as argparse, has left in the buffer."""
    with _writing():
        sys.stdout.flush()


def refuse(error: OSError) -> None:
    """Note that stdout did not take what other code has printed; see ``refused``."""
    global _refused
    _refused = error


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
    """Return the reason why stdout did not take all output, only once; None if it did."""
    global _refused
    error, _refused = _refused, None
    return None if error is None else f"error: cannot write to stdout: {error.strerror}"


def _print_nowhere() -> None:
    """Send stdout to the null device, so that the rest of its buffer is not retried at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Return the replacement of unencodable characters and the position after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "replace").decode(), error.end
