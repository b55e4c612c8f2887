"""What is told of an error in code that psrt calls: the traceback of that code, and no more."""

import os
from pathlib import Path

import numpy as np
import pytest

import psrt
from psrt.errors import users_traceback
from psrt.files import open_regular
from support.least_squares import UnevenSquares

OPEN = {"mode": "serial", "epochs": 1, "lr": 0.1}


class Broken(UnevenSquares):
    """Raises, in one of its methods, what opening a file that is not there does."""

    def __init__(self, where, fault):
        super().__init__()
        self.fault = fault
        setattr(self, where, lambda *_: self.read())

    def read(self):
        try:
            self.fault()
        except KeyError as error:
            raise LookupError("no such sample") from error


def missing():
    Path("nowhere", "x.npy").read_bytes()


def unread():
    np.load(os.path.join("nowhere", "x.npy"))


def unknown():
    {}["sample"]


def too_large():
    raise MemoryError


@pytest.mark.parametrize("where", ["batches", "loss_and_grad", "evaluate"])
@pytest.mark.parametrize("fault", [missing, unread, unknown, too_large])
def test_it_is_that_of_the_users_code(where, fault):
    with pytest.raises((OSError, LookupError, MemoryError)) as caught:
        psrt.run(psrt.TrainConfig(**OPEN), Broken(where, fault))
    told = users_traceback(caught.value)
    assert os.path.dirname(psrt.__file__) not in told
    assert "in read" in told
    assert f"in {fault.__name__}" in told


def test_a_loop_of_ones_own_is_the_users_code():
    def loop():
        with psrt.Trainer(psrt.TrainConfig(**OPEN), np.ones(1, np.float32)) as trainer:
            trainer.epoch()
            missing()

    with pytest.raises(FileNotFoundError) as caught:
        loop()
    told = users_traceback(caught.value)
    assert os.path.dirname(psrt.__file__) not in told
    assert "in missing" in told


def test_what_psrt_does_itself_is_not():
    with pytest.raises(OSError, match="nowhere") as caught:
        open_regular("/nowhere/x")
    assert users_traceback(caught.value) is None
    with pytest.raises(psrt.ConfigError) as caught:
        psrt.run(psrt.TrainConfig(**OPEN), 3)
    assert users_traceback(caught.value) is None
