"""A training loop of your own in torch whose gradients are means over all ranks.

    python apps/torch_loop.py                      # one rank
    psrt launch -n 2 apps/torch_loop.py            # the lines with `ranks` and `gradients` matter

Each rank has every size-th sample, so some have one batch more than others: ``join`` lets all take
as many steps, and weighs gradients by samples.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch
from script import run_script, say
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch_digits import net

import psrt
from psrt.data import load_dataset

EPOCHS, BATCH = 5, 30


def main(argv: Sequence[str]) -> None:
    """Train, and say how well after each epoch."""
    data = load_dataset("digits", seed=0)
    x, y = torch.tensor(data.x_train), torch.tensor(data.y_train.astype(np.int64))
    u, v = torch.tensor(data.x_test), torch.tensor(data.y_test.astype(np.int64))
    with psrt.Communicator() as ranks:
        own = TensorDataset(x[ranks.rank :: ranks.size], y[ranks.rank :: ranks.size])
        loader = DataLoader(own, BATCH, shuffle=True)
        module = net(seed=ranks.rank)  # of which that of rank 0 is taken
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

        with psrt.torch.Gradients(optimizer, ranks, module=module) as gradients:
            for epoch in range(EPOCHS):
                module.train()
                for pixels, digit in gradients.join(loader):
                    optimizer.zero_grad()
                    functional.cross_entropy(module(pixels), digit).backward()
                    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                    optimizer.step()
                schedule.step()
                psrt.torch.broadcast(module, ranks)  # rank 0's running means
                module.eval()
                share = psrt.torch.accuracy(module, (u, v))
                say(f"epoch {epoch + 1}  accuracy {100 * share:.2f} %  on {ranks.size} ranks")


if __name__ == "__main__":
    sys.exit(run_script(main))
