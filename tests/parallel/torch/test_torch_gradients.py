"""Loops of one's own on several ranks, beside one process with all the data."""

import copy
import re
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import psrt
from psrt.core.errors import ConfigError
from support.staging import BOTH, STAGED
from support.torch_models import FEATURES, data, loss, parameters_of, plain

pytestmark = BOTH
STEPS = 4


def batch_of(rank, turn, rows):
    """Return (rows, 6) and a class each, of that rank and turn alone."""
    return data(100 * turn + rank, rows)


class Alone:
    """One process, whose batches are those of all ranks and of all turns of a step."""

    def __init__(self, size, sizes):
        self.size, self._sizes = size, sizes

    def under(self, module, kind=torch.optim.Adam, **options):
        """Return what is called as the module, and its optimizer."""
        used = [it for it in module.parameters() if it.requires_grad]
        return module, kind(used, lr=0.02, **options)

    def turns(self, each=1):
        """Yield batches, by what a loss is divided, and whether a step follows."""
        for step in range(STEPS):
            parts = [
                batch_of(rank, turn, rows)
                for turn in range(step * each, (step + 1) * each)
                for rank in range(self.size)
                if (rows := self._sizes(rank, turn))
            ]
            yield [torch.cat(it) for it in zip(*parts, strict=True)], 1, True

    def no_sync(self):
        return nullcontext()

    def close(self):
        pass


class Psrt(Alone):
    """A rank of several under psrt; every optimizer has a Gradients of its own."""

    def __init__(self, ranks, sizes, codec=None):
        super().__init__(ranks.size, sizes)
        self._ranks, self._all, self._codec = ranks, [], codec

    def under(self, module, kind=torch.optim.Adam, **options):
        with torch.no_grad():  # rank 0's are everybody's
            for it in module.parameters():
                it += self._ranks.rank
        module, optimizer = super().under(module, kind, **options)
        more = {"bucket_bytes": 100, "codec": self._codec, "say": lambda line: None}
        self._all.append(psrt.torch.Gradients(optimizer, self._ranks, module=module, **more))
        return module, optimizer

    def turns(self, each=1):
        count = range(STEPS * each)
        mine = [(turn, self._sizes(self._ranks.rank, turn)) for turn in count]
        own = (batch_of(self._ranks.rank, turn, rows) for turn, rows in mine if rows)
        for turn, batch in enumerate(self._all[0].join(own)):
            yield batch, each, turn % each == each - 1

    def no_sync(self):
        return self._all[0].no_sync()

    def close(self):
        for it in self._all:
            it.close()


def ordinary(way, *, each=1, always=False, module=None, after=lambda module: None, **options):
    """Train by a loop that does something to gradients between ``backward()`` and ``step()``."""
    called, optimizer = way.under(plain() if module is None else module, **options)
    for batch, share, last in way.turns(each):
        with nullcontext() if last or always else way.no_sync():
            (loss(called, batch) / share).backward()
        if last:
            after(called)
            optimizer.step()
            optimizer.zero_grad()
    return [called]


def clipped(module):
    for it in module.parameters():
        it.grad = it.grad.clamp(-0.05, 0.05)
    nn.utils.clip_grad_norm_(module.parameters(), 0.1)


def adversaries(way):
    """A GAN, of which each loss reaches both."""
    torch.manual_seed(7)
    judge, of_judge = way.under(nn.Sequential(nn.Linear(FEATURES, 8), nn.ELU(), nn.Linear(8, 1)))
    maker, of_maker = way.under(nn.Linear(FEATURES, FEATURES))
    for (x, _), _, _ in way.turns():
        of_judge.zero_grad()
        found = judge(torch.cat([x, maker(x.flip(1))]))
        wanted = torch.cat([torch.ones(len(x), 1), torch.zeros(len(x), 1)])
        nn.functional.mse_loss(found, wanted).backward()
        of_judge.step()
        of_maker.zero_grad()
        judge(maker(x.flip(1))).square().mean().backward()
        of_maker.step()
    return [judge, maker]


class Branches(nn.Module):
    """Frozen, unused and tied layers, and one that only some samples use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.frozen = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.some = nn.Linear(FEATURES, FEATURES)
        self.first = nn.Linear(FEATURES, FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.last = nn.Linear(FEATURES, 3)

    def forward(self, x):
        x = self.second(self.first(self.frozen(x)).tanh())
        if (chosen := x[:, 0] > 0.3).any():
            x = torch.where(chosen[:, None], self.some(x), x)
        return self.last(x)


class Nested(nn.Module):
    """Tied layers in reentrant checkpoints: their gradient comes twice, in nested passes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.tied, self.last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 3)

    def forward(self, x):
        x = x.requires_grad_()
        for _ in range(2):
            x = checkpoint(lambda it: self.tied(it).tanh(), x, use_reentrant=True)
        return self.last(x)


