"""The configuration of a run: every knob once, checked, to and from TOML. Needs no numpy.

`TrainConfig` is what the user asked for; `resolve` fills it in for a number of ranks;
`check_data` adds the checks that need the data. Components take plain arguments, never this.
"""

from psrt.config.checks import check_data
from psrt.config.knobs import Condition, RunKnob
from psrt.config.modes import MODES, Mode
from psrt.config.names import ALLREDUCE_NAMES
from psrt.config.resolve import resolve
from psrt.config.toml import from_toml, read_toml, to_toml
from psrt.config.train import TrainConfig
from psrt.rows.suggest import did_you_mean

__all__ = [
    "ALLREDUCE_NAMES",
    "MODES",
    "Condition",
    "Mode",
    "RunKnob",
    "TrainConfig",
    "check_data",
    "did_you_mean",
    "from_toml",
    "read_toml",
    "resolve",
    "to_toml",
]
