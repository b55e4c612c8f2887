"""Data: where samples come from, and who sees which of them when.

Nothing in here knows of MPI or of the model; a source returns checked arrays or a `ConfigError`.
"""

from psrt.data.batches import BatchPlan
from psrt.data.dataset import Dataset
from psrt.data.load import dataset_size, load_dataset

__all__ = ["BatchPlan", "Dataset", "dataset_size", "load_dataset"]