def penalised(way):
    """A penalty on the gradient itself, by a second backward through the first."""
    module, optimizer = way.under(plain().double(), torch.optim.SGD)
    for (x, y), _, _ in way.turns():
        loss(module, (x.double(), y)).backward(create_graph=True)
        sum(it.grad.square().sum() for it in module.parameters()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [module]


class Table(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.table = nn.EmbeddingBag(2 * FEATURES, 3, sparse=True)

    def forward(self, x):
        return self.table(torch.arange(FEATURES) + FEATURES * (x > 0))


def even(rank, turn):
    return 6


def uneven(rank, turn):
    """Ranks have other numbers of batches, and batches other numbers of samples."""
    is_there = turn < max(1, 2 * STEPS - 3 * rank) or not rank
    return 1 + (5 * rank + 3 * turn) % 7 if is_there else 0


def with_kwargs(**options):
    return lambda way: ordinary(way, **options)


DECAYED = {"kind": torch.optim.AdamW, "weight_decay": 0.5}
#: Name → the loop, samples by rank and turn, and how near they come.
LOOPS = {
    "clip": (with_kwargs(after=clipped), even, 1e-5),
    "accumulation": (with_kwargs(each=2, after=clipped), even, 1e-5),
    "both, in every pass": (with_kwargs(each=2, always=True), uneven, 1e-5),
    "sparse": (
        lambda way: ordinary(way, each=2, module=Table(), kind=torch.optim.SparseAdam),
        uneven, 1e-5,
    ),
    "gan": (adversaries, uneven, 1e-5),
    "branches, both": (
        lambda way: ordinary(way, each=2, module=Branches(), **DECAYED), uneven, 1e-5,
    ),
    "reentrant": (lambda way: ordinary(way, module=Nested()), uneven, 1e-5),
    "penalty": (penalised, even, 1e-9),
}  # fmt: skip


@pytest.fixture
def ranks(open_communicator):
    return open_communicator()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "codec"), [
    *((name, None) for name in LOOPS),
    *((name, "nonzero") for name in LOOPS if name not in ("clip", "accumulation", "penalty")),
])  # fmt: skip
def test_a_loop_is_that_of_one_process(open_communicator, comm, same_bits, name, codec):
    """Without a codec, and between hosts by one that loses nothing."""
    loop, sizes, atol = LOOPS[name]
    ranks = open_communicator(host=comm.rank if codec else None)
    way = Psrt(ranks, sizes, codec)
    mine = [parameters_of(it) for it in loop(way)]
    way.close()
    assert all(map(same_bits, mine))
    for found, module in zip(mine, loop(Alone(ranks.size, sizes)), strict=True):
        np.testing.assert_allclose(found, parameters_of(module), atol=atol)


@pytest.mark.mpi(min_size=2)
def test_ranks_on_different_devices_have_the_bits_of_ranks_on_one(
    ranks, same_bits, monkeypatch, staged
):
    """Of means that a factor of 3 ranks rounds, too."""
    found = []
    for is_apart in (staged, ranks.rank == 0):
        monkeypatch.setenv(STAGED, str(int(is_apart)))
        way = Psrt(ranks, even)
        [module] = ordinary(way, each=2, kind=torch.optim.SGD)
        way.close()
        found.append(parameters_of(module))
    assert same_bits(found[1])
    np.testing.assert_array_equal(*found)


def test_gradients_may_be_summed_in_a_thread_of_torchs(ranks, same_bits):
    """As backward for a GPU does it, while the program waits."""
    found = []

    def train():
        way = Psrt(ranks, uneven)
        found.append(parameters_of(ordinary(way)[0]))
        way.close()

    thread = threading.Thread(target=train)
    train()
    thread.start()
    thread.join()
    assert same_bits(found[1])
    np.testing.assert_array_equal(*found)


def test_broadcast_gives_all_the_root_s(ranks, same_bits, comm):
    torch.manual_seed(comm.rank)
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1).to(torch.bfloat16))
    module.register_buffer("flag", torch.tensor([comm.rank == 0, True]))
    module.register_buffer("byte", torch.tensor([comm.rank, 255], dtype=torch.uint8))
    module.register_buffer("wave", torch.tensor([comm.rank + 1j, 2]).conj())
    module[1].num_batches_tracked += comm.rank
    root = comm.size - 1
    before = copy.deepcopy(module.state_dict())
    psrt.torch.broadcast(module, ranks, root=root)
    for name, tensor in module.state_dict().items():
        assert same_bits(
            torch.view_as_real(tensor.resolve_conj()).numpy()
            if name == "wave"
            else tensor.float().numpy()
        ), name
        assert comm.rank != root or torch.equal(tensor, before[name])


def train_differing(ranks, *, names=False, before=None, within=None, order=None, seed=1):
    """Train a square net for a few steps; the last rank does otherwise than all others."""
    is_last = ranks.rank == ranks.size - 1
    torch.manual_seed(seed if is_last else 1)
    module = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES))
    own = list(module.parameters())
    places = order if order and is_last else range(len(own))
    optimizer = torch.optim.Adam([own[i] for i in places], lr=0.1)
    if before and is_last:
        before(module, optimizer)
    given = module if names else None
    with psrt.torch.Gradients(optimizer, ranks, check_every=2, module=given):
        for step in range(4):
            what = (within or {}).get(step) if is_last else None
            if what == "skip":
                continue
            module(batch_of(0, step, 3)[0]).square().mean().backward()
            if callable(what):
                what(module, optimizer)
            if what != "no step":
                optimizer.step()
            optimizer.zero_grad()


