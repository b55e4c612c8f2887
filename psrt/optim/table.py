"""Every optimizer, staleness-aware rate and schedule of learning rates, one row each.

A new one is a file with its class and a row, here or in another package. Needs no numpy: flags are
made from the rows, which know where their classes are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from psrt.core.errors import ConfigError
from psrt.rows.knobs import knob
from psrt.rows.row import Row, Rows
from psrt.rows.values import REAL, SWITCH, TEXT, WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psrt.core.partition import Span
    from psrt.optim.merge import Merge
    from psrt.optim.optimizer import Optimizer
    from psrt.optim.staleness import StalenessRate


@dataclass(frozen=True)
class OptimizerRow(Row):
    """An optimizer."""

    #: The learning rate that it starts from when none is given.
    lr: ClassVar[float]
    #: Vectors that it keeps, each as long as the parameters.
    vectors: ClassVar[int] = 0
    #: Whether it moves an element whose gradient is 0, by what it keeps of earlier ones.
    coasts: ClassVar[bool] = False
    #: The codec that it belongs to.
    codec: ClassVar[str | None] = None
    #: Whether the problem makes it, and a scheduler of its own then sets its rates.
    is_brought: ClassVar[bool] = False
    scheduler: ClassVar[str | None] = None

    @property
    def called(self) -> str:
        """What errors call it."""
        return self.name

    def line(self) -> str:
        """Return a description in a few words."""
        return f"{self.summary}; --lr {self.lr}"

    def make(self, n: int, *, weight_decay: float = 0.0) -> Optimizer:
        """Make one of ``n`` elements.

        Args:
            n: number of elements of its vector.
            weight_decay: L2 coefficient, at least 0.
        """
        made: Optimizer = self.made(n, weight_decay=weight_decay, **self.knobs)
        return made

    def moves_without(self, weight_decay: float, *, had_one: bool = True) -> str:
        """Return what would move a parameter without a gradient; empty if nothing would.

        Args:
            weight_decay: at least 0.
            had_one: whether it had a gradient in an earlier step.
        """
        if had_one and self.coasts:
            return f"what {self.name} keeps of earlier gradients"
        return "weight decay" if weight_decay else ""


def _memory(default: float, of: str) -> Any:
    return knob(default, REAL, f"decay of the running mean {of}", min=0, exclusive_max=1)


def _epsilon() -> Any:
    # Below 1e-30 the square root's square would vanish in float32.
    help = "added to the root of the mean square, against division by zero"
    return knob(1e-8, REAL, help, min=1e-30, max=1e6, synonyms=("eps",))


class Sgd(OptimizerRow):
    """Plain steps."""

    name, summary = "sgd", "plain steps"
    home, lr = "psrt.optim.sgd:Sgd", 0.1


@dataclass(frozen=True)
class Momentum(OptimizerRow):
    """Heavy ball."""

    name, summary = "momentum", "steps along a velocity (heavy ball)"
    home, lr = "psrt.optim.sgd:Momentum", 0.05
    vectors, coasts = 1, True
    momentum: float = knob(
        0.9, REAL, "fraction of the velocity kept from step to step",
        min=0, exclusive_max=1, synonyms=("mu",),
    )  # fmt: skip


class Nesterov(Momentum):
    """Heavy ball that looks ahead."""

    name, summary = "nesterov", "steps along a velocity, plus one along the gradient"
    fixed = MappingProxyType({"nesterov": True})


@dataclass(frozen=True)
class Adagrad(OptimizerRow):
    """Steps that shrink as squared gradients add up."""

    name, summary = "adagrad", "steps over the root of the sum of squares"
    home, lr = "psrt.optim.adagrad:Adagrad", 0.02
    vectors = 1
    epsilon: float = _epsilon()


@dataclass(frozen=True)
class Adam(OptimizerRow):
    """Running means."""

    name, summary = "adam", "running mean over the root of the running mean square"
    home, lr = "psrt.optim.adam:Adam", 0.002
    vectors, coasts = 2, True
    beta1: float = _memory(0.9, "of the gradient")
    beta2: float = _memory(0.999, "square of the gradient")
    epsilon: float = _epsilon()


class AdamW(Adam):
    """``Adam`` with decoupled weight decay."""

    name, summary = "adamw", "like adam, with decoupled weight decay"
    fixed = MappingProxyType({"decoupled": True})


class SignSgd(OptimizerRow):
    """Signs of the gradient."""

    name, summary = "sign-sgd", "steps along the signs of the gradient"
    home, lr = "psrt.optim.sign_sgd:SignSgd", 0.001


class DemoSgd(SignSgd):
    """Decoupled momentum: the codec keeps it."""

    name, summary = "demo", "decoupled momentum: sign-sgd with the codec of that name"
    codec = "demo"


@dataclass(frozen=True)
class Torch(OptimizerRow):
    """An optimizer of torch that the problem makes: what the files of a run say of it."""

    name, summary, is_brought = "torch", "an optimizer of torch, which the problem makes", True
    rule: str | None = knob(None, TEXT, "its class")
    lr: float = knob(1.0, REAL, "largest rate of its groups", exclusive_min=0, max=1e6)  # type: ignore[misc]
    options: str | None = knob(None, TEXT, "options of each of its groups")
    scheduler: str | None = knob(None, TEXT, "what sets its rates, and when")  # type: ignore[misc]
    vectors: int = knob(0, WHOLE, "number of vectors that it keeps", min=0)  # type: ignore[misc]
    coasts: bool = knob(False, SWITCH, "whether what it keeps moves elements")  # type: ignore[misc]
    decays: bool = knob(False, SWITCH, "whether it moves elements that never had a gradient")

    @property
    def called(self) -> str:
        """What errors call it."""
        return f"an optimizer of torch, {self.rule}"

    def make(self, n: int, *, weight_decay: float = 0.0) -> Optimizer:
        """Return a stand-in for no elements, where nothing is computed.

        Raises:
            ConfigError: if there are elements, which takes the problem's own optimizer.
        """
        if n:
            raise ConfigError(f"--optimizer {self.name} needs a problem that makes it")
        from psrt.optim.optimizer import block_scratch

        found = Sgd().make(0)
        found.state = {str(i): block_scratch(0) for i in range(self.vectors)}
        return found

    def moves_without(self, weight_decay: float, *, had_one: bool = True) -> str:
        """Return what would move a parameter without a gradient; empty if nothing would."""
        return super().moves_without(float(self.decays), had_one=had_one)


#: Every optimizer by its name.
OPTIMIZERS: Final = Rows("optimizer", "psrt.optimizers", OptimizerRow, (
    Sgd, Momentum, Nesterov, Adagrad, Adam, AdamW, SignSgd, DemoSgd,
))  # fmt: skip
OPTIMIZERS.unlisted[Torch.name] = Torch()


@dataclass(frozen=True)
class OuterRow(Row):
    """The step that local SGD takes towards the mean of its workers, instead of taking the mean."""

    #: Whether its momentum is for merges of some workers, not of all.
    is_delayed: ClassVar[bool] = False
    lr: float = knob(0.7, REAL, "learning rate of the outer step", exclusive_min=0, max=1e6)

    def make(self, n: int) -> Optimizer:
        """Make the optimizer of ``n`` elements that takes it."""
        raise NotImplementedError


@dataclass(frozen=True)
class OuterNesterov(OuterRow):
    """Rate and momentum of DiLoCo (Douillard et al. 2023, arXiv 2311.08105)."""

    name, summary = "nesterov", "Nesterov's momentum over the means of periods"
    synonyms = ("diloco", "slowmo")
    momentum: float = knob(0.9, REAL, "fraction of the velocity kept", min=0, exclusive_max=1)

    def make(self, n: int) -> Optimizer:
        """Make the optimizer."""
        return Nesterov(self.momentum).make(n)


@dataclass(frozen=True)
class DelayedNesterov(OuterNesterov):
    """Momentum once every N merges (Liu et al. 2024, arXiv 2401.09135)."""

    name, summary = "delayed-nesterov", "plain steps, and once every N merges momentum"
    home = "psrt.optim.delayed_nesterov:DelayedNesterov"
    synonyms, is_delayed = ("dn", "delayed"), True
    period: int = knob(
        8, WHOLE, "number of merges from one step with momentum to the next", metavar="N", min=1,
        synonyms=("every",),
    )  # fmt: skip

    def make(self, n: int) -> Optimizer:
        """Make the optimizer."""
        made: Optimizer = self.made(n, momentum=self.momentum, period=self.period)
        return made


@dataclass(frozen=True)
class OuterPlain(OuterRow):
    """A share of the way to the mean."""

    name, summary = "plain", "a share of the way to the mean, and no momentum"
    synonyms = ("sgd",)
    lr: float = knob(1.0, REAL, "learning rate of the outer step", exclusive_min=0, max=1e6)

    def make(self, n: int) -> Optimizer:
        """Make the optimizer."""
        return Sgd().make(n)


#: Every outer step by its name; without one the mean is taken as it is.
OUTER_STEPS: Final = Rows("outer step", "psrt.outer_steps", OuterRow, (
    OuterNesterov, DelayedNesterov, OuterPlain,
))  # fmt: skip


@dataclass(frozen=True)
class MergeRow(Row):
    """How a server makes one vector of what several learners have learnt."""

    #: Whether it is the plain mean, and whether learners have weights in it.
    is_usual: ClassVar[bool] = False
    weighs: ClassVar[bool] = True

    @property
    def least(self) -> int:
        """The fewest learners that it can merge."""
        return 1

    def make(self, spans: Sequence[Span]) -> Merge | None:
        """Make the merge of a shard; None where it is the weighted sum.

        Args:
            spans: of the tensors in the shard, or of what it has of them.
        """
        made: Merge = self.made(spans, **self.knobs)
        return made


class Mean(MergeRow):
    """The weighted mean."""

    name, summary = "mean", "the weighted mean"
    is_usual = True

    def make(self, spans: Sequence[Span]) -> None:
        """Return None: a weighted sum."""


class Radial(MergeRow):
    """Mean length and mean direction."""

    name, summary = "radial", "per tensor, the mean direction at the mean length"
    home = "psrt.optim.merge:Radial"


class Median(MergeRow):
    """The median."""

    name, summary = "median", "the median of each element"
    home, weighs = "psrt.optim.merge:Median", False


@dataclass(frozen=True)
class Trimmed(MergeRow):
    """The mean without extremes."""

    name, summary = "trimmed", "the mean of each element without its largest and smallest"
    home, weighs = "psrt.optim.merge:Trimmed", False
    trim: int = knob(1, WHOLE, "number of values left out at either end", metavar="B", min=0)

    @property
    def least(self) -> int:
        """One more than it leaves out."""
        return 2 * self.trim + 1


#: Every merge by its name.
MERGES: Final = Rows("merge", "psrt.merges", MergeRow, (Mean, Radial, Median, Trimmed))


@dataclass(frozen=True)
class RateRow(Row):
    """A staleness-aware rate."""

    #: Facts of a shard and a run that its class takes, beside its knobs: n, max_lr.
    takes: ClassVar[tuple[str, ...]] = ()
    #: Whether it is the neutral rate, and whether it never scales a gradient.
    is_usual: ClassVar[bool] = False
    never_scales: ClassVar[bool] = False
    #: Why gradients delayed by a pipeline cannot use it, without servers and with them.
    not_alone: ClassVar[str] = ""
    not_served: ClassVar[str] = ""

    @property
    def most(self) -> int | None:
        """The largest staleness of a gradient that is not dropped; None for any."""
        return None

    def settled(self) -> Self:
        """Return the row with all open knobs set."""
        return self

    def make(self, n: int, *, max_lr: float) -> StalenessRate:
        """Make one of a shard.

        Args:
            n: number of elements of the shard.
            max_lr: largest learning rate of the run.
        """
        facts = {"n": n, "max_lr": max_lr}
        taken = {name: facts[name] for name in self.takes}
        made: StalenessRate = self.made(**taken, **self.settled().knobs)
        return made


class Constant(RateRow):
    """Never scales a gradient."""

    name, summary = "constant", "as if gradients were fresh"
    home = "psrt.optim.staleness:Constant"
    is_usual = never_scales = True


class Inverse(RateRow):
    """1/τ."""

    name, summary = "inverse", "1/tau"
    home = "psrt.optim.staleness:Inverse"


class MeanInverse(RateRow):
    """1/⟨τ⟩."""

    name, summary = "mean-inverse", "1 over the mean tau of the last gradients"
    home = "psrt.optim.staleness:MeanInverse"


@dataclass(frozen=True)
class Power(RateRow):
    """A power of the age."""

    name, summary = "power", "(1 + tau)^-P"
    home = "psrt.optim.staleness:Power"
    power: float = knob(0.5, REAL, "exponent P", metavar="P", min=0, max=1e6)


@dataclass(frozen=True)
class Exponential(RateRow):
    """An exponential of the age."""

    name, summary = "exponential", "exp(-B tau)"
    home = "psrt.optim.staleness:Exponential"
    decay: float = knob(0.2, REAL, "decay B", metavar="B", min=0, max=1e6)


@dataclass(frozen=True)
class Drop(RateRow):
    """Drops gradients beyond an age; the policy of a server does that."""

    name, summary = "drop", "1, and nothing of gradients whose tau is above K"
    home = "psrt.optim.staleness:Drop"
    never_scales = True
    not_alone = "it would leave out all gradients of a stage, or none"
    limit: int = knob(4, WHOLE, "largest staleness that is kept", metavar="K", min=0)

    @property
    def most(self) -> int:
        """The limit."""
        return self.limit


_OLDER = "servers keep the parameters that a worker read last, and this gradient is of older ones"
#: Strengths of delay compensation, plain and adaptive (Zheng et al. 2017, arXiv 1609.08326).
_PLAIN, _ADAPTIVE = 0.04, 2.0


@dataclass(frozen=True)
class DelayCompensated(RateRow):
    """A gradient moved to the current parameters, by a second-order term."""

    name = "delay-compensated"
    summary = "add the estimated change of the gradient since it was computed"
    home = "psrt.optim.delay_compensated:DelayCompensated"
    takes = ("n",)
    not_served = _OLDER
    strength: float | None = knob(
        None, REAL, "lambda of the compensation", min=0, max=1e6,
        is_open=True, default_text=f"{_PLAIN}, or {_ADAPTIVE:g} if adaptive",
    )  # fmt: skip
    adaptive: bool = knob(False, SWITCH, "divide lambda by the gradient's running root mean square")

    def settled(self) -> Self:
        """Return the row with a strength."""
        usual = _ADAPTIVE if self.adaptive else _PLAIN
        return self if self.strength is not None else replace(self, strength=usual)


class GapAware(RateRow):
    """A gradient divided by how far each parameter has moved."""

    name, summary = "gap-aware", "divide by how many steps each parameter has moved"
    home = "psrt.optim.gap_aware:GapAware"
    takes = ("n", "max_lr")
    not_alone = "it measures a server's updates"
    not_served = _OLDER


#: Every staleness-aware rate by its name.
STALENESS_RATES: Final = Rows("staleness rate", "psrt.staleness_rates", RateRow, (
    Constant, Inverse, MeanInverse, Power, Exponential, Drop, DelayCompensated, GapAware,
))  # fmt: skip


@dataclass(frozen=True)
class ScheduleRow(Row):
    """A learning rate that warms up linearly, and its curve after that.

    Source: warm-up, Goyal et al. 2017 (1706.02677).
    """

    warmup: float = knob(
        0.0, REAL, "number of epochs in which the rate rises from 0 to --lr",
        kw_only=True, min=0, max=1e9, synonyms=("warmup-epochs",),
    )  # fmt: skip
    #: Whether the rate stays constant after the warm-up.
    stays: ClassVar[bool] = False

    def share(self, since: float, length: float, hair: float) -> float:
        """Return the factor on the largest rate, in ``[0, 1]``.

        Args:
            since: epochs after the warm-up, at least 0.
            length: epochs from there to the end of the run, at least 0; may be infinite.
            hair: the largest rounding error of ``since``.
        """
        raise NotImplementedError


class Always(ScheduleRow):
    """The same rate throughout."""

    name, summary = "constant", "stay"
    stays = True

    def share(self, since: float, length: float, hair: float) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Steps(ScheduleRow):
    """Falls in steps."""

    name, summary = "step", "multiply by a factor every few epochs"
    epochs: float = knob(
        5.0, REAL, "number of epochs between two steps", exclusive_min=0, max=1e9,
        synonyms=("every", "decay-epochs"),
    )  # fmt: skip
    factor: float = knob(0.1, REAL, "what each step multiplies by", exclusive_min=0, max=1)

    def share(self, since: float, length: float, hair: float) -> float:
        """Return a power of the factor.

        Progress that was rounded to float32, such as in an all-reduce, or computed by a subtraction
        may be slightly below the start of a decay.
        """
        power: float = self.factor ** math.floor((since + hair) / self.epochs)
        return power


class Cosine(ScheduleRow):
    """Half a period of a cosine, which ends at zero.

    Source: Loshchilov & Hutter, ICLR 2017 (1608.03983).
    """

    name, summary = "cosine", "half a period, which ends at 0 with the run"

    def share(self, since: float, length: float, hair: float) -> float:
        """Return a cosine of the share of the time that has passed."""
        return 0.5 * (1 + math.cos(math.pi * min(1.0, since / length))) if length else 1.0


#: Every schedule of learning rates by its name.
SCHEDULES: Final = Rows("schedule", "psrt.schedules", ScheduleRow, (Always, Steps, Cosine))
