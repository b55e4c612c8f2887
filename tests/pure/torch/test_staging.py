"""Tensors that are not where psrt sums: what is copied when, and what cannot be.

That loops on such tensors are those on the CPU is seen by all tests marked ``BOTH``. There is no
GPU here: the calls of CUDA are seen on a torch.cuda that is played.
"""

from collections import namedtuple
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import psrt
from psrt.core.errors import ConfigError
from psrt.torch.buckets import Buckets
from psrt.torch.cuda import Cuda
from psrt.torch.draws import drawn_from
from psrt.torch.staging import Device, Mirror, moved
from support.staging import STAGED
from support.torch_models import FEATURES, data, loss, plain, problem_of

KINDS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


class Ranks:
    """A communicator of three ranks whose others have zeros; ``log`` has what it was asked."""

    rank, size, closed = 0, 3, False

    def __init__(self):
        self.log = []

    def empty(self, shape, dtype=np.float32):
        return np.zeros(shape, dtype)

    def all_reduce(self, buf, op="sum", algorithm="auto"):
        if buf.dtype.kind == "i":
            buf *= self.size
        return buf

    def all_reduce_async(self, buf, op="sum", algorithm="auto"):
        self.log.append("sum")
        return self

    def test(self):
        self.log.append("test")
        return False

    def wait(self):
        self.log.append("wait")

    def broadcast(self, buf, root=0):
        return buf


def gradients_of_all_kinds(kinds):
    """Return the bits of gradients after two passes, of which the second is weighed."""
    torch.manual_seed(0)
    tensors = [nn.Parameter(torch.randn(n, dtype=kind)) for n in (3, 400, 5) for kind in kinds]
    optimizer = torch.optim.SGD(tensors, lr=0.1)
    found = []
    with psrt.torch.Gradients(optimizer, Ranks(), bucket_bytes=256, check_every=0) as gradients:
        for batch in (None, *gradients.join([torch.ones(4), torch.ones(1)])):
            size = 1 if batch is None else len(batch)
            sum((it.abs() ** 1.5 * size).sum().double() for it in tensors).backward()
            found += [it.grad.resolve_conj().view(torch.uint8).clone() for it in tensors]
    return found


def test_gradients_have_the_bits_of_those_on_the_cpu(monkeypatch):
    """In buckets of many sizes, and by a divisor, 3/4, by which a product has other bits."""
    here = gradients_of_all_kinds(KINDS)
    monkeypatch.setenv(STAGED, "1")
    assert all(map(torch.equal, gradients_of_all_kinds(KINDS), here))


class Slow(Device):
    """A device whose copies come once the ranks have been tested a few times more."""

    is_remote = True

    def __init__(self, ranks):
        super().__init__(torch.device("cpu"))
        self._ranks = ranks

    def mirror(self, host, what):
        return SlowMirror(self._ranks.log, host)


class SlowMirror(Mirror):
    def __init__(self, log, host):
        super().__init__(host, host)
        self._log, self._from = log, 0

    def fetch(self, start, stop):
        self._from = len(self._log)
        return self

    def query(self):
        return self._log[self._from :].count("test") > 3

    def synchronize(self):
        self._log.append("arrived" if self.query() else "blocked")


def test_while_a_copy_is_awaited_the_sums_before_it_make_progress():
    """And none starts before it: all ranks have one order."""
    ranks = Ranks()
    buckets = Buckets([torch.zeros(4)] * 2, ranks, 1, Slow(ranks))
    buckets.arrive(1)
    assert "sum" not in ranks.log
    buckets.advance(waits=True)
    buckets.arrive(0)
    buckets.advance(waits=True)
    assert ranks.log == ["blocked", "sum", *["test"] * 5, "arrived", "sum", "test"]


def test_parts_of_a_problem_are_handed_over_while_backward_runs(monkeypatch):
    monkeypatch.setenv(STAGED, "1")
    module = nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(8)), nn.Linear(6, 3))
    problem, came = problem_of(module), []
    module[0].weight.register_hook(lambda gradient: came.append("the last gradient"))
    theta = problem.initial()
    out, spans = np.full_like(theta, np.nan), problem.gradient_spans()

    def ready(part):
        assert not np.isnan(spans[part].of(out)).any()
        came.append(part)

    for _ in range(2):
        came.clear()
        problem.loss_and_grad(theta, next(iter(problem.batches(0, 1, 0))), out, ready)
        assert [it for it in came if it != "the last gradient"] == list(range(18))
        assert 4 < came.index("the last gradient") < 17


