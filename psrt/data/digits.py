"""The embedded dataset: UCI optical handwritten digits, so that a first run needs no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from psrt.data.dataset import Dataset, checked_dataset

#: A value counts the inked pixels of a cell of 4 x 4, so it is from 0 to 16.
_FULL = 16.0


def load_digits() -> Dataset:
    """Load the 1437 training and 360 test images (8 x 8, ten classes), scaled to [0, 1].

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
    Learning Repository, 1998, CC BY 4.0; see DIGITS.md beside this file for the split.
    """
    # With importlib.resources a rank would start 4 ms later.
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        return checked_dataset(
            "digits",
            arrays["x_train"],
            arrays["y_train"],
            arrays["x_test"],
            arrays["y_test"],
            scale=_FULL,
        )
