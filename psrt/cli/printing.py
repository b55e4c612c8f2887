"""Lines for the user, from whichever subcommand."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    """Print at once, also where stdout is a pipe, as it is under mpirun.

    A reader that has seen enough, such as ``head``, is no error: what is under way goes on without.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is left in the buffer must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
