"""Gradients summed by a codec, in loops of one's own on several ranks.

What a codec sends, and how frames add up, is tested in ``test_codecs``. Here it is what a loop
adds: when a round counts, in which unit something is kept back, and that nothing of it is lost.
"""

import copy
import io
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import psrt
from psrt.codec import CODECS
from psrt.core.errors import ConfigError, DifferentCallsError, LeftError, TransportError
from psrt.core.partition import Span
from psrt.data import BatchPlan
from psrt.faults.vitals import HERE
from psrt.mpi.communicator import Communicator
from psrt.runtime.job_codec import JobCodec
from support.torch_models import FEATURES, data, loss, parameters_of, plain

pytestmark = pytest.mark.mpi(min_size=2)
STEPS = 5
#: Layouts as in ``conftest``: each rank is a host; two hosts, on one of which there are several.
HOSTS = {"apart": lambda rank: rank, "two hosts": lambda rank: rank % 2}
KNOBS = {"top-k": "top-k:density=0.1", "threshold": "threshold:threshold=0.02",
         "random-k": "random-k:density=0.2", "dgc": "dgc:density=0.1"}  # fmt: skip


@pytest.fixture(params=HOSTS)
def ranks(request, comm, open_communicator):
    return open_communicator(host=HOSTS[request.param](comm.rank))


@pytest.fixture
def apart(comm, open_communicator):
    return open_communicator(host=comm.rank)


def batch_of(ranks, step, rows=6):
    return data(100 * step + ranks.rank, rows)


def gradients_of(module, ranks, lr=0.1, **more):
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    more = {"bucket_bytes": 100, "say": lambda line: None, **more}
    return optimizer, psrt.torch.Gradients(optimizer, ranks, module=module, **more)


