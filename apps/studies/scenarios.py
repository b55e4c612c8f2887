"""The scenarios of the straggler lab: the stragglers of each, as flags of ``--inject``. Pure.

They are sized for the digits on one machine, where a step takes a tenth of a millisecond or two and
a mode some 100 steps to a good accuracy: each is a nuisance that a mode may or may not wait for.
"""

from __future__ import annotations

from typing import NamedTuple

from psrt.core.errors import ConfigError


class Scenario(NamedTuple):
    """What happens to the workers."""

    #: In words.
    words: str
    #: What is injected; ``{last}`` is the last worker: worker 0 is the one that evaluates.
    inject: tuple[str, ...] = ()

    def flags(self, workers: int) -> list[str]:
        """Return the flags that make it happen to that many workers."""
        texts = [text.format(last=workers - 1) for text in self.inject]
        return [word for text in texts for word in ("--inject", text)]


SCENARIOS = {
    "calm": Scenario("no worker is late"),
    "delay": Scenario("the last worker needs 3 ms more at every step", ("{last}:delay:0.003",)),
    "tail": Scenario(
        "every worker now and then needs more, mostly 0.3 ms and sometimes a hundred times that: "
        "Pareto, shape 1.5",
        ("*:tail:0.0005:1.5",),
    ),
    "pause": Scenario("the last worker stops for 0.3 s at step 20", ("{last}:pause:20:0.3",)),
    "slow": Scenario(
        "the last worker computes 20 times as long from step 20 on", ("{last}:slow:20:20",)
    ),
}


def scenario(name: str) -> Scenario:
    """Return a scenario by its name.

    Raises:
        ConfigError: if there is none.
    """
    if name not in SCENARIOS:
        raise ConfigError(f"no scenario {name!r}, there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