def move(module, optimizer):
    with torch.no_grad():
        module[1].bias[2] += 1e-3


def one_more_step(module, optimizer):
    for it in module.parameters():
        it.grad = torch.ones_like(it)
    optimizer.step()
    optimizer.zero_grad()


SWAPPED = (2, 1, 0, 3)
#: What the last rank does otherwise, and what every rank says then, after "rank 1 ".
DIFFERING = {
    "order": ({"order": SWAPPED}, "the parameters of rank 0 in another order, from parameter 0"),
    "order, other values": ({"order": SWAPPED, "seed": 2}, "the order of gradients, at parameter"),
    "state": ({"before": one_more_step}, r"in the optimizer's state of parameter 0 \(6, 6\)"),
    "values later": ({"within": {1: move}, "names": True}, r"the values of 1\.bias \(6,\)"),
    "one pass less": ({"within": {3: "skip"}}, "is at the end after 3 steps of the optimizer"),
    "one step less": ({"within": {1: "no step"}}, "is in backward after 1 steps of the optimizer"),
}  # fmt: skip


@pytest.mark.mpi(min_size=2)
def test_ranks_that_differ_are_named_on_all(ranks, comm):
    for what, (how, words) in DIFFERING.items():
        with pytest.raises(ConfigError) as caught:
            train_differing(ranks, **how)
        assert re.search(f"rank {comm.size - 1} .*{words}", str(caught.value)), (what, caught.value)


@pytest.mark.parametrize("codec", [None, "nonzero"])
def test_a_loop_continues_after_an_error_in_backward(open_communicator, comm, same_bits, codec):
    """A gradient of the pass that failed counts nothing, whether its sum had begun or not."""
    ranks = open_communicator(host=comm.rank if codec else None)

    class FailingError(Exception):
        pass

    def fail(gradient):
        raise FailingError

    found = []
    for fails in (False, True):
        module = plain()
        optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
        more = {"codec": codec, "say": lambda line: None}
        with psrt.torch.Gradients(optimizer, ranks, bucket_bytes=1, **more):
            for turn in range(3):
                if fails and turn == 1:
                    hook = module[0].weight.register_hook(fail)
                    with pytest.raises(FailingError):
                        loss(module, batch_of(9, turn, 4)).backward()
                    hook.remove()
                    optimizer.zero_grad()
                loss(module, batch_of(ranks.rank, turn, 4)).backward()
                optimizer.step()
                optimizer.zero_grad()
        found.append(parameters_of(module))
    assert same_bits(found[1])
    np.testing.assert_allclose(*found, atol=1e-6)


def test_join_weighs_what_goes_to_grad_and_nothing_else(ranks):
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    own = [torch.ones(4, 1), torch.ones(1, 1)][: 1 if ranks.rank else 2]
    with psrt.torch.Gradients(optimizer, ranks) as gradients:
        for _ in gradients.join(own):
            (asked,) = torch.autograd.grad((3 * weight).sum(), [weight])
            assert asked.tolist() == [3, 3]
            (3 * weight).sum().backward()
            torch.testing.assert_close(weight.grad, torch.full((2,), 3.0))
            optimizer.step()
            optimizer.zero_grad()


def test_a_rank_without_a_loss_takes_part(ranks, same_bits):
    """By ``step()``, or before clipping by ``wait()``; what only it does not use has a mean."""
    module = nn.Sequential(nn.Linear(FEATURES, 3), nn.Linear(2, 2)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.5)
    before = module[1].weight.clone()
    with psrt.torch.Gradients(optimizer, ranks, module=module) as gradients:
        for turn in range(4):
            if ranks.rank == 0:
                x, y = batch_of(0, turn, 4)
                loss(module[0], (x.bfloat16(), y)).backward()
            if turn % 2:
                gradients.wait()
                nn.utils.clip_grad_norm_(module.parameters(), 0.1)
                assert module[0].weight.grad.any()
            optimizer.step()
            assert module[1].weight.grad is None
            optimizer.zero_grad()
    assert same_bits(module[0].weight.detach().float().numpy())
    assert torch.equal(module[1].weight, before)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("width", [3, 300])
def test_broadcast_refuses_other_modules(ranks, comm, width):
    """Of the same size, or of another; all ranks say which, whatever the root."""
    module = nn.Linear(width, 2) if comm.rank else nn.Linear(2, 3, bias=False)
    with pytest.raises(ConfigError, match=r"rank 1 differs from rank 0 in parameter weight, torch"):
        psrt.torch.broadcast(module, ranks, root=1)
    psrt.torch.broadcast(plain(), ranks, root=1)
