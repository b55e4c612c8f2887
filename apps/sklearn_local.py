"""A classifier of scikit-learn that several ranks train, each on its own, and average.

    python apps/sklearn_local.py                                              # one, by itself
    psrt launch -n 4 apps/sklearn_local.py --mode local-sgd:local-steps=5   # four, averaged
    psrt launch -n 4 apps/sklearn_local.py --mode gossip:topology=ring       # with neighbours

``partial_fit`` hands out no gradient: it learns by itself. psrt takes what it has changed for one,
so that a step of plain SGD at a rate of 1 ends where ``partial_fit`` did. In between, every
``local-steps`` of them, the parameters of all ranks become their mean.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from script import run_script, say
from sklearn.linear_model import SGDClassifier

import psrt
from psrt.cli.flags import parse_train
from psrt.data import load_dataset

BATCH = 32


def main(argv: Sequence[str]) -> None:
    """Train as the flags say, then look at what came out."""
    config = parse_train(argv, prog="sklearn_local.py")
    if config.lr is None:
        config = replace(config, lr=1.0)  # psrt's: all of what partial_fit has changed
    data = load_dataset("digits", seed=config.seed)
    x, y = data.x_train, data.y_train
    model = SGDClassifier(
        loss="log_loss", learning_rate="constant", eta0=0.02, random_state=config.seed
    )
    # On every rank the same: only now does it have parameters.
    model.partial_fit(x[:BATCH], y[:BATCH], classes=np.arange(10))

    with psrt.Trainer(config, [model.coef_, model.intercept_], say=say) as trainer:
        while trainer.epoch():  # False at once at a server
            order = np.random.default_rng(trainer.epochs).permutation(len(x))
            for start in range(0, len(x), BATCH * trainer.workers):
                rows = order[start : start + BATCH * trainer.workers]
                mine = np.array_split(rows, trainer.workers)[trainer.worker]
                take(model, trainer.parameters)
                model.partial_fit(x[mine], y[mine])
                coef, intercept = trainer.parameters
                change = [coef - model.coef_, intercept - model.intercept_]
                if not trainer.step(change, samples=len(mine)):
                    break
            take(model, trainer.parameters)
            trainer.metrics(accuracy=model.score(data.x_test, data.y_test))
    # From here on every rank has the parameters that the run has ended with.
    take(model, trainer.parameters)
    if trainer.result is not None:  # rank 0
        say(f"ends with {100 * model.score(data.x_test, data.y_test):.2f} %")


def take(model: SGDClassifier, parameters: list[np.ndarray]) -> None:
    """Let a classifier have a copy of these parameters, for it writes into what it has."""
    model.coef_, model.intercept_ = map(np.copy, parameters)


if __name__ == "__main__":
    sys.exit(run_script(main))
