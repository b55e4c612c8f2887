"""Low rank against torch's own hook: PowerSGD as DistributedDataParallel has it."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.codec import ErrorFeedback
from psrt.codec.matrices import Matrix
from support.coding import make_codec

torch = pytest.importorskip("torch")
ROWS, COLUMNS = 20, 30


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Have torch's package for jobs be in a job of one process, until this one ends.

    Where a job is destroyed its own thread may be the last to hold it, and torch 2.13 aborts.
    """
    distributed = pytest.importorskip("torch.distributed")
    meeting = tmp_path_factory.mktemp("job") / "meeting"
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_it_is_torchs_power_sgd(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook

    model = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state = hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=2,
        min_compression_rate=1, orthogonalization_epsilon=0,
    )  # fmt: skip
    ddp.register_comm_hook(state, hook.powerSGD_hook)
    n = ROWS * COLUMNS
    codec = make_codec("low-rank", n, matrices=[Matrix(0, ROWS, COLUMNS)], rank=rank)
    ours, out, compared = ErrorFeedback(codec), np.empty(n, np.float32), 0
    for step in range(12):
        gradient = np.random.default_rng(step).standard_normal(n).astype(np.float32)
        began = {key: q.clone() for key, q in state.q_memory_dict.items()}
        lost = {key: it.clone() for key, it in state.error_dict.items()}
        model.weight.grad = None
        given = torch.from_numpy(gradient.reshape(ROWS, COLUMNS))
        # The gradient of tr(G (W I)ᵀ) by W is G.
        loss = (ddp(torch.eye(COLUMNS)).T * given).sum()
        loss.backward()
        if not began:  # the first steps go as they are, and the next draws a Q of its own
            continue
        if not compared:
            [codec.q[0][...]] = [q.numpy().reshape(COLUMNS, rank) for q in began.values()]
            [ours.residual[...]] = [it.numpy() for it in lost.values()]
        codec.decode(ours.encode(gradient, None), out)
        [lost_now] = state.error_dict.values()
        theirs = model.weight.grad.numpy().ravel()
        np.testing.assert_allclose(out, theirs, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(ours.residual, lost_now, atol=1e-4)
        compared += 1
    assert compared > 5
