"""Former knobs of a run that now belong to a row. Files that have them can still be read.

``codec_density = 0.1`` once stood beside ``codec = "top-k"``, and also applied to the codec of
replies if that had a density.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from psrt.codec.table import CODECS, CodecRow
from psrt.config.modes import MODES, Sync
from psrt.config.names import BY_HOST, GRADIENT_TRACKING, PAIRS, PUSH_SUM
from psrt.core.errors import ConfigError
from psrt.optim.table import (
    OPTIMIZERS,
    OUTER_STEPS,
    SCHEDULES,
    STALENESS_RATES,
    Always,
    OuterNesterov,
)
from psrt.rows.knobs import Knob, accept, dashed
from psrt.rows.row import Rows
from psrt.rows.values import SWITCH


class Former(NamedTuple):
    """Former knobs of a run, and the rows that have them now."""

    #: Fields of the config that hold such a row.
    fields: tuple[str, ...]
    #: The rows to choose from.
    rows: Rows[Any]
    #: Knob of the run → knob of the row.
    knobs: Mapping[str, str]
    #: The row if a file names none.
    usual: str | None = None


_CODEC_KNOBS: Final = (
    *("density", "levels", "bucket", "threshold", "scaled", "rank", "chunk", "kept", "momentum"),
    *("clip_norm", "warmup_epochs"),
)
_RATE_KNOBS: Final = {
    "staleness_power": "power",
    "staleness_decay": "decay",
    "staleness_limit": "limit",
    "dc_lambda": "strength",
    "dc_adaptive": "adaptive",
}
_SCHEDULE_KNOBS: Final = {
    "decay_epochs": "epochs",
    "decay_factor": "factor",
    "warmup_epochs": "warmup",
}
_OUTER_KNOBS: Final = {"outer_lr": "lr", "outer_momentum": "momentum"}
_MODE_KNOBS: Final = (
    *("backup", "staleness", "local_steps", "elastic", "asynchronous", "post_local_epoch", "outer"),
    *("fragments", "fragment_order", "eager", "sync_delay", "mixing", "overlap", "bucket_bytes"),
    *("shard", "topology", "order", "consensus_rate"),
)
_VARIANT: Final = "variant"
#: Switches of gossip, each of which is a variant now.
_VARIANTS: Final = {
    "asynchronous": PAIRS,
    "push_sum": PUSH_SUM,
    "gradient_tracking": GRADIENT_TRACKING,
    "by_host": BY_HOST,
}
FORMER: Final = (
    Former(("codec", "codec_reply"), CODECS, {f"codec_{it}": it for it in _CODEC_KNOBS}),
    Former(
        ("optimizer",), OPTIMIZERS, {it: it for it in ("momentum", "beta1", "beta2", "epsilon")}
    ),
    Former(("staleness_rate",), STALENESS_RATES, _RATE_KNOBS),
    Former(("schedule",), SCHEDULES, _SCHEDULE_KNOBS, Always.name),
    # An outer step was a knob of the run itself, so its own knobs are moved into it first.
    Former(("outer",), OUTER_STEPS, _OUTER_KNOBS, OuterNesterov.name),
    Former(
        ("mode",),
        MODES,
        {it: it for it in _MODE_KNOBS} | {"softsync": "k", f"gossip_{_VARIANT}": _VARIANT},
        # The mode on several ranks: no other mode had any of its knobs.
        Sync.name,
    ),
)


def as_spelled_now(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the knobs of a config, with former knobs moved into the texts of their rows.

    Former knobs that no row takes are left unchanged.

    Args:
        values: knob → value, as in a file.

    Raises:
        ConfigError: if a row cannot have such a value.
    """
    found = _with_variant(values)
    for former in FORMER:
        given = {name: found[name] for name in former.knobs if name in found}
        if not given:
            continue
        taken = {name for name, value in given.items() if value is None}
        for field in former.fields:
            chosen = found.get(field, former.usual)
            row = former.rows.get(chosen) if isinstance(chosen, str) else None
            own = {
                name: value
                for name, value in given.items()
                if row is not None and value is not None and former.knobs[name] in row.knobs
            }
            if row is None or not own:
                continue
            taken |= set(own)
            fixed = row.differences if isinstance(row, CodecRow) and field != "codec" else {}
            knobs = {former.knobs[name]: value for name, value in own.items()}
            row = type(row)(**{name: it for name, it in knobs.items() if name not in fixed})
            found[field] = row.text
        found = {name: value for name, value in found.items() if name not in taken}
    return found


def _with_variant(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the knobs of a config, with the former switches of gossip turned into its variant.

    Raises:
        ConfigError: if one is not a switch, or several are on, which was never possible.
    """
    mode = values.get("mode")
    row = MODES.get(mode) if isinstance(mode, str) else None
    has = row is not None and _VARIANT in row.knobs
    given = {name: values[name] for name in _VARIANTS if name in values}
    if has:
        switch = Knob(SWITCH, "")
        given = {it: on if on is None else accept(it, switch, on) for it, on in given.items()}
    gone = {name for name, is_on in given.items() if has or is_on is None}
    on = [name for name in given if has and given[name]]
    if len(on) > 1:
        raise ConfigError(f"{' and '.join(on)} are variants of {mode}: give only one of them")
    found = {name: it for name, it in values.items() if name not in gone}
    return found | {f"gossip_{_VARIANT}": _VARIANTS[name] for name in on}


def now_of(name: str) -> str:
    """Return how a former knob of a run is spelled now, for a message; empty for any other name.

    >>> now_of("codec_density"), now_of("push_sum")
    ('--codec top-k:density=...', '--mode gossip:variant=push-sum')
    >>> now_of("outer_lr")
    '--mode local-sgd:outer=nesterov,outer.lr=...'
    """
    value = "..."
    if name in _VARIANTS and name != "asynchronous":
        name, value = f"gossip_{_VARIANT}", _VARIANTS[name]
    for former in FORMER:
        if name in former.knobs:
            knob, field = former.knobs[name], former.fields[0]
            row = next(row.name for row in former.rows.values() if knob in row.knobs)
            # The field that holds the row may itself have become a knob of another row.
            if holder := now_of(field):
                return f"{holder.replace(value, row)},{field}.{dashed(knob)}={value}"
            return f"--{dashed(field)} {row}:{dashed(knob)}={value}"
    return ""
