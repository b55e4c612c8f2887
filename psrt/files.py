"""Text out of files that users name: what goes wrong is one line that names the file."""

from __future__ import annotations

from pathlib import Path

from psrt.errors import ConfigError


def read_text(path: str, kind: str = "a text", *, encoding: str = "utf-8") -> str:
    """Return the text of a file.

    Args:
        path: as the user gave it.
        kind: what the file should be, for the message.
        encoding: UTF-8, or a variant of it.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        return Path(path).read_text(encoding=encoding)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:  # not UTF-8, or a path that no file can have
        raise ConfigError(f"{path}: not {kind} in UTF-8") from None
