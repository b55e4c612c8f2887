"""Names and paths that lead nowhere."""

from __future__ import annotations

import pytest

from psrt.data import load_dataset
from psrt.errors import ConfigError


@pytest.mark.parametrize("spec", ["mnist", "no/such/folder", "digit", "x" * 5000, "a\0b"])
def test_nothing_there(spec):
    guess = r" \(did you mean digits\?\)" if spec == "digit" else ""
    told = rf"is not there{guess}; known names are digits and synthetic"
    with pytest.raises(ConfigError, match=told):
        load_dataset(spec, seed=0)


def test_a_missing_npz(tmp_path):
    path = tmp_path / "gone.npz"
    with pytest.raises(ConfigError) as caught:
        load_dataset(str(path), seed=0)
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory"


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("1,2\n")
    with pytest.raises(
        ConfigError, match=r"data.csv' is not a folder or an .npz file; numpy.savez"
    ):
        load_dataset(str(path), seed=0)


def test_an_empty_folder(tmp_path):
    with pytest.raises(ConfigError, match="no train-images-idx3-ubyte or"):
        load_dataset(str(tmp_path), seed=0)
