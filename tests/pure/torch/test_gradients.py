"""Which sums Gradients begins, when and of what, over ranks that are played; without MPI.

That loops of any kind are those of one process stands in tests/parallel/torch.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import psrt
from psrt.core.errors import ConfigError
from psrt.torch.buckets import Buckets
from support.staging import BOTH
from support.torch_models import data, loss, parameters_of, plain

pytestmark = BOTH


class Played:
    """A communicator of several ranks, of which all others have zeros; notes what is summed.

    What is counted, others count as this rank does.
    """

    def __init__(self, size=1, rank=0):
        self.rank, self.size = rank, size
        self.begun, self.waited, self.closed = [], 0, False
        self.hosts = (1,) * size

    def empty(self, shape, dtype=np.float32):
        return np.zeros(shape, dtype)

    def all_reduce(self, buf, op="sum", algorithm="auto"):
        assert op == "sum"
        if buf.dtype.kind == "i":
            buf *= self.size
        return buf

    def all_reduce_async(self, buf, op="sum", algorithm="auto"):
        assert op == "sum"
        self.begun.append((buf.ctypes.data, buf.size, id(buf)))
        return self

    def test(self):
        return False

    def wait(self):
        self.waited += 1

    def broadcast(self, buf, root=0):
        return buf


def batch():
    x, y = data()
    return x[:8], y[:8]


def trained(module, *, ranks=None, steps=3, **more):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    gradients = psrt.torch.Gradients(optimizer, ranks or Played(), **more)
    return optimizer, gradients


def expected(module, rows=None):
    used = [it for it in module.parameters() if it.requires_grad]
    found = torch.autograd.grad(loss(module, batch() if rows is None else rows), used)
    return [it.numpy() for it in found]


def found(module):
    return [it.grad.numpy() for it in module.parameters() if it.requires_grad]


def same(found, expected, factor=1):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, factor * other, rtol=1e-6)


@pytest.mark.parametrize(("nbytes", "count"), [(1, 4), (100, 2), (10**6, 1)])
def test_buckets_are_begun_in_order_while_backward_goes_on(nbytes, count, staged):
    module, ranks = plain(), Played()
    optimizer, _ = trained(module, ranks=ranks, bucket_bytes=nbytes)
    arrays = set()
    first = []
    module[0].weight.register_hook(lambda gradient: first.append(len(ranks.begun)))
    for _ in range(3):
        ranks.begun.clear()
        loss(module, batch()).backward()
        begun = first.pop()
        assert begun == count - 1 or (staged and begun < count), "the last layer's, as they come"
        assert len(ranks.begun) == count
        places = [place for place, *_ in ranks.begun]
        assert places == sorted(places)
        assert sum(size for _, size, _ in ranks.begun) == 83
        arrays |= {it for *_, it in ranks.begun}
        optimizer.step()
        optimizer.zero_grad()
    assert ranks.waited == 3 * count, "backward waits for them"
    assert len(arrays) == count, "the same at every step: they are compiled once"


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [0, 1, 2, 3], [2, 0, 3, 1]])
@pytest.mark.parametrize("sizes", [(3, 4, 5, 6), (0, 4, 0, 3), (4, 0, 3, 0)])
def test_whatever_comes_first_and_is_empty_the_order_is_the_same(order, sizes):
    ranks = Played()
    buckets = Buckets([torch.zeros(size) for size in sizes], ranks, 4)
    for i in order:
        buckets.arrive(i)
    assert len(ranks.begun) == len(buckets)
    assert [size for _, size, _ in ranks.begun if size] == [it for it in sizes[::-1] if it]
    for bucket in range(len(buckets)):
        buckets.wait(bucket)


def test_waiting_does_nothing_after_backward_and_a_step_may_be_left_out():
    module, ranks = plain(), Played()
    optimizer, gradients = trained(module, ranks=ranks, bucket_bytes=1)
    loss(module, batch()).backward()
    assert ranks.waited == 4
    nn.utils.clip_grad_norm_(module.parameters(), 1e-2)
    gradients.wait()
    clipped = [it.copy() for it in found(module)]
    before = parameters_of(module)
    optimizer.step()
    step = 0.1 * np.concatenate([it.ravel() for it in clipped])
    np.testing.assert_allclose(parameters_of(module), before - step, atol=1e-7)
    for _ in range(2):  # and no step
        optimizer.zero_grad()
        loss(module, batch()).backward()
    assert ranks.waited == 12
    optimizer.zero_grad()
    gradients.wait()  # a step without a loss
    optimizer.step()
    assert ranks.waited == 20
    with gradients.no_sync():
        loss(module, batch()).backward()
        gradients.wait()
    assert ranks.waited == 20
    optimizer.step()  # brings together what no pass has
    assert ranks.waited == 24


def test_a_gradient_is_in_memory_of_its_own():
    """What a loop has kept of a step is not written to by the next one."""
    module = plain()
    optimizer, _ = trained(module)
    loss(module, batch()).backward()
    kept = [it.grad for it in module.parameters()]
    before = [it.clone() for it in kept]
    optimizer.step()
    optimizer.zero_grad()
    loss(module, batch()).backward()
    assert all(map(torch.equal, kept, before))


def test_a_rank_that_has_run_out_counts_nothing():
    """Whatever comes of its last batch, NaN too; what only that uses has no gradient."""
    module, ranks = plain(), Played(2)
    optimizer, gradients = trained(module, ranks=ranks)
    counted = ranks.all_reduce

    def others_have(samples, remaining):
        def all_reduce(buf):
            if buf.size > 3:
                return counted(buf)
            buf += np.array([samples, remaining, 0])
            return buf

        ranks.all_reduce = all_reduce

    others_have(24, 1)
    turns = gradients.join([list(batch()), {"x": batch()[0], "y": batch()[1]}])
    for turn in range(2):
        got = next(turns)
        assert not gradients.ran_out
        assert isinstance(got, dict if turn else list)
        loss(module, batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    others_have(10, 1)
    next(turns)
    assert gradients.ran_out
    (loss(module, batch()) * float("nan")).backward()
    assert all(it.grad is None for it in module.parameters())
    others_have(0, 0)
    with pytest.raises(StopIteration):
        next(turns)
    assert not gradients.ran_out
    before = expected(module)
    loss(module, batch()).backward()
    same(found(module), before, 0.5)


@pytest.mark.parametrize("to_none", [True, False])
def test_weights_begin_anew_with_gradients_set_back_without_a_step(to_none):
    module = plain()
    optimizer, gradients = trained(module)
    for turn, (x, y) in enumerate(gradients.join([batch(), [it[:3] for it in batch()]])):
        with gradients.no_sync() if not turn else nullcontext():
            loss(module, (x, y)).backward()
        if not turn:
            optimizer.zero_grad(set_to_none=to_none)
    same(found(module), expected(module, (x, y)))
    # Within another join each counts once.
    small = [it[:3] for it in batch()]
    for outer in gradients.join([batch(), small]):
        for rows in [*gradients.join([small, batch(), small]), outer]:
            optimizer.zero_grad()
            loss(module, rows).backward()
            same(found(module), expected(module, rows))
    assert not any(it._backward_hooks for it in module.parameters())


def test_parameters_may_be_frozen_and_not_in_any_turn_of_a_join():
    module = plain()
    optimizer, gradients = trained(module)
    module[0].requires_grad_(False)
    for turn, rows in enumerate(gradients.join([batch(), *[[it[:3] for it in batch()]] * 3])):
        module[0].requires_grad_(turn % 2 == 1)
        optimizer.zero_grad()
        loss(module, rows).backward()
        same(found(module), expected(module, rows))


def test_closed_it_does_nothing():
    module, ranks = plain(), Played()
    optimizer, gradients = trained(module, ranks=ranks)
    with gradients:
        loss(module, batch()).backward()
        optimizer.step()
    ranks.begun.clear()
    loss(module, batch()).backward()
    optimizer.step()
    gradients.close()
    assert not ranks.begun
    trained(module, ranks=ranks)


def test_gradients_that_outlive_their_communicator_say_so():
    """The memory for their sums is gone by then; writing to it would end the process."""
    module, ranks = plain(), Played()
    optimizer, gradients = trained(module, ranks=ranks)
    for it in module.parameters():
        it.grad = torch.ones_like(it)
    ranks.closed = True
    words = r"the communicator of these Gradients is closed; expected close\(\) of Gradients"
    for call in (lambda: loss(module, batch()).backward(), optimizer.step, gradients.close):
        with pytest.raises(ConfigError, match=words):
            call()
    loss(module, batch()).backward()  # close() has taken the hooks away


KINDS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


def test_parameters_of_any_type_go_side_by_side():
    torch.manual_seed(0)
    tensors = [nn.Parameter(torch.randn(n, dtype=kind)) for n in (3, 4, 5) for kind in KINDS]
    optimizer = torch.optim.SGD(tensors, lr=0.1)
    psrt.torch.Gradients(optimizer, Played(4), bucket_bytes=16)
    for factor in (1, 3e4):  # the sum of float16 would be too large
        sum((it.abs() * factor).sum().double() for it in tensors).backward()
        for it in tensors:
            alone = torch.autograd.grad((it.abs() * factor).sum().double(), it)[0]
            assert it.grad.dtype == it.dtype
            torch.testing.assert_close(it.grad, alone / 4)
        optimizer.zero_grad(set_to_none=False)


def test_a_closure_computes_the_mean():
    module = plain()
    optimizer, _ = trained(module, ranks=Played(2))
    before = expected(module)

    def closure():
        optimizer.zero_grad()
        value = loss(module, batch())
        value.backward()
        return value

    assert optimizer.step(closure) > 0
    same(found(module), before, 0.5)


def test_a_parameter_has_one_gradients_and_new_ones_are_refused():
    module, ranks = plain(), Played()
    optimizer, _ = trained(module, ranks=ranks)
    with pytest.raises(ConfigError, match=r"parameter 0 \(8, 6\) is under another Gradients"):
        psrt.torch.Gradients(optimizer, ranks)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(5))]})
    loss(module, batch()).backward()
    words = r"of shape \(5,\) that was frozen or absent when Gradients was made; expected close"
    with pytest.raises(ConfigError, match=words):
        optimizer.step()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "other", [torch.ones(9), torch.ones(2, 3), torch.ones(6).double(), torch.ones(6).half()]
)
def test_a_parameter_of_another_shape_or_type_needs_other_gradients(size, other):
    tensors = [nn.Parameter(torch.ones(6)) for _ in range(3)]
    gradients = psrt.torch.Gradients(torch.optim.SGD(tensors, lr=0.1), Played(size))
    tensors[1].data = other
    kind = str(other.dtype).removeprefix("torch.")
    refused = pytest.raises(
        ConfigError, match=rf"parameter 1 \(6,\) is now .* of {kind}.*a new Gradients"
    )
    if other.dtype == torch.float16:  # of which sums are in float32, too
        refused = nullcontext()
    with refused:
        sum(it.abs().sum() for it in tensors).backward()
    for it in tensors:
        it.grad = None
    with refused:  # by who has no gradient, too
        gradients.wait()


def test_a_step_within_backward_and_two_joins_side_by_side_are_refused():
    """Else a step would be by gradients that are no means, or weighed by the other's samples."""
    (one, other), ranks = (plain(), plain()), Played()
    (_, first), (optimizer, second) = trained(one, ranks=ranks), trained(other, ranks=ranks)
    pairs = zip(first.join([batch()] * 3), second.join([batch()] * 3), strict=True)
    next(pairs)
    with pytest.raises(ConfigError, match=r"another join\(\) .* expected join\(zip\("):
        next(pairs)
    other[2].weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with pytest.raises(ConfigError, match=r"step\(\) came within backward\(\)"):
        loss(other, batch()).backward()


