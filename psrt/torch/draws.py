"""Random draws of torch that depend on a key alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: What the draws are for: the first number of a key.
STEP, EVALUATION, DIGEST = range(3)


@contextmanager
def drawn_from(seed: int, *key: int) -> Iterator[None]:
    """Let torch's global generator on the CPU draw as a key says, and be as before afterwards.

    So dropout depends on the seed, the worker and the step, whoever computed before in the same
    process and wherever a run goes on; and what a program draws itself stays as it was.

    Args:
        seed: not negative.
        key: what it is for, and numbers not below 0.
    """
    # The generator takes 32 bits, whatever it is given. A hash, since a SeedSequence takes 20 times
    # as long, as long as a layer of a small net.
    word = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=4).digest()
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(int.from_bytes(word, "little"))
    try:
        yield
    finally:
        generator.set_state(before)