# --- what cannot be -----------------------------------------------------------------------------


def test_two_devices_are_named():
    tensors = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, 3, device="meta"))]
    words = (
        r"^rank 0: parameter 0 \(2,\) is on cpu, and parameter 1 \(2, 3\) is on meta; expected all "
        r"on one device, as after module\.to\('cpu'\)$"
    )
    with pytest.raises(ConfigError, match=words):
        psrt.torch.Gradients(torch.optim.SGD(tensors, lr=0.1), Ranks())


def looped(module):
    with psrt.Trainer(psrt.TrainConfig(mode="serial", steps=1, lr=0.1), module) as trainer:
        trainer.epoch()


USES = {
    "gradients": lambda module: psrt.torch.Gradients(
        torch.optim.SGD(module.parameters(), lr=0.1), Ranks()
    ),
    "the parameters": lambda module: psrt.run(psrt.TrainConfig(steps=1), problem_of(module)),
    "the parameters ": looped,
}


@pytest.mark.parametrize("what", USES)
def test_a_full_device_is_one_line_with_rank_and_bytes(monkeypatch, what):
    monkeypatch.setenv(STAGED, "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    whole = torch.empty

    def empty(n, *shape, device=None, **more):
        if device is not None and n == 83:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return whole(n, *shape, device=device, **more)

    monkeypatch.setattr(torch, "empty", empty)
    words = f"^rank 2: cpu has no memory for {what.strip()}, 332 bytes; expected [^\n]*$"
    with pytest.raises(ConfigError, match=words):
        USES[what](plain())


def test_a_parameter_that_moves_is_refused():
    problem = problem_of(module := plain())
    torch.utils.swap_tensors(module[2].bias, nn.Parameter(torch.empty(3, device="meta")))
    with pytest.raises(ConfigError, match=r"parameter 2\.bias is on meta, expected cpu, where it"):
        problem.loss_and_grad(theta := problem.initial(), None, theta.copy())


# --- what a device has of its own ---------------------------------------------------------------


def test_the_draws_of_a_device_depend_on_the_key_and_its_own_are_not_affected():
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    found = []
    for key in (1, 2, 1):
        with drawn_from(0, key, generators=[generator]):
            found.append(torch.rand(4, generator=generator))
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    assert torch.equal(generator.get_state(), before)


def test_batches_are_moved_as_they_are_nested():
    Pair = namedtuple("Pair", "x y")
    batch = {"a": [torch.ones(2), "text"], "b": Pair(torch.ones(3), (torch.ones(1), 4))}
    found = moved(batch, "meta")
    assert isinstance(found["b"], Pair)
    tensors = [found["a"][0], found["b"].x, found["b"].y[0]]
    assert all(it.is_meta for it in tensors)
    assert (found["a"][1], found["b"].y[1]) == ("text", 4)


# --- CUDA, played -------------------------------------------------------------------------------


class Stream:
    def __init__(self, name, log):
        self.name, self._log = name, log

    def wait_stream(self, other):
        self._log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self._log.append(f"{self.name} waits for a copy on {event.on}")

    def synchronize(self):
        self._log.append(f"{self.name} is waited for")


class Played:
    """What psrt.torch.cuda uses of torch.cuda; ``log`` has the calls."""

    def __init__(self, monkeypatch, status=0):
        self.log, names = [], iter(["outward", "inward"])
        self.now, log = Stream("forward", self.log), self.log

        class Event:
            def record(self, stream):
                self.on = stream.name
                log.append(f"copied on {stream.name}")

            def query(self):
                return True

            def synchronize(self):
                log.append(f"a copy on {self.on} is waited for")

        class Runtime:
            class cudaError:  # noqa: N801 - CUDA's name
                success = 0

            def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802 - CUDA's name
                log.append(f"pinned {nbytes}")
                return status

            def cudaGetErrorString(self, status):  # noqa: N802 - CUDA's name
                return f"error {status}"

            def cudaHostUnregister(self, address):  # noqa: N802 - CUDA's name
                log.append("unpinned")
                return 0

        played = {
            "Stream": lambda device: Stream(next(names), self.log),
            "Event": Event,
            "current_stream": lambda device: self.now,
            "stream": lambda stream: nullcontext(),
            "device": lambda device: nullcontext(),
            "cudart": Runtime,
            "default_generators": [torch.Generator()],
        }
        for name, it in played.items():
            monkeypatch.setattr(torch.cuda, name, it)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        self.device = Cuda(torch.device("cpu", 0))
        self.device.device = torch.device("cpu")


def test_copies_wait_for_who_wrote_and_what_is_read_later_waits_for_them(monkeypatch):
    played = Played(monkeypatch)
    log, host = played.log, torch.zeros(10)
    mirror = played.device.mirror(host, "numbers")
    assert log == ["pinned 40"]
    log.clear()
    mirror.near.copy_(torch.arange(10.0))
    played.now = Stream("aside", log)
    mirror.wrote()
    played.now = Stream("forward", log)
    mirror.fetch(2, 5).synchronize()
    assert host.tolist() == [0, 0, 2, 3, 4, 0, 0, 0, 0, 0]
    assert sorted(log[:2]) == ["outward waits for aside", "outward waits for forward"]
    assert log[2:] == ["copied on outward", "a copy on outward is waited for"]
    log.clear()
    host[3] = 7
    mirror.give(2, 5)
    assert mirror.near[2:5].tolist() == [2, 7, 4]
    given = ["inward waits for forward", "copied on inward", "forward waits for a copy on inward"]
    assert log == given
    log.clear()
    mirror.fetch(0, 1)  # which overwrites what the last copy reads
    assert log[1] == "outward waits for a copy on inward"
    log.clear()
    mirror.settle()
    mirror.close()
    assert log[0] == "a copy on inward is waited for"
    assert log[1:] == ["outward is waited for", "inward is waited for", "unpinned"]
    del mirror
    assert log.count("unpinned") == 1


def test_what_cannot_be_pinned_is_copied_all_the_same_and_said_once(monkeypatch, capfd):
    played = Played(monkeypatch, status=2)
    monkeypatch.setattr("psrt.torch.cuda._said", [])
    for _ in range(2):
        host = played.device.memory(4, torch.float32)
        mirror = played.device.mirror(host, "numbers")
        mirror.near.fill_(3)
        mirror.fetch(0, 4).synchronize()
        assert host.tolist() == [3] * 4
        mirror.close()
    assert "unpinned" not in played.log
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("psrt: rank 0: memory of the host cannot be pinned, so copies from")
    assert said[0].endswith("error 2") or "pin_memory" in said[0]


@pytest.mark.parametrize("error", [None, KeyError])
def test_the_memory_of_sums_is_unpinned_at_the_end_of_gradients(monkeypatch, error):
    """The communicator frees it, whatever still refers to them."""
    played = Played(monkeypatch)
    monkeypatch.setattr("psrt.torch.replica.device_of", lambda named: played.device)
    tensors = [nn.Parameter(torch.ones(3, dtype=kind)) for kind in KINDS]
    gradients = psrt.torch.Gradients(torch.optim.SGD(tensors, lr=0.1), Ranks())
    with pytest.raises(error) if error else nullcontext(), gradients:
        sum(it.abs().sum() for it in tensors).backward()
        assert "unpinned" not in played.log
        if error:
            raise error
    assert played.log.count("unpinned") == 3  # of float32, float64 and complex64


def test_training_by_the_calls_of_cuda_is_training_on_the_cpu(monkeypatch):
    """Of gradients, of a problem and of a loop; the copies of what is played are made at once."""
    x, y = data()

    def trained():
        found = []
        module = plain()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with psrt.torch.Gradients(optimizer, Ranks(), bucket_bytes=64):
            loss(module, (x, y)).backward()
            found += [it.grad.clone() for it in module.parameters()]
        found.append(psrt.run(psrt.TrainConfig(steps=3, lr=0.1), problem_of(plain())).theta)
        module = plain()
        with psrt.Trainer(psrt.TrainConfig(mode="serial", steps=2, lr=0.1), module) as trainer:
            trainer.epoch()
            for _ in range(2):
                loss(module, (x, y)).backward()
                trainer.step(samples=len(x))
        return [*found, trainer.theta]

    expected = trained()
    played = Played(monkeypatch)
    for where in ("parameters", "replica"):
        monkeypatch.setattr(f"psrt.torch.{where}.device_of", lambda named: played.device)
    for one, other in zip(trained(), expected, strict=True):
        np.testing.assert_array_equal(one, other)
