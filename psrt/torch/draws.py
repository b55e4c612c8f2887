"""Random draws of torch that depend on a key alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

#: What the draws are for: the first number of a key.
STEP, EVALUATION, DIGEST = range(3)


@contextmanager
def drawn_from(seed: int, *key: int, generators: Sequence[Any] = ()) -> Iterator[None]:
    """Seed torch's global generators by a key, and restore their states afterwards.

    So dropout depends only on the seed, the worker and the step: not on what the process computed
    before, nor on where a run was resumed. The program's own draws are not affected.

    Args:
        seed: not negative.
        key: the purpose of the draws, then numbers of at least 0.
        generators: of devices; that of the CPU is always among them.
    """
    # The generator uses 32 bits of any seed. A hash, since a SeedSequence takes 20 times as long:
    # as much as a layer of a small net.
    word = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=4).digest()
    each = (torch.default_generator, *generators)
    before = [it.get_state() for it in each]
    for it in each:
        it.manual_seed(int.from_bytes(word, "little"))
    try:
        yield
    finally:
        for it, state in zip(each, before, strict=True):
            it.set_state(state)