def test_a_buffer_whose_elements_share_their_memory_is_received():
    """As of ``expand``: nothing can be written there."""
    module = torch.nn.Linear(2, 1)
    module.register_buffer("kept", torch.full((1,), 3.0).expand(4))
    ranks = Played(2, rank=1)
    ranks.broadcast = lambda buf, root=0: np.copyto(buf, 0)  # what rank 0 has
    psrt.torch.broadcast(module, ranks)
    assert torch.equal(module.kept, torch.zeros(4))
    assert not any(it.any() for it in module.parameters())


def test_a_gradient_whose_elements_share_their_memory_becomes_a_mean():
    tensors = [nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(()))]
    optimizer = torch.optim.SGD(tensors, lr=1.0)
    psrt.torch.Gradients(optimizer, Played(2))
    given = torch.tensor([[4.0], [8.0], [2.0]])
    tensors[0].grad, tensors[1].grad = given.expand(3, 2), torch.tensor(6.0)
    optimizer.step()
    assert tensors[0].tolist() == [[-1, -1], [-3, -3], [0, 0]]
    assert tensors[1].item() == -2
    assert given.tolist() == [[4], [8], [2]]


#: A codec that cannot be, and what is said.
IMPOSSIBLE = [
    ({"codec": "topp-k"}, r"codec must be one of float16, .* \(did you mean top-k\?\)"),
    ({"codec": "top-k:density=2"}, "codec top-k: density must be at most 1, got 2"),
    ({"codec": "int8", "error_feedback": True}, "--error-feedback has no effect with --codec int8"),
    ({"codec": "sign", "codec_reply": "dgc"}, "--codec-reply dgc cannot send changes of param"),
    ({"codec_reply": "int8"}, "--codec-reply int8 has no effect without --codec"),
    ({"codec_everywhere": True}, "--codec-everywhere has no effect without --codec"),
    ({"codec": "low-rank:rank=7"}, "low-rank:rank=7: rank 7 is higher than that of any matrix"),
    ({"codec": "sign", "seed": -1}, "seed must be at least 0, got -1"),
]


