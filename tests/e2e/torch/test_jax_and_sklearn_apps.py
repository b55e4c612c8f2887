"""The scripts of ``apps/`` that train what JAX and scikit-learn make."""

import re

import numpy as np
import pytest

from psrt.data import load_dataset
from support.launching import ROOT

sklearn = pytest.importorskip("sklearn.linear_model")

JAX, SKLEARN = ROOT / "apps/jax_digits.py", ROOT / "apps/sklearn_local.py"


def accuracies(launch, ranks, script, *words):
    """Return those after each epoch, in percent, and what was printed."""
    done = launch.ranks(ranks, script, *words) if ranks else launch.python(script, *words)
    assert done.status == 0, done.stderr
    found = re.findall(r"^epoch +\d+ .*accuracy ([\d.]+) %", done.stdout, re.MULTILINE)
    return [float(it) for it in found], done.stdout


def test_jax_learns_digits_and_the_run_is_repeated_to_the_bit(launch):
    known = ["--mode", "ssp", "--lr", "0.1", "--epochs", "6", "--record", "--out", "run"]
    assert accuracies(launch, 3, JAX, *known)[0][-1] > 85
    assert launch.psrt("check", "run").status == 0
    _, out = accuracies(launch, 3, JAX, "--replay", "run")
    assert "the same parameters" in out


def test_sklearn_alone_is_partial_fit_alone(launch):
    """psrt takes what it changes, in float32, and hands it back."""
    found, _ = accuracies(launch, 0, SKLEARN, "--epochs", "2")
    data = load_dataset("digits", seed=0)
    x, y = data.x_train, data.y_train
    model = sklearn.SGDClassifier(
        loss="log_loss", learning_rate="constant", eta0=0.02, random_state=0
    )
    model.partial_fit(x[:32], y[:32], classes=np.arange(10))
    own = []
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(len(x))
        for start in range(0, len(x), 32):
            model.partial_fit(x[order[start : start + 32]], y[order[start : start + 32]])
        own.append(100 * model.score(data.x_test, data.y_test))
    assert found == pytest.approx(own, abs=0.3)  # a sample more or less: 0.28 %


@pytest.mark.parametrize(
    "flags",
    [["--mode", "local-sgd:local-steps=5"], ["--mode", "ssp"], ["--mode", "gossip"]],
)
def test_sklearn_on_ranks_learns_digits(launch, flags):
    _, out = accuracies(launch, 3, SKLEARN, "--epochs", "5", "--record", "--out", "run", *flags)
    assert float(re.search(r"^ends with ([\d.]+) %$", out, re.MULTILINE)[1]) > 87
    assert launch.psrt("check", "run").status == 0
