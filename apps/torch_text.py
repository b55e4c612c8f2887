"""A transformer of torch that learns to spell, on the help texts that come with Python.

    python apps/torch_text.py --optimizer adam --lr 0.003               # serially
    psrt launch -n 2 apps/torch_text.py --optimizer adam --lr 0.003     # all-reduce of two workers
    psrt launch -n 3 apps/torch_text.py --optimizer adam --lr 0.003 --mode ssp:staleness=2

From the characters so far it says which one comes next. What it has to beat is a table of how often
each character follows another, whose loss is printed first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from script import run_script, say
from torch import nn

import psrt
from psrt.cli.flags import parse_train

#: Characters that a prediction may look back on; the size of a character's vector.
LENGTH, WIDTH, HEADS, BLOCKS = 64, 64, 4, 2
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))


def characters() -> np.ndarray:
    """Return the text as positions in ``ALPHABET`` (N,), the same in every process."""
    text = "".join(topics[name] for name in sorted(topics))
    return np.array([ALPHABET.index(it) for it in text if it in ALPHABET])


def windows(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return samples (B, LENGTH) of a text, and the characters that come next, of that shape."""
    count = (len(text) - 1) // LENGTH
    x, y = text[: count * LENGTH], text[1 : count * LENGTH + 1]
    return x.reshape(count, LENGTH), y.reshape(count, LENGTH)


def table_losses(train: np.ndarray, test: np.ndarray) -> tuple[float, float]:
    """Return the losses, in nats a character, of predicting by frequency: alone, and in pairs."""
    size = len(ALPHABET)
    pairs = np.bincount(train[:-1] * size + train[1:], minlength=size * size).reshape(size, size)
    alone = (pairs.sum(axis=0) + 1) / (pairs.sum() + size)
    following = (pairs + alone) / (pairs.sum(axis=1, keepdims=True) + 1)
    return -np.log(alone[test[1:]]).mean(), -np.log(following[test[:-1], test[1:]]).mean()


class Speller(nn.Module):  # type: ignore[misc]  # where torch is not installed
    """A transformer from characters (B, T) to the scores (B, C, T) of those that follow."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)  # the same on every rank
        self.character = nn.Embedding(len(ALPHABET), WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, x: Any) -> Any:
        """Return the scores, the classes on the axis where ``cross_entropy`` has them."""
        h = self.character(x) + self.position.weight[: x.shape[1]]
        return self.scores(self.norm(self.blocks(h))).transpose(1, 2)


class Block(nn.Module):  # type: ignore[misc]
    """Attention to what came before, then a layer for each position by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.asked = nn.Linear(WIDTH, 3 * WIDTH)
        self.found = nn.Linear(WIDTH, WIDTH)
        self.layer = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, h: Any) -> Any:
        """Return (B, T, WIDTH) of that shape."""
        # (B, HEADS, T, WIDTH / HEADS) each
        query, key, value = (
            it.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for it in self.asked(self.norms[0](h)).chunk(3, dim=2)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        h = h + self.found(seen.transpose(1, 2).flatten(2))
        return h + self.layer(self.norms[1](h))


def loss(module: Any, batch: Any) -> Any:
    """Return the mean loss of a batch in nats a character, a scalar."""
    x, y = batch
    return nn.functional.cross_entropy(module(x), y)


def written(module: Any, begun: str, count: int) -> str:
    """Return a text with ``count`` more characters, each drawn by the module's scores."""
    draws = torch.Generator().manual_seed(0)
    text = [ALPHABET.index(it) for it in begun]
    with torch.no_grad():
        for _ in range(count):
            scores = module(torch.tensor([text[-LENGTH:]]))[0, :, -1]
            text += torch.multinomial(scores.softmax(0), 1, generator=draws).tolist()
    return "".join(ALPHABET[it] for it in text)


def main(argv: Sequence[str]) -> None:
    """Train as the flags say, then write something."""
    config = parse_train(argv, prog="torch_text.py")
    text = characters()
    train, test = np.split(text, [len(text) * 9 // 10])
    alone, pairs = table_losses(train, test)
    say(f"{len(train):,} characters; by frequency: loss {alone:.3f}, in pairs {pairs:.3f}")
    problem = psrt.torch.Problem(
        Speller(config.seed),
        loss,
        windows(train),
        windows(test),
        batch_size=config.batch_size,
        seed=config.seed,
        accuracy=psrt.torch.accuracy,
    )
    if psrt.run(config, problem, say=say) is not None:  # rank 0, whose module is the trained one
        say("\n" + written(problem.module.eval(), "The ", 300))


if __name__ == "__main__":
    sys.exit(run_script(main))