def test_a_codec_that_is_impossible_is_refused():
    for more, words in IMPOSSIBLE:
        with pytest.raises(ConfigError, match=f"^(--codec )?{words}"):
            trained(plain(), ranks=Played(2), **more)
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2).double())
    words = r"^parameter 2 \(2, 3\) is torch.float64, but codec sign encodes float32; expected"
    with pytest.raises(ConfigError, match=words):
        trained(module, ranks=Played(2), codec="sign")
    for more in ({"codec": "sign", "scaler": 2.0}, {"scaler": torch.amp.GradScaler("cpu")}):
        with pytest.raises(ConfigError, match=r"^the scaler is a .*, expected a GradScaler of a"):
            trained(plain(), ranks=Played(2), **more)
    with pytest.raises(ConfigError, match="compresses matrices, but the model has none"):
        trained(nn.PReLU(5), ranks=Played(2), codec="low-rank")


def test_one_rank_sends_nothing_by_no_codec():
    lines, module = [], plain()
    _, gradients = trained(module, codec="top-k", say=lines.append)
    assert lines == ["codec top-k has no effect with one rank, which sends nothing"]
    loss(module, batch()).backward()
    same(found(module), expected(module))
    assert (gradients.frame_bytes, gradients.framed_bytes, gradients.state_dict()) == (0, 0, {})
    gradients.load_state_dict({})
