"""Both ends of a codec by its name and the knobs that a test cares about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from psrt.codec import CODECS, Codec, Encoder, Matrix


def make_codec(name: str, n: int, *, matrices: Sequence[Matrix] = (), **knobs: Any) -> Codec:
    """Make a receiver's side."""
    return replace(CODECS[name], **knobs).codec(n, matrices=matrices)


def make_encoder(
    name: str,
    n: int,
    *,
    error_feedback: bool | None = None,
    matrices: Sequence[Matrix] = (),
    **knobs: Any,
) -> Encoder:
    """Make a sender's side."""
    row = replace(CODECS[name], **knobs)
    return row.encoder(n, error_feedback=error_feedback, matrices=matrices)
