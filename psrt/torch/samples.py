"""The training data: tensors, or a data set indexed by sample numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from psrt.core.arrays import AnyArray
from psrt.core.errors import ConfigError
from psrt.torch.agreement import bytes_of
from psrt.torch.rules import said
from psrt.torch.staging import check_reachable, to_host
from psrt.torch.views import tensor_on

#: Samples of a data set that its digest reads: all of them might not fit into memory.
_SEEN = 16


class Samples(Protocol):
    """Samples by their numbers."""

    def __len__(self) -> int:
        """Return how many there are."""

    def take(self, indices: AnyArray) -> Any:
        """Return a batch of some of them."""

    def labels(self) -> Any:
        """Return the label of each sample, if known without reading every sample."""

    def digest(self) -> str:
        """Return a digest that differs for other data, in hexadecimal digits."""


class TensorSamples:
    """Rows of tensors; a batch is a tuple of the rows of each."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = tuple(tensors)

    def __len__(self) -> int:
        return len(self._tensors[0])

    def take(self, indices: AnyArray) -> Any:
        """Return a tuple of the rows, copied."""
        rows = torch.from_numpy(np.array(indices))  # a copy: those of the plan are read-only
        return tuple(it.index_select(0, rows.to(it.device)) for it in self._tensors)

    def labels(self) -> Any:
        """Return the last tensor if it has a whole number for each sample."""
        last = self._tensors[-1]
        is_whole = not last.is_floating_point() and not last.is_complex()
        return last if last.dim() == 1 and is_whole else None

    def digest(self) -> str:
        """Return the SHA-256 of all of them."""
        found = hashlib.sha256()
        _add(found, self._tensors)
        return found.hexdigest()


class DatasetSamples:
    """A data set of torch with ``__getitem__`` and ``__len__``."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any]) -> None:
        self._dataset, self._collate = dataset, collate

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, indices: AnyArray) -> Any:
        """Return some of them, collated."""
        numbers = indices.tolist()
        at_once = getattr(self._dataset, "__getitems__", None)
        if callable(at_once):
            return self._collate(at_once(numbers))
        return self._collate([self._dataset[i] for i in numbers])

    def labels(self) -> Any:
        """Return ``targets``, as torchvision's data sets name them, or ``labels``."""
        for name in ("targets", "labels"):
            found = getattr(self._dataset, name, None)
            if found is not None and not callable(found):
                return found
        return None

    def digest(self) -> str:
        """Return the SHA-256 of the number of samples and of a few of them, evenly spread."""
        found = hashlib.sha256(f"{len(self)}".encode())
        for i in np.unique(np.linspace(0, len(self) - 1, _SEEN).astype(np.intp)):
            _add(found, self.take(np.array([i])))
        return found.hexdigest()


def samples_of(data: Any, name: str, collate: Callable[[Any], Any] | None) -> Samples:
    """Return data as samples.

    Args:
        data: a tuple of tensors or arrays of the same length, or a data set.
        name: of the argument, for errors.
        collate: makes a batch of a list of samples of a data set; None takes torch's own.

    Raises:
        ConfigError: if it is neither, or empty.
    """
    if isinstance(data, DataLoader):
        raise ConfigError(
            f"{name} is a DataLoader, expected its dataset, and batch_size= (and collate=): psrt "
            "assigns samples to workers, and a loader's processes would fork after MPI started"
        )
    if isinstance(data, TensorDataset) and collate is None:
        data = data.tensors
    found: Samples
    if isinstance(data, list | tuple):
        if collate is not None:
            raise ConfigError(f"collate= is for a data set, but {name} is tensors")
        found = TensorSamples([_tensor(it, name) for it in data] or [torch.empty(0)])
        if len({len(it) for it in found._tensors}) > 1:
            lengths = ", ".join(str(len(it)) for it in found._tensors)
            raise ConfigError(f"{name} has tensors of {lengths} samples, expected equal numbers")
    elif _has_numbers(data):
        found = DatasetSamples(data, collate or default_collate)
    else:
        raise ConfigError(
            f"{name} is {said(data)}, expected a tuple of tensors such as (x, y), or a data set "
            "with __getitem__ and __len__"
        )
    if not len(found):
        raise ConfigError(f"{name} has no samples")
    return found


def _has_numbers(data: Any) -> bool:
    """Return whether samples can be indexed by numbers."""
    is_one_array = isinstance(data, np.ndarray | torch.Tensor | str | Mapping)
    return (
        not isinstance(data, IterableDataset)
        and not is_one_array
        and hasattr(data, "__getitem__")
        and hasattr(data, "__len__")
    )


def _tensor(array: Any, name: str) -> Any:
    """Return an array as a tensor.

    Raises:
        ConfigError: if it is neither, a tensor that psrt cannot reach, or has no rows.
    """
    if isinstance(array, np.ndarray) and array.dtype.kind in "fiub":
        array = tensor_on(np.ascontiguousarray(array))
    if not isinstance(array, torch.Tensor) or not array.dim():
        raise ConfigError(
            f"{name} holds {said(array)}, expected a tuple of tensors with a row for each sample"
        )
    check_reachable(array, f"a tensor of {name}")
    return array


def _add(digest: Any, value: Any) -> None:
    """Add a sample, or a tensor of all samples, to a digest."""
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(bytes_of(to_host(value)).numpy().data)
    elif isinstance(value, Mapping):
        for key, it in value.items():
            digest.update(repr(key).encode())
            _add(digest, it)
    elif isinstance(value, list | tuple):
        for it in value:
            _add(digest, it)
    else:
        digest.update(repr(value).encode())
