"""Data: the sources of samples, and their assignment to workers and steps.

Nothing here needs MPI or the model; sources return checked arrays, or raise `ConfigError`.
"""

from psrt.data.batches import BatchPlan
from psrt.data.dataset import Dataset
from psrt.data.deal import Deal, deal
from psrt.data.load import dataset_size, load_dataset

__all__ = ["BatchPlan", "Dataset", "Deal", "dataset_size", "deal", "load_dataset"]
