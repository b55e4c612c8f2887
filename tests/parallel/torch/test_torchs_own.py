"""torch's own tests of torch.distributed, as they are installed with it, over psrt.

They start processes of their own and know their backend by its name. Here they run in the ranks
that there are, and count as gloo's, or, where gloo lacks the call, as MPI's.
"""

import collections
import contextlib
import importlib.util
import os
import re
import sys
import types
import unittest
from pathlib import Path

import pytest
import torch
from torch import distributed

import psrt
from psrt.core.errors import PsrtError

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.mpi(min_size=4),
    pytest.mark.filterwarnings("ignore"),
]
SOURCE = Path(torch.__file__).parent / "testing/_internal/distributed/distributed_test.py"
NAMES = re.findall(r"^        def (test_\w+)\(self", SOURCE.read_text(), re.MULTILINE)
LABELS = ("gloo", "mpi")
#: The test → why it cannot pass over another backend than the one that it names.
OTHERS = {
    "test_get_backend": "expect the name of another backend",
    "test_barrier_timeout_group": "expect the words of gloo's error",
    "test_barrier_timeout_full_group": "expect the words of gloo's error",
    "test_sparse_all_reduce_sum": "sum sparse tensors",
}
#: What a reason to skip has in it → what it comes to.
REASONS = {
    "CUDA|GPU|gpu|high priority": "need CUDA",
    "NCCL|Nccl|nccl": "are about NCCL",
    "monitored": "need gloo's monitored barrier",
    "github|torchvision|defined|flakiness": "torch skips or lacks them here",
    "exact world size|small world|file://": "need other ranks or stores",
}
#: How often each outcome was seen.
SEEN = collections.Counter()


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Return the cases of torch by label, and the outcomes of its ways to skip by exit status."""
    from psrt.mpi.start import world

    ranks, before = world(), dict(os.environ)
    folder = ranks.bcast(str(tmp_path_factory.mktemp("torch")) if ranks.rank == 0 else None)
    if ranks.rank == 0:
        for name in ("barrier", "test_dir", "init_dir"):
            Path(folder, name).mkdir()
    os.environ |= {"TEMP_DIR": folder, "WORLD_SIZE": f"{ranks.size}", "RANK": f"{ranks.rank}"}
    # All that is taken from it is the name of a base class.
    sys.modules.setdefault(
        "expecttest", types.ModuleType("expecttest")
    ).TestCase = unittest.TestCase
    yield {label: loaded(label) for label in LABELS}, ranks, folder
    os.environ.clear()
    os.environ.update(before)
    if ranks.rank == 0:
        print("\n| outcome | tests |\n|---|---|", file=sys.__stdout__)
        for outcome, count in SEEN.most_common():
            print(f"| {outcome} | {count} |", file=sys.__stdout__, flush=True)


def loaded(label):
    """Return torch's module as it is for one backend: it looks at the name when it is loaded."""
    os.environ["BACKEND"] = label
    spec = importlib.util.spec_from_file_location(f"torchs_own_{label}", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # objects of its classes are pickled
    spec.loader.exec_module(module)
    base = importlib.import_module("torch.testing._internal.common_distributed")

    class Case(base.MultiProcessTestCase, module.DistributedTest._DistTestBase):
        world_size = int(os.environ["WORLD_SIZE"])
        setUp = tearDown = lambda self: None

    skips = {skip.exit_code: skip.message for skip in base.TEST_SKIPS.values()}
    return module, Case, skips


def outcome_of(module, case, skips, name, ranks, folder):
    """Run a test; return why it was skipped, or nothing; leave no group behind."""
    if not hasattr(case, name):
        return "not defined"
    self = case(name)
    self.rank, method = ranks.rank, getattr(self, name)
    if getattr(method, "__unittest_skip__", False):
        return method.__unittest_skip_why__
    if ranks.rank == 0:
        module.Barrier.init()
    module.Barrier.barrier_id = 0
    own = ranks.Dup()  # a test that fails may leave calls behind
    self.file_name = f"{folder}/{case.__module__}{name}"
    try:
        with psrt.Communicator(own, timeout_s=20) as communicator:
            psrt.torch.init_process_group(communicator)
            try:
                importlib.import_module("torch.testing._internal.common_utils").set_rng_seed(1)
                method()
            finally:
                while distributed.is_initialized():
                    with contextlib.suppress(PsrtError):
                        distributed.destroy_process_group()
    except unittest.SkipTest as skip:
        return str(skip)
    except SystemExit as end:
        return skips[end.code]
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_torchs_own(cases, name):
    loaded_as, ranks, folder = cases
    why = OTHERS.get(name, "needs gloo's monitored barrier" * ("monitored" in name))
    for label in LABELS if not why else ():
        found = outcome_of(*loaded_as[label], name, ranks, folder)
        why = why or found
        if not found:
            SEEN["pass"] += 1
            return
    known = next((it for pattern, it in REASONS.items() if re.search(pattern, why)), why)
    SEEN[known] += 1
    pytest.skip(why)
