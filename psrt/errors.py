"""The errors psrt raises: one parent, one child per kind of reader who can act on it."""

from __future__ import annotations


class PsrtError(Exception):
    """Parent of everything psrt raises on purpose; its text is one clear line.

    ``exit_status`` is what a command that ends with this error returns to the shell.
    """

    exit_status = 1
    #: Whether every rank of the job raises it, so that none is left waiting.
    agreed = False


class ConfigError(PsrtError, ValueError):
    """What the user asked for cannot be: a flag, a file, a shape, a number of ranks."""

    exit_status = 2


class ProtocolError(PsrtError):
    """A rank said something that its peer's state does not allow; always a bug."""


class ReplayError(ProtocolError):
    """A replay came to something else than the recorded run did; the history tells where."""


class TransportError(PsrtError):
    """A peer did not answer within the deadline, or cannot be reached."""


class DivergedError(PsrtError):
    """The loss turned NaN or infinite; the parameters are worthless from here on."""

    exit_status = 3
