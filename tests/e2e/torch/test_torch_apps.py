"""The scripts of ``apps/`` that train modules of torch, started as a user starts them."""

import re

import pytest

from support.launching import ROOT

DIGITS, LOOP, TEXT = (ROOT / f"apps/torch_{name}.py" for name in ("digits", "loop", "text"))
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def started(launch, ranks, script, *words):
    if ranks:
        done = launch.ranks(ranks, script, *words, **ONE_THREAD)
    else:
        done = launch.python(script, *words, **ONE_THREAD)
    assert done.status == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("ranks", "flags"), [(0, []), (3, ["--mode", "ssp"])])
def test_a_net_learns_digits_and_its_run_is_checked(launch, ranks, flags):
    known = ["--lr", "0.1", "--epochs", "3", "--record", "--out", "run"]
    out = started(launch, ranks, DIGITS, *known, *flags)
    assert float(re.search(r"^accuracy +([\d.]+) %", out, re.MULTILINE)[1]) > 90
    assert launch.psrt("check", "run").status == 0


def test_a_loop_of_ones_own_learns_them(launch):
    out = started(launch, 2, LOOP)
    lines = re.findall(r"^epoch (\d)  accuracy ([\d.]+) %  on 2 ranks$", out, re.MULTILINE)
    assert [int(epoch) for epoch, _ in lines] == [1, 2, 3, 4, 5]
    assert float(lines[-1][1]) > 95


def test_a_transformer_learns_more_of_a_text_than_which_character_follows_which(launch):
    adam = ["--optimizer", "adam", "--lr", "0.005", "--batch-size", "16"]
    out = started(launch, 2, TEXT, *adam, "--mode", "allreduce", "--epochs", "2")
    pairs = float(re.search(r"by frequency: loss [\d.]+, in pairs ([\d.]+)$", out, re.MULTILINE)[1])
    losses = [float(it) for it in re.findall(r"^epoch .* loss ([\d.]+)", out, re.MULTILINE)]
    assert losses[-1] < pairs - 0.2
    assert len(out.partition("\nThe ")[2]) >= 300
