"""Overlap between hosts that this machine plays: what it gains, and what a simulation predicted.

``make bench-hosts-overlap``, as root, writes the table of ``docs/hosts.md`` with it. Each layout
trains with and without overlap, turn by turn. Then ``psrt simulate --like`` is given the run
without it and the rate of the links, and says how long either would take. A gradient is not
computed but slept for, layer by layer: the hosts share the machine's cores, and could not compute
at the same time. What was measured before stays in the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median

from hosts import RATES, ROOT, write_part

from psrt.bench.figures import write_json
from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.cli.process import run_command
from psrt.core.errors import ConfigError
from psrt.views.explain.inputs import read_ranks
from support.hosts import VENDORS, Hosts, why_not
from support.launching import Done

BEGIN, END = "<!-- overlap -->\n", "<!-- /overlap -->"
#: Numbers of hosts.
HOSTS = (2, 4)
#: The part of a link's rate that carries no headers.
PAYLOAD = 0.955
#: Seconds that a message takes beside its bytes, for the simulation.
LATENCY_S = 1e-4
HIDDEN, FEATURES, CLASSES = (512,) * 6, 784, 10
#: How far what is measured may be from what was predicted.
WITHIN = 0.1
#: Under mpirun: sleeps for its gradients; seconds of one, steps, overlap or not, and the folder.
SCRIPT = f"""
import sys, time
import numpy as np
import psrt
from psrt.model import MLP
from psrt.runtime.strategies.push_pull import shares_of
seconds, steps, overlap, out = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4]
class Sleeping:
    model = MLP(({FEATURES}, *{HIDDEN}, {CLASSES}), batch_size=1)
    def initial(self):
        return np.zeros(self.model.n, np.float32)
    def batches(self, worker, workers, epoch):
        return [np.zeros(1, np.float32)] * steps
    def gradient_spans(self):
        return self.model.gradient_spans()
    def loss_and_grad(self, theta, batch, out, ready=None):
        spans, done = self.gradient_spans(), 0.0
        for i, (span, share) in enumerate(zip(spans, shares_of(spans))):
            time.sleep(seconds * (share - done))
            done = share
            span.of(out)[:] = 1.0
            if ready is not None:
                ready(i)
        return 0.0
    def evaluate(self, theta):
        return {{}}
psrt.run(psrt.TrainConfig(
    mode=psrt.AllReduce(overlap=overlap), allreduce="ring", epochs=1, batch_size=1, hidden={HIDDEN},
    dataset="synthetic:1000x{FEATURES}x{CLASSES}", check_every=0, record=True, out=out), Sleeping())
"""


def _seconds(done: Done, run: Path, steps: int) -> float:
    """Return the seconds of a step of a run that has just ended.

    Raises:
        ConfigError: if it failed.
    """
    if done.status:
        raise ConfigError(f"{run.name}: status {done.status}: {done.stderr}")
    return float(json.loads((run / "summary.json").read_text())["seconds"]) / steps


def row(count: int, rate: int, *, turns: int, steps: int) -> str:
    """Measure one number of hosts at one rate; return a line of the table.

    Args:
        count: of hosts, one rank each.
        rate: of links, in Mbit/s.
        turns: of each, whose medians count.
        steps: of a run.
    """
    layout, bandwidth = (1,) * count, rate * 125_000 * PAYLOAD
    n = sum((a + 1) * b for a, b in zip((FEATURES, *HIDDEN), (*HIDDEN, CLASSES), strict=True))
    # As long as the sum, on a ring.
    computing = 2 * (count - 1) / count * 4 * n / bandwidth
    found: dict[tuple[str, bool], list[float]] = {}
    with Hosts(count, rate=f"{rate}mbit") as hosts:
        python = hosts.mpirun
        for turn in range(turns):
            for overlap in (False, True) if turn % 2 else (True, False):
                run = hosts.folder / f"{turn}-{overlap:d}"
                done = python("openmpi", layout, "-c", SCRIPT, computing, steps, int(overlap), run)
                found.setdefault(("measured", overlap), []).append(_seconds(done, run, steps))
            for overlap in (False, True):
                words = ["-m", "psrt", "simulate", "--like", hosts.folder / f"{turn}-0"]
                words += ["--link", f"{LATENCY_S}:{bandwidth}"]
                run = hosts.folder / f"simulated-{turn}-{overlap:d}"
                words += ["--mode", f"allreduce:overlap={str(overlap).lower()}", "--out", run]
                done = hosts.run(hosts.names[0], VENDORS["openmpi"] / "bin/python", *words)
                found.setdefault(("predicted", overlap), []).append(_seconds(done, run, steps))
    ms = {key: 1e3 * median(times) for key, times in found.items()}
    gains = [ms[what, False] / ms[what, True] for what in ("measured", "predicted")]
    off = gains[0] / gains[1] - 1
    cells = [f"{count} hosts, {rate:,} Mbit/s", f"{1e3 * computing:.0f} ms"]
    cells += [f"{ms['measured', False]:.0f} ms", f"{ms['measured', True]:.0f} ms"]
    cells += [f"{ms['predicted', False]:.0f} ms", f"{ms['predicted', True]:.0f} ms"]
    cells += [f"{gains[0]:.2f}", f"{gains[1]:.2f}", f"{off:+.0%}{' missed' * (abs(off) > WITHIN)}"]
    return "| " + " | ".join(cells) + " |"


def _path(folder: Path, rate: int, count: int) -> Path:
    return folder / f"overlap-{count}-{rate}.json"


def main(argv: Sequence[str]) -> int:
    """Measure, and write the page."""
    parser = FlagParser(prog="overlap.py", description=__doc__)
    add = parser.add_argument
    add("--rates", metavar="N,...", default="100,1000", help="of links, in Mbit/s (100,1000)")
    add("--hosts", metavar="N,...", default="2,4", help="numbers of hosts (2,4)")
    add("--turns", metavar="N", type=int, default=3, help="of each (3)")
    add("--steps", metavar="N", type=int, default=10, help="of a run (10)")
    add("--out", metavar="DIR", type=Path, default=ROOT / "runs/hosts", help="figures (runs/hosts)")
    given = parser.parse(argv)
    reason = why_not()
    if reason is not None:
        raise ConfigError(reason)
    heads = ["links", "computing", "without overlap", "with it", "predicted", "with it"]
    heads += ["gain", "predicted", "off by"]
    given.out.mkdir(parents=True, exist_ok=True)
    for rate, count in product(read_ranks(given.rates), read_ranks(given.hosts)):
        line = row(count, rate, turns=given.turns, steps=given.steps)
        write_json(_path(given.out, rate, count), line)
        say(line)
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for rate, count in product(RATES, HOSTS):
        if (path := _path(given.out, rate, count)).exists():
            lines.append(json.loads(path.read_text()))
    write_part(BEGIN, "\n".join([*lines, ""]), END)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(sys.argv[1:]), "overlap.py"))