class Several(nn.Module):
    """Layers of several types, one of which only every other step uses, and one that none uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.turn = 0
        self.frozen = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.first = nn.Linear(FEATURES, 12)
        self.coarse = nn.Linear(12, 12).to(torch.bfloat16)
        self.some = nn.Linear(12, 12)
        self.unused = nn.Linear(2, 3)
        self.last = nn.Linear(12, 3)

    def forward(self, x):
        x = self.coarse(self.first(self.frozen(x)).tanh().bfloat16()).float()
        return self.last(self.some(x) if self.turn % 2 == 0 else x)


def flat(tensors):
    """Return numbers of tensors as buckets have them, the last tensor first."""
    return torch.cat([it.detach().float().reshape(-1) for it in list(tensors)[::-1]]).numpy()


def mean_of(module):
    trained = [it for it in module.parameters() if it.requires_grad]
    return flat(torch.zeros_like(it) if it.grad is None else it.grad for it in trained)


def kept_back(comm, state, n):
    """Return what all ranks keep back, as part of a mean; by element."""
    found, at = np.zeros(n), 0
    size, rank = state["ranks"], state["rank"]
    for number in range(len(state["sums"])):
        for part in state["sums"][str(number)].values():
            senders = part["senders"].values() if "senders" in part else [part["sender"]]
            mine = np.concatenate([it["residual"].numpy() for it in senders]) / part["total"]
            found[at : at + mine.size] += mine
            if part.get("back"):
                own = np.array_split(np.arange(mine.size), size)[rank]
                found[at + own] += part["back"]["residual"].numpy()
            at += mine.size
    comm.Allreduce(found.copy(), found)
    return found


@pytest.mark.parametrize("name", CODECS)
def test_all_ranks_end_with_the_same_bits_and_nothing_is_lost(comm, apart, same_bits, name):
    """What steps took and what is kept back is all that there was, with uneven batches, too."""
    module = Several()
    before = [it.clone() for it in module.unused.parameters()]
    optimizer, gradients = gradients_of(module, apart, codec=KNOBS.get(name, name))
    batches = [batch_of(apart, step, 6 if step % 3 else 2 + apart.rank) for step in range(STEPS)]
    given = taken = 0.0
    for step, batch in enumerate(gradients.join(batches)):
        module.turn = step
        alone = copy.deepcopy(module)  # without hooks
        loss(alone, batch).backward()
        samples = float(len(batch[0]))
        sums = np.append(samples * mean_of(alone), samples)
        comm.Allreduce(sums.copy(), sums)
        loss(module, batch).backward()
        given = given + sums[:-1] / sums[-1]
        taken = taken + mean_of(module)
        assert all(it.grad is None for it in module.unused.parameters())
        optimizer.step()
        optimizer.zero_grad()
        assert same_bits(parameters_of(module))
    state = gradients.state_dict()
    gradients.close()
    assert gradients.frame_bytes > 0
    assert all(map(torch.equal, module.unused.parameters(), before))
    if CODECS[name].is_fed_back:
        # The mean of a bfloat16 is one, with 8 bits.
        near = {"coarse": 1e-2, "unused": np.inf}  # what never had a gradient is not moved
        named = [it for it in module.named_parameters() if it[1].requires_grad]
        atol = flat(torch.full_like(it, near.get(name.split(".")[0], 2e-6)).float()
                    for name, it in named)  # fmt: skip
        assert (abs(given - taken - kept_back(comm, state, given.size)) < atol).all()


# --- an oracle in double precision ----------------------------------------------------------------


def largest(vector, density=0.1):
    found = np.zeros_like(vector)
    chosen = np.argsort(-np.abs(vector), kind="stable")[: math.ceil(density * vector.size)]
    found[chosen] = vector[chosen]
    return found


def signs(vector, bucket=16):
    cut = [vector[at : at + bucket] for at in range(0, vector.size, bucket)]
    return np.concatenate([np.where(it < 0, -1, 1) * np.abs(it).mean() for it in cut])


ENCODED = {"top-k:density=0.1": largest, "sign:bucket=16": signs}


class Fed:
    """A sender with error feedback."""

    def __init__(self, encode, size):
        self.encode, self.residual = encode, np.zeros(size)

    def __call__(self, vector):
        sent = self.encode(vector + self.residual)
        self.residual += vector - sent
        return sent


def oracle(theta, hosts, encode, rate):
    """Train squares by hand: each host sends its sum, to all others or by way of owners."""
    n, p = theta.size, len(hosts)
    # Two hosts gather, with a part for each rank as far as both have as many.
    cuts = np.array_split(np.arange(n), min(map(len, hosts)) if p == 2 else p)
    forth = {(host, c): Fed(encode, cut.size) for host in range(p) for c, cut in enumerate(cuts)}
    back = [Fed(encode, cut.size) if p > 2 else lambda mean: mean for cut in cuts]
    size = sum(map(len, hosts))
    for step in range(STEPS):
        mean = np.zeros(n)
        for c, cut in enumerate(cuts):
            for host, members in enumerate(hosts):
                whole = sum(slope(theta, rank, step) for rank in members)
                mean[cut] += forth[host, c](whole[cut])
            mean[cut] = back[c](mean[cut] / size)
        theta = theta - rate * mean
    return theta


def slope(theta, rank, step):
    x, y = (it.numpy().astype(np.float64) for it in data(100 * step + rank, 6))
    weight = theta.reshape(5, FEATURES)
    error = x @ weight.T - y[:, np.newaxis]
    return (2 * error.T @ x / error.size).ravel()


@pytest.mark.parametrize("codec", ENCODED)
def test_it_is_what_is_computed_by_hand(comm, ranks, codec):
    torch.manual_seed(2)
    module = nn.Linear(FEATURES, 5, bias=False)
    start = parameters_of(module).astype(np.float64)
    optimizer, gradients = gradients_of(module, ranks, codec=codec, codec_everywhere=True)
    with gradients:
        for step in range(STEPS):
            x, y = batch_of(ranks, step)
            optimizer.zero_grad()
            nn.functional.mse_loss(module(x), y[:, None].float().expand(-1, 5)).backward()
            optimizer.step()
    hosts = [[rank] for rank in range(ranks.size)]
    if len(ranks.hosts) < ranks.size:
        hosts = [[r for r in range(ranks.size) if r % 2 == host] for host in range(2)]
    found = oracle(start, hosts, ENCODED[codec], 0.1)
    np.testing.assert_allclose(parameters_of(module), found, atol=1e-5)


# --- beside jobs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [
    {"codec": "int8:bucket=16"}, {"codec": "top-k:density=0.2"}, {"codec": "float16"},
    {"codec": "dgc:density=0.1,warmup-epochs=2"}, {"codec": "low-rank:rank=1"},
    {"codec": "demo:chunk=4,kept=3"}, {"codec": "random-k:density=0.3", "error_feedback": True},
    {"codec": "sign", "codec_reply": "nonzero"},
])  # fmt: skip
def test_a_loop_is_the_job_of_the_same_codec(comm, open_communicator, more):
    """With draws, residuals, smaller last batches and epochs; two epochs of the problem."""
    from psrt.job.local import run

    more = {**more, "codec_everywhere": True, "seed": 4}
    x, y = data()
    x, y = x[:70], y[:70]
    torch.manual_seed(1)
    module = nn.Linear(FEATURES, 3, bias=False)
    optimizer, gradients = gradients_of(module, open_communicator(), **more)
    plan = BatchPlan(len(x), batch_size=8, workers=comm.size, seed=4)
    torch.manual_seed(1)
    problem = psrt.torch.Problem(
        nn.Linear(FEATURES, 3, bias=False), loss, (x, y), batch_size=8, seed=4
    )
    with gradients:
        for epoch in range(2):
            steps = range(plan.steps_per_epoch)
            rows = [np.array(plan.indices(epoch, step, comm.rank)) for step in steps]
            for batch in gradients.join([(x[it], y[it]) for it in rows if it.size]):
                optimizer.zero_grad()
                loss(module, batch).backward()
                optimizer.step()
    config = psrt.TrainConfig(mode="allreduce", epochs=2, lr=0.1, batch_size=8, **more)
    found = run(config, problem, comm=comm)
    if found is not None:
        np.testing.assert_allclose(parameters_of(module), found.theta, atol=1e-6)


# --- rounds that do not count ---------------------------------------------------------------------


def test_what_loses_nothing_is_the_sum_without_a_codec(ranks, same_bits):
    found = []
    for codec in (None, "nonzero", "low-rank:rank=6"):
        module = plain()
        optimizer, gradients = gradients_of(
            module, ranks, codec=codec, codec_everywhere=bool(codec)
        )
        with gradients:
            for batch in gradients.join([batch_of(ranks, step) for step in range(3 + ranks.rank)]):
                optimizer.zero_grad()
                loss(module, batch).backward()
                optimizer.step()
        found.append(parameters_of(module))
        assert same_bits(found[-1])
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=0 if ranks.size == 2 else 1e-6)
    np.testing.assert_allclose(found[2], found[0], atol=1e-5)


def scaled(ranks, *, scales):
    """Train with a GradScaler whose scale grows, and is halved once, where a gradient is inf."""
    module = plain()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2, enabled=scales)
    optimizer, gradients = gradients_of(module, ranks, codec="top-k:density=0.1", scaler=scaler)
    with gradients:
        for step in range(6):
            if step == 3 and scales:
                value = loss(module, batch_of(ranks, step)) * (math.inf if ranks.rank else 1.0)
                scaler.scale(value).backward()
                scaler.step(optimizer)
                before = scaler.get_scale()
                scaler.update()
                assert scaler.get_scale() == before / 2
            optimizer.zero_grad()
            scaler.scale(loss(module, batch_of(ranks, step))).backward()
            scaler.step(optimizer)
            scaler.update()
    return parameters_of(module)


def test_what_is_kept_back_follows_a_scaler(apart, same_bits):
    found = scaled(apart, scales=True)
    assert same_bits(found)
    np.testing.assert_array_equal(found, scaled(apart, scales=False))


def infinite(ranks, step, codec, bad):
    """Train; in one step the gradient of rank 1 is not finite, and the step is skipped."""
    module = plain()
    more = {"codec": codec, "error_feedback": True if codec == "random-k" else None}
    optimizer, gradients = gradients_of(module, ranks, **more)
    one = torch.zeros(8, FEATURES)
    one[3, 2] = bad if ranks.rank == 1 else 0.0
    with gradients:
        for turn in range(4):
            optimizer.zero_grad()
            if turn == step:
                before = str(gradients.state_dict()["sums"])
                hook = module[0].weight.register_hook(lambda it: it + one)
                loss(module, batch_of(ranks, turn)).backward()
                hook.remove()
                assert flat(~it.grad.isfinite() for it in module.parameters()).sum() == 1
                assert str(gradients.state_dict()["sums"]) == before
                optimizer.zero_grad()
            loss(module, batch_of(ranks, turn)).backward()
            optimizer.step()
    return parameters_of(module)


@pytest.mark.parametrize(
    ("codec", "bad"),
    [("top-k", math.inf), ("dgc", math.nan), ("low-rank", math.inf), ("random-k", math.nan)],
)
def test_a_gradient_that_is_not_finite_leaves_no_trace(apart, same_bits, codec, bad):
    found = infinite(apart, 2, codec, bad)
    assert same_bits(found)
    np.testing.assert_array_equal(found, infinite(apart, None, codec, bad))


@pytest.mark.parametrize(("codec", "size"), [("float16", 1e6), ("nonzero", 2.0**127)])
def test_what_a_codec_cannot_hold_is_summed_without_it(apart, codec, size):
    """A float16 ends at 65,504, and a float32 between the mean of these gradients and their sum."""
    module = nn.Linear(2, 1, bias=False)
    _, gradients = gradients_of(module, apart, codec=codec)
    with gradients:
        module(torch.full((1, 2), size)).sum().backward()
    assert torch.equal(module.weight.grad, torch.full((1, 2), size))


# --- saved, refused, lost -------------------------------------------------------------------------


def saved_and_loaded(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("codec", ["top-k:density=0.1", "qsgd", "dgc:warmup-epochs=2", "low-rank"])
def test_a_loop_continues_to_the_same_bits(apart, codec):
    found = []
    for stops in (False, True):
        module = plain()
        optimizer, gradients = gradients_of(module, apart, codec=codec)
        gradients.epoch = 0
        for epoch in range(3):
            if stops:
                state = saved_and_loaded(gradients.state_dict())
                gradients.close()
                optimizer, gradients = gradients_of(module, apart, codec=codec)
                gradients.epoch = 0
                gradients.load_state_dict(state)
                assert str(gradients.state_dict()) == str(state)
            for batch in gradients.join([batch_of(apart, 3 * epoch + step) for step in range(3)]):
                optimizer.zero_grad()
                loss(module, batch).backward()
                optimizer.step()
        gradients.close()
        found.append(parameters_of(module))
    np.testing.assert_array_equal(*found)


def test_a_state_of_another_loop_is_refused(apart):
    module = plain()
    _, gradients = gradients_of(module, apart, codec="top-k")
    loss(module, batch_of(apart, 0)).backward()
    state = gradients.state_dict()
    gradients.close()
    assert str(gradients.state_dict()) == str(state), "the last round only compares the ranks"
    sums = state["sums"]
    other = (apart.rank + 1) % apart.size
    cases = [
        ({"codec": "sign"}, state, "the state has codec top-k:density=0.01, expected sign"),
        ({"codec": "top-k"}, {**state, "rank": other}, f"has rank {other}, expected {apart.rank}"),
        (
            {"codec": "top-k", "bucket_bytes": 9999},
            state,
            "not of these parameters in these bucket",
        ),
        (
            {"codec": "top-k"},
            {**state, "sums": {**sums, "1": sums["0"]}},
            "not of these parameters",
        ),
        ({"codec": "top-k"}, {}, "the state has codec None, expected top-k"),
        ({}, state, "the state has codec top-k:density=0.01, expected an empty one"),
    ]
    for more, given, words in cases:
        _, gradients = gradients_of(module, apart, **more)
        before = str(gradients.state_dict())
        with pytest.raises(ConfigError, match=words):
            gradients.load_state_dict(given)
        assert str(gradients.state_dict()) == before
        gradients.close()


def int8_bytes(n):
    """A byte for each element and a float32 for each 16, behind 20 bytes."""
    return n + 4 * -(-n // 16) + 20


def test_bytes_are_counted_as_they_are_sent(comm, ranks):
    """Of a host's sum each of its ranks sends a part, as far as all hosts have as many ranks."""
    module, lines, n = nn.Linear(FEATURES, 64, bias=False), [], 64 * FEATURES
    more = {"codec": "int8:bucket=16", "bucket_bytes": 1 << 20, "say": lines.append}
    hosts, rails = len(ranks.hosts), min(ranks.hosts)
    host, local = (comm.rank, 0) if hosts == comm.size else (comm.rank % 2, comm.rank // 2)
    sizes = [it.size for it in np.array_split(np.arange(n // rails), hosts)]
    own = sizes.pop(host)
    frames, raw = sum(map(int8_bytes, sizes)) + (hosts - 1) * int8_bytes(own), sum(sizes)
    raw += (hosts - 1) * own
    if hosts == 2:  # all gather
        frames, raw = int8_bytes(n // rails), n // rails
    with gradients_of(module, ranks, **more)[1] as gradients:
        for _ in range(2):
            before = ranks.bytes_sent
            module(batch_of(ranks, 0)[0]).sum().backward()
        found, sent = (gradients.frame_bytes, gradients.framed_bytes), ranks.bytes_sent - before
    assert found == ((2 * frames, 8 * raw) if local < rails else (0, 0))
    assert sent > found[0] / 2
    assert [it.partition(":")[0] for it in lines] == ["codec"] * (comm.rank == 0)


def test_buckets_are_sent_while_backward_goes_on(apart):
    module, sent = plain(), []
    _, gradients = gradients_of(module, apart, codec="sign", bucket_bytes=1)
    module[0].weight.register_hook(lambda it: sent.append(gradients.frame_bytes))
    with gradients:
        loss(module, batch_of(apart, 0)).backward()
    assert sent[0] > 0


def test_one_host_needs_no_codec(comm, open_communicator):
    lines, found = [], []
    for codec in ("sign", None):
        module = plain()
        optimizer, gradients = gradients_of(
            module, open_communicator(), codec=codec, say=lines.append
        )
        with gradients:
            loss(module, batch_of(comm, 0)).backward()
            optimizer.step()
        assert (gradients.frame_bytes, gradients.state_dict()) == (0, {})
        found.append(parameters_of(module))
    np.testing.assert_array_equal(*found)
    assert lines == [
        "codec sign has no effect on one host, whose ranks share memory; "
        "codec_everywhere=True uses it anyway"
    ] * (comm.rank == 0)


def test_other_calls_do_not_displace_it_and_too_many_are_refused(apart, monkeypatch):
    """Each sum keeps its slot until its Gradients are closed."""
    monkeypatch.setattr("psrt.mpi.collectives.contexts.SLOTS", 12)
    found = []
    many = nn.Sequential(*(nn.Linear(1, 1) for _ in range(8)))
    for codec in (None, "nonzero", "nonzero", "nonzero"):
        with pytest.raises(ConfigError, match="too many sums are kept: there is room for 12 insi"):
            gradients_of(many, apart, codec="nonzero", bucket_bytes=1)
        module = plain()
        optimizer, gradients = gradients_of(module, apart, codec=codec, bucket_bytes=1)
        with gradients:
            for step in range(2):
                for n in range(1, 14):
                    apart.all_reduce(np.ones(n))
                optimizer.zero_grad()
                loss(module, batch_of(apart, step)).backward()
                optimizer.step()
        found.append(parameters_of(module))
    np.testing.assert_allclose(found[1:], [found[0]] * 3, atol=1e-6)


#: What the last rank does instead of its second backward pass, and what all others are told.
MISSING = {
    "leaves": (LeftError, "rank {} left with ZeroDivisionError: over$"),
    "another call": (DifferentCallsError, "the ranks make different calls: .*coded sum .* by "),
    "no call": (TransportError, "no answer within 1 s.*coded sum.*rank.*{} did not announce"),
}


@pytest.mark.parametrize("does", MISSING)
def test_who_is_missing_in_a_sum_is_named(comm, monkeypatch, does):
    monkeypatch.setattr("psrt.mpi.collectives.matcher.TELL_AFTER_S", 0.1)
    odd, (kind, words) = comm.size - 1, MISSING[does]
    is_odd, ranks = comm.rank == odd, Communicator(comm, host=comm.rank, timeout_s=1.0)
    [summed] = ranks.coded_sums(
        JobCodec(CODECS["top-k"]).of_sums(comm.rank), [(ranks.empty(100), Span(0, 100))]
    )
    summed.start().wait()
    if is_odd and does == "leaves":
        kind, words = ZeroDivisionError, "over"
    with (
        nullcontext()
        if is_odd and does == "no call"
        else pytest.raises(kind, match=words.format(odd)),
        ranks,
    ):
        if not is_odd:
            summed.start().wait()
        elif does == "leaves":
            raise ZeroDivisionError("over")
        elif does == "another call":
            ranks.all_reduce(np.ones(3))
        else:
            with HERE.blocked("the others"):  # it does not compute
                comm.Barrier()
            ranks._executor.broken = "over"
    if not is_odd and does == "no call":
        comm.Barrier()
