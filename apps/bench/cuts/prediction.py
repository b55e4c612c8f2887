"""What psrt's simulator says that a step takes, of what its parts were measured to take. Pure.

All ranks are on one host, so copies sum in its memory.

The job is run in virtual time: by the same roles as in the measurement, and the same schedule. Its
costs are flags of ``psrt simulate``, so anybody can run it again, and change one.

====================  ============================================================================
``--compute``         the products of a step, of all rows that a copy has; dearer where all ranks
                      compute at once
``--stage-costs``     what each part of the model has of them
``--small-products``  how much slower a row is in a micro-batch; weights deferred are not
``--pass-overhead``   psrt's own time in a pass
``--worker-apply``    the update of the parameters that a rank has, or owns
``--link``            the bytes that a rank moves in sums, and those of messages
====================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cuts.layer_times import PASSES, PassCosts, of_stages
from psrt.collective.registry import NODE
from psrt.config import TrainConfig
from psrt.config.axes import axes_of
from psrt.config.names import DEFAULT_PIPELINE
from psrt.core.sharding import Sharing
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.pipeline.registry import PIPELINES, schedule_of
from psrt.rows.knobs import dashed
from psrt.simulation.cost_flags import VirtualCosts

#: By what is sharded, the all-reduce of copies on one host, where it is another one.
_SUMS = {Sharing.PARAMETERS.value: "ring"}


class Prediction(NamedTuple):
    """What a step is expected to take."""

    seconds: float
    #: Of ``psrt simulate``, which say the same.
    flags: str


@dataclass(frozen=True, slots=True)
class Predictor:
    """A model and a machine, by which steps are predicted."""

    #: Widths of the model, from the input to the output.
    sizes: Sequence[int]
    #: Rows of a batch.
    batch: int
    #: What layers cost in one process, while no other computes.
    layers: PassCosts
    #: How often as long they take while all ranks compute: cores share memory, and their clock.
    at_once: float
    #: Bytes of gradient that are applied in a second, and bytes that are copied.
    update_rate: float
    copy_rate: float

    def step(
        self,
        knobs: Mapping[str, Any],
        counts: Sequence[int] | None = None,
        *,
        steps: int = 4,
        pass_s: float = 0.0,
    ) -> Prediction:
        """Simulate a job.

        Args:
            knobs: how the model is split and trained.
            counts: layers of each part of it; None: it is not split into stages.
            steps: of the job; an asynchronous pipeline is filled and drained once.
            pass_s: psrt's own seconds in a pass.
        """
        axes = axes_of(knobs.get("parallel", "data:1"))
        copies = axes.data or 1
        rows = self.batch // copies
        layers = self.layers.of_rows(rows)
        parts = of_stages(layers.whole, [len(layers.whole)] if counts is None else counts)
        schedule = schedule_of(str(knobs.get("pipeline_schedule", DEFAULT_PIPELINE)))
        # A micro-batch is in one stage at a time.
        follow = knobs.get("micro_batches", 1) > 1 or PIPELINES[schedule.name].asynchronous
        all_compute = copies * axes.tensor > 1 or (axes.pipeline > 1 and follow)
        seconds = sum(it.seconds for it in parts) * (self.at_once if all_compute else 1.0)
        costs = {
            "compute": f"constant:{seconds:.6g}",
            "link": f"0:{self.copy_rate:.4g}",
            "worker_apply": f"{self.update_rate:.4g}",
        }
        if "parallel" in knobs:
            in_ms = ([1e3 * it.of(kind) for kind in PASSES] for it in parts)
            costs["stage_costs"] = ",".join(map(_triple, in_ms))
            costs["pass_overhead"] = f"{pass_s:.3g}"
        if knobs.get("micro_batches", 1) > 1:
            dearer = [layers.slowdown(kind, layers.rows) for kind in PASSES]
            costs["small_products"] = f"{layers.rows}:{_triple(dearer)},{rows}:1:1:1"
        given = {
            "dataset": f"synthetic:{self.batch}x{self.sizes[0]}x{self.sizes[-1]}",
            "hidden": tuple(self.sizes[1:-1]),
            "batch_size": rows,
            "steps": steps,
            **({"allreduce": _SUMS.get(knobs.get("shard", ""), NODE)} if copies > 1 else {}),
            **knobs,
        }
        scenario = Scenario(
            workers=axes.cells * copies, costs=VirtualCosts(**costs), numerics=False
        )
        run = run_in_virtual_time(TrainConfig(**given), scenario)
        alone = {} if "parallel" in knobs else {"workers": scenario.workers}
        return Prediction(run.seconds / steps, _flags({**given, **alone, **costs}))


def _triple(numbers: Sequence[float]) -> str:
    return ":".join(f"{it:.5g}" for it in numbers)


def _flags(given: Mapping[str, Any]) -> str:
    """Return flags of ``psrt simulate``.

    >>> _flags({"hidden": (8, 8), "defer_weights": True, "steps": 4})
    '--timing-only --hidden 8,8 --defer-weights --steps 4'
    """
    words = ["--timing-only"]
    for name, value in given.items():
        words.append(f"--{dashed(name)}")
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return " ".join(words)
