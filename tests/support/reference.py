"""What a job must end with, in float64: psrt's equations once more, by hand.

An oracle of ``docs/modes.md``, ``docs/staleness.md`` and ``docs/gossip.md`` that has no code of
psrt's and knows of no message. It takes from psrt the data, the initial parameters and which
samples a worker has in which step. Where who came first decides, it takes from the history who that
was, and nothing else: which pushes made each version of a shard, which versions a worker read,
which two averaged when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: An array of float64, whose type numpy's operators would lose.
Vector = Any
Config = Mapping[str, Any]


class Batch(NamedTuple):
    """One step of one worker."""

    #: Epochs before it, a part of one included.
    progress: float
    x: NDArray[Any]
    labels: NDArray[Any]

    @property
    def samples(self) -> int:
        return len(self.x)


def _gelu(z: Vector) -> tuple[Vector, Vector]:
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    tanh = np.tanh(root * (z + cubic * z**3))
    slope = 0.5 * (1 + tanh) + 0.5 * z * (1 - tanh**2) * root * (1 + 3 * cubic * z**2)
    return 0.5 * z * (1 + tanh), slope


#: By name: sums → values and slopes.
ACTIVATIONS: Mapping[str, Callable[[Vector], tuple[Vector, Vector]]] = {
    "relu": lambda z: (np.maximum(z, 0), (z > 0).astype(float)),
    "tanh": lambda z: (np.tanh(z), 1 - np.tanh(z) ** 2),
    "gelu": _gelu,
}


class Network:
    """Dense layers h = f(h W + b), the weight (inputs, outputs) before the bias in θ."""

    def __init__(self, config: Config, inputs: int, outputs: int) -> None:
        self.config = config
        widths = [inputs, *config["hidden"], outputs]
        self.shapes = [*pairwise(widths)]
        ends = np.cumsum([a * b + b for a, b in self.shapes])
        #: Start and stop of each layer in θ, and of each weight and bias.
        self.layers = [*pairwise((0, *ends))]
        self.tensors = [
            it
            for (start, stop), (_, b) in zip(self.layers, self.shapes, strict=True)
            for it in ((start, stop - b), (stop - b, stop))
        ]

    def forward(self, theta: Vector, x: Vector) -> tuple[Vector, list[tuple[Vector, ...]]]:
        """Return the outputs, and by layer its inputs, its weight and the slopes at its sums."""
        activation = ACTIVATIONS[self.config["activation"]]
        h, kept = x.astype(float), []
        for k, ((start, stop), (a, b)) in enumerate(zip(self.layers, self.shapes, strict=True)):
            weight, bias = theta[start : start + a * b].reshape(a, b), theta[start + a * b : stop]
            z = h @ weight + bias
            values, slopes = activation(z) if k + 1 < len(self.layers) else (z, np.ones_like(z))
            kept.append((h, weight, slopes))
            h = values
        return h, kept

    def loss(self, outputs: Vector, y: NDArray[Any]) -> tuple[float, Vector]:
        """Return the mean loss, and its gradient by the outputs; ``y`` is labels, or targets."""
        targets = np.eye(outputs.shape[1])[y] if y.ndim == 1 else y
        if self.config["loss"] == "squared":
            errors = outputs - targets
            return float(0.5 * (errors**2).sum(axis=1).mean()), errors / len(y)
        top = outputs - outputs.max(axis=1, keepdims=True)
        logs = top - np.log(np.exp(top).sum(axis=1, keepdims=True))
        return float(-(targets * logs).sum(axis=1).mean()), (np.exp(logs) - targets) / len(y)

    def evaluate(self, theta: Vector, x: Vector, labels: NDArray[Any]) -> tuple[float, float]:
        """Return the mean loss, and the share of labels that are right."""
        outputs, _ = self.forward(theta, x)
        return self.loss(outputs, labels)[0], float((outputs.argmax(axis=1) == labels).mean())

    def gradient(self, theta: Vector, batch: Batch) -> Vector:
        """Return the gradient of the mean loss of a batch, clipped as the job asks."""
        outputs, kept = self.forward(theta, batch.x)
        _, delta = self.loss(outputs, batch.labels)
        parts: list[Vector] = []
        for below, weight, slopes in reversed(kept):
            delta = delta * slopes
            parts[:0] = [(below.T @ delta).ravel(), delta.sum(axis=0)]
            delta = delta @ weight.T
        found = np.concatenate(parts)
        limit, norm = self.config["clip_norm"], np.linalg.norm(found)
        return found * (limit / norm) if limit is not None and norm > limit else found


def rate_of(config: Config, progress: float) -> float:
    """Return η, which warms up and then stays or follows a cosine."""
    peak, warm = float(config["lr"]), float(config.get("warmup", 0.0))
    if progress < warm:
        return peak * progress / warm
    if config["schedule"] == "cosine":
        done = min(1.0, (progress - warm) / (config["epochs"] - warm))
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    assert config["schedule"] == "constant", config["schedule"]
    return peak


def _or(value: Any, otherwise: float) -> float:
    return otherwise if value is None else value


class Optimizer:
    """One step from θ along a gradient; what it keeps is of one vector."""

    def __init__(self, config: Config) -> None:
        self.name, self.config = config["optimizer"], config
        self.first: Any = 0.0
        self.second: Any = 0.0
        self.count = 0

    def __call__(self, theta: Vector, gradient: Vector, progress: float) -> Vector:
        config, name, lr = self.config, self.name, rate_of(self.config, progress)
        decay = config["weight_decay"] or 0.0
        decoupled = name in ("adamw", "sign-sgd")
        g = gradient if decoupled else gradient + decay * theta
        self.count += 1
        if name == "sgd":
            step = g
        elif name == "sign-sgd":
            step = np.sign(g)
        elif name in ("momentum", "nesterov"):
            momentum = config.get("momentum", 0.9)
            self.first = momentum * self.first + g
            step = g + momentum * self.first if name == "nesterov" else self.first
        elif name == "adagrad":
            self.second = self.second + g**2
            step = g / (np.sqrt(self.second) + config.get("epsilon", 1e-8))
        else:
            assert name in ("adam", "adamw"), name
            one, two = config.get("beta1", 0.9), config.get("beta2", 0.999)
            self.first = one * self.first + (1 - one) * g
            self.second = two * self.second + (1 - two) * g**2
            mean, square = self.first / (1 - one**self.count), self.second / (1 - two**self.count)
            step = mean / (np.sqrt(square) + config.get("epsilon", 1e-8))
        return theta - lr * step - (lr * decay * theta if decoupled else 0.0)


class Outer:
    """θ_old and the mean → θ: the mean itself, or a step along θ_old − mean, with momentum or not.

    Momentum that is delayed is of the mean of N updates, once in N.
    """

    def __init__(self, config: Config) -> None:
        self.name, self.period = config.get("outer"), config.get("outer_period", 8)
        self.momentum = _or(config.get("outer_momentum"), 0.9)
        self.lr = _or(config.get("outer_lr"), 0.7 if self.name and self.name != "plain" else 1.0)
        self.velocity: Any = 0.0
        self.total: Any = 0.0
        self.count = 0

    def __call__(self, old: Vector, delta: Vector) -> Vector:
        lr, momentum = self.lr, self.momentum
        if self.name in (None, "plain"):
            return old - lr * delta
        if self.name == "nesterov":
            self.velocity = momentum * self.velocity + delta
            return old - lr * (delta + momentum * self.velocity)
        assert self.name == "delayed-nesterov", self.name
        self.count += 1
        self.total = self.total + delta / self.period
        old = old - lr * delta / self.period
        if self.count % self.period:
            return old
        self.velocity, self.total = momentum * self.velocity + self.total, 0.0
        return old - lr * momentum * self.velocity


def merge_of(
    name: str, x: Vector, weights: Any, spans: Sequence[tuple[int, int]], *, trim: int = 1
) -> Vector:
    """Return one vector of several; the weights add up to 1, or less where staleness scales.

    Args:
        name: of the merge.
        x: (learners, n).
        weights: of each.
        spans: of the tensors.
        trim: how many are left out at either end.
    """
    w = np.array(weights, float)
    if name == "mean":
        return w @ x
    if name == "radial":
        found = np.empty(x.shape[1])
        for a, b in spans:
            lengths = np.sqrt((x[:, a:b] ** 2).sum(1))
            unit = np.zeros_like(x[:, a:b])
            unit[lengths > 0] = x[lengths > 0, a:b] / lengths[lengths > 0, None]
            mean = w @ unit / w.sum()
            length = np.sqrt((mean**2).sum())
            found[a:b] = w @ x[:, a:b] if length < 1e-6 else w @ lengths * mean / length
        return found
    x = np.sort(x * w[:, None] * len(w), axis=0)
    if name == "median":
        return np.median(x, axis=0)
    assert name == "trimmed", name
    while 2 * trim >= len(x):
        trim -= 1
    return x[trim : len(x) - trim].mean(0)


class StalenessRule:
    """r(τ)·G of one shard, and what it learns of updates."""

    def __init__(self, config: Config) -> None:
        self.name, self.config = config["staleness_rate"], config
        self.taus: list[int] = []
        self.square: Any = 0.0
        self.updates = 0

    def __call__(self, g: Vector, tau: int, now: Vector, read: Vector) -> Vector:
        config, name = self.config, self.name
        self.taus.append(tau)
        if name in ("constant", None):
            return g
        if name == "inverse":
            return g / max(tau, 1)
        if name == "mean-inverse":
            return g / max(1.0, float(np.mean(self.taus[-32:])))
        if name == "power":
            return g * (1 + tau) ** -config.get("power", 0.5)
        if name == "exponential":
            return g * math.exp(-config.get("decay", 0.2) * tau)
        if name == "drop":
            assert tau <= config["limit"], "it is dropped before"
            return g
        if name == "delay-compensated":
            return g + config.get("strength", 0.04) * g * g * (now - read)
        assert name == "gap-aware", name
        if not self.updates:
            return g
        step = np.sqrt(self.square / (1 - 0.999**self.updates)) + 1e-8
        return g / (1 + np.abs(now - read) / (config["lr"] * step))

    def learn(self, before: Vector, after: Vector, lr: float) -> None:
        """See the step of an update; of one with hardly any rate it would see the rounding."""
        if lr >= 1e-3 * self.config["lr"]:
            self.updates += 1
            self.square = 0.999 * self.square + 0.001 * ((before - after) / lr) ** 2


def edges_of(name: str, p: int, at: int) -> NDArray[np.bool_]:
    """Return who sends to whom in a round: row i has those that node i hears."""
    found = np.zeros((p, p), bool)
    for i in range(p):
        if name == "ring":
            found[[(i + 1) % p, (i - 1) % p], i] = True
        elif name == "star":
            found[i, 0] = found[0, i] = True
        elif name == "full":
            found[:, i] = True
        elif name == "exponential":
            found[[(i + 2**k) % p for k in range(p) if 2**k < p], i] = True
        elif name == "one-peer-exponential":
            found[(i + 2 ** (at % max(1, math.ceil(math.log2(p))))) % p, i] = True
        elif name == "hypercube":
            found[[i ^ 2**k for k in range(p) if 2**k < p], i] = True
        else:
            assert (name, p) == ("torus", 4), (name, p)  # 2 × 2
            found[[i ^ 1, i ^ 2], i] = True
    np.fill_diagonal(found, False)
    return found


def weights_of(edges: NDArray[np.bool_], ranks: Sequence[int]) -> Vector:
    """Return the weights M on a graph: of Metropolis and Hastings, or, one way, all alike.

    Args:
        edges: as of ``edges_of``.
        ranks: of each node.
    """
    degree, n = edges.sum(axis=1), np.array(ranks)
    found = edges / (1.0 + degree[:, None])
    if (edges == edges.T).all():
        found = edges * np.minimum(found, n[None, :] / n[:, None] / (1.0 + degree[None, :]))
    return found + np.diag(1 - found.sum(axis=1))


def named(config: Config) -> tuple[Config, Config]:
    """Return a config with the names of rows, their knobs beside them; and the codec's knobs."""
    found, its = dict(config), dict[str, Any]()
    for row in ("optimizer", "staleness_rate", "schedule", "mode", "codec"):
        name, _, given = (config[row] or "").partition(":")
        its = {
            knob.replace("-", "_").replace(".", "_"): _value(it)
            for knob, _, it in (word.partition("=") for word in given.split(",") if word)
        }
        found |= {row: name or None} | ({} if row == "codec" else its)
    return found, its


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def _signs(vector: Vector, knobs: Config) -> Vector:
    buckets = [vector[i : i + knobs["bucket"]] for i in range(0, vector.size, knobs["bucket"])]
    return np.concatenate([np.where(it < 0, -1.0, 1.0) * np.abs(it).mean() for it in buckets])


def _largest(vector: Vector, knobs: Config) -> Vector:
    first = np.argsort(-np.abs(vector), kind="stable")[: math.ceil(knobs["density"] * vector.size)]
    found = np.zeros_like(vector)
    found[first] = vector[first]
    return found


#: By the name of a codec that keeps back what it does not send: what its frames decode to.
CODECS: Mapping[str, Callable[[Vector, Config], Vector]] = {
    "sign": _signs,
    "top-k": _largest,
    "threshold": lambda vector, knobs: np.where(np.abs(vector) < knobs["threshold"], 0, vector),
}


@dataclass
class Reference:
    """A job, and what it is made of."""

    #: Resolved.
    config: Config
    network: Network
    start: Vector
    #: By worker, the batches of its steps.
    batches: Sequence[Sequence[Batch]]
    #: By host, the workers on it; of ``by_host``.
    hosts: Sequence[Sequence[int]] = ()
    #: Whether a worker may have died on the way.
    is_bereft: bool = False
    #: By worker and by shard, the events; for modes where who comes first decides.
    workers: Sequence[NDArray[Any]] = ()
    shards: Sequence[NDArray[Any]] = ()
    spans: Sequence[tuple[int, int]] = ()
    #: Of a codec that keeps something back.
    knobs: Config = field(default_factory=dict)
    _gradients: dict[tuple[int, int], Vector] = field(default_factory=dict)
    #: By worker, clock and shard, what is decoded; by worker and shard, what is kept back.
    _sent: dict[tuple[int, int, int], Vector] = field(default_factory=dict)
    _kept: dict[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """W."""
        return len(self.batches)

    def end(self) -> Vector:
        """Return the parameters at the end."""
        config, mode = self.config, self.config["mode"]
        if mode in ("async", "ssp", "softsync") or config.get("backup"):
            return self.served()
        if mode == "sync" and (self.is_bereft or config["codec"] in CODECS):
            return self.served()
        if mode in ("serial", "sync", "allreduce"):
            return self.summed()
        if mode == "local-sgd" and (config.get("quorum") or (config.get("learner_ranks") or 1) > 1):
            return self.merged()
        if mode == "local-sgd":
            return self.eager() if config["eager"] else self.averaged()
        if mode == "easgd":
            return self.drawn() if config["asynchronous"] else self.elastic()
        assert mode == "gossip", f"this oracle does not know {mode}"
        return self.in_pairs() if config["variant"] == "pairs" else self.mixed()

    def rows(self) -> Iterator[list[Batch]]:
        """Yield the batch of each worker, step by step: all take as many."""
        return map(list, zip(*self.batches, strict=True))

    def local(self) -> list[Callable[[Vector, Batch], Vector]]:
        """Return what takes a worker's own step, by worker."""

        def of_one() -> Callable[[Vector, Batch], Vector]:
            optimizer = Optimizer(self.config)

            def step(theta: Vector, batch: Batch) -> Vector:
                if not batch.samples:
                    return theta
                return optimizer(theta, self.network.gradient(theta, batch), batch.progress)

            return step

        return [of_one() for _ in range(self.size)]

    def summed(self) -> Vector:
        """θ ← opt(θ, Σ m_i G_i / Σ m_i)."""
        theta, optimizer = self.start, Optimizer(self.config)
        for row in self.rows():
            if total := sum(it.samples for it in row):
                terms = [it.samples * self.network.gradient(theta, it) for it in row if it.samples]
                theta = optimizer(theta, np.sum(terms, axis=0) / total, row[0].progress)
        return theta

    def averaged(self) -> Vector:
        """Local steps, then means; in fragments that may arrive late."""
        config, layers = self.config, self.network.layers
        period, count = config["local_steps"], config["fragments"] or 1
        delay = config["sync_delay"] or 0
        mixing = _or(config.get("mixing"), 0.5) if config["fragments"] or delay else 0.0
        parts = [np.arange(self.start.size)]
        if count > 1:
            assert config["fragment_order"] == "strided"
            deal = [layers[f::count] for f in range(count)]
            parts = [np.concatenate([np.arange(*it) for it in mine]) for mine in deal]
        base, x, steps = self.start.copy(), [self.start.copy() for _ in self.batches], self.local()
        outer = [Outer(config) for _ in parts]
        samples, since = np.zeros((count, self.size)), [0] * count
        flights: list[tuple[int, list[Vector], Vector]] = []
        sent = of_period = 0

        def send() -> None:
            nonlocal sent
            f = sent % count
            flights.append((f, [it[parts[f]].copy() for it in x], samples[f].copy()))
            samples[f], since[f] = 0, 0
            sent += 1

        def arrive() -> None:
            f, vectors, weights = flights.pop(0)
            if not weights.any():
                return
            at, mean = parts[f], np.average(vectors, axis=0, weights=weights)
            base[at] = outer[f](base[at], base[at] - mean)
            keep = mixing if since[f] else 0.0
            for it in x:
                it[at] = keep * it[at] + (1 - keep) * base[at]

        for row in self.rows():
            x = [step(it, batch) for step, it, batch in zip(steps, x, row, strict=True)]
            x = [it.copy() for it in x]
            samples += [it.samples for it in row]
            since = [it + 1 for it in since]
            if row[0].progress < (config["post_local_epoch"] or 0):
                for _ in parts:
                    send()
                    arrive()
                of_period = 0
                continue
            of_period += 1
            while flights and since[flights[0][0]] >= delay:
                arrive()
            # Fragment f after the step ⌈(f + 1)·H/F⌉ of a period.
            if of_period in [math.ceil((f + 1) * period / count) for f in range(count)]:
                send()
                if not delay:
                    arrive()
            of_period %= period
        while flights:
            arrive()
        for _ in parts:
            if since[sent % count]:
                send()
        while flights:
            arrive()
        return x[0]

    def eager(self) -> Vector:
        """The own part of a mean at once, the others' a period later."""
        config, period = self.config, self.config["local_steps"]
        assert (config["fragments"] or 1) == 1
        assert not config["post_local_epoch"]
        x, steps = [self.start] * self.size, self.local()
        base, outer = [self.start] * self.size, [Outer(config) for _ in self.batches]
        rest, share = [np.zeros_like(self.start)] * self.size, 1 / self.size
        samples, own, mean = np.zeros(self.size), None, None
        rows = [*self.rows()]
        for t, row in enumerate(rows):
            x = [step(it, batch) for step, it, batch in zip(steps, x, row, strict=True)]
            samples += [it.samples for it in row]
            if (t + 1) % period and t + 1 < len(rows):
                continue
            if own is not None:
                rest = [mean - it for it in own]
            deltas = [b - it for b, it in zip(base, x, strict=True)]
            own, mean = [share * it for it in deltas], np.average(deltas, axis=0, weights=samples)
            base = x = [
                step(b, mine + others)
                for step, b, mine, others in zip(outer, base, own, rest, strict=True)
            ]
            samples[:] = 0
        if self.size == 1:
            return x[0]
        assert own is not None
        ends = [step(b, mean - mine) for step, b, mine in zip(outer, base, own, strict=True)]
        return np.mean(ends, axis=0)

    def elastic(self) -> Vector:
        """Workers and a centre draw each other every H steps, all at once."""
        alpha, period = self.config["elastic"] / self.size, self.config["local_steps"]
        centre, x, steps = self.start, [self.start] * self.size, self.local()
        samples, rows = np.zeros(self.size), [*self.rows()]
        for t, row in enumerate(rows):
            x = [step(it, batch) for step, it, batch in zip(steps, x, row, strict=True)]
            samples += [it.samples for it in row]
            if (t + 1) % period and t + 1 < len(rows):
                continue
            forces = [alpha * (it - centre) * (m > 0) for it, m in zip(x, samples, strict=True)]
            x = [it - force for it, force in zip(x, forces, strict=True)]
            centre = centre + np.sum(forces, axis=0)
            samples[:] = 0
        return centre

    def matrix(self, at: int) -> Vector:
        """Return the weights M of a round; row i is what worker i weighs the others by."""
        name = self.config["topology"]
        if self.config["variant"] == "by-host":
            hosts = [np.array(it) for it in self.hosts]
            own = weights_of(edges_of(name, len(hosts), at), [len(it) for it in hosts])
            found = np.zeros((self.size, self.size))
            for a, rows in enumerate(hosts):
                for b, columns in enumerate(hosts):
                    found[np.ix_(rows, columns)] = own[a, b] / len(columns)
            return found
        return weights_of(edges_of(name, self.size, at), [1] * self.size)

    def mixed(self) -> Vector:
        """Gossip in rounds; the mean of all at the end."""
        config, network = self.config, self.network
        adapts_first = config["order"] == "adapt-then-combine"
        x, w = np.stack([self.start] * self.size), np.ones((self.size, 1))
        optimizers = [Optimizer(config) for _ in self.batches]
        tracked, before = np.zeros_like(x), np.zeros_like(x)
        for at, row in enumerate(self.rows()):
            matrix = self.matrix(at)
            theta = x / w
            gradients = [
                network.gradient(it, batch) if batch.samples else g
                for it, batch, g in zip(theta, row, before, strict=True)
            ]
            if not adapts_first:
                x, tracked, w = matrix @ x, matrix @ tracked, matrix @ w
            tracked = tracked + gradients - before
            along = tracked if config["variant"] == "gradient-tracking" else gradients
            x = np.stack([
                step(it, g, batch.progress) if batch.samples else it
                for step, it, g, batch in zip(optimizers, x, along, row, strict=True)
            ])  # fmt: skip
            before = np.array(gradients)
            if adapts_first:
                x, tracked, w = matrix @ x, matrix @ tracked, matrix @ w
        return x.sum(axis=0) / w.sum()

    def in_pairs(self) -> Vector:
        """Two average whenever one finds what the other offers.

        Both move by half of what the two vectors that they sent differ by.
        """
        step_, leave, offer, take, mixed = 3, 6, 13, 14, 15
        x, steps = [self.start] * self.size, self.local()
        sent: dict[tuple[int, int, int], Vector] = {}
        queues = [[it for it in own if it["kind"] in (step_, offer, take, mixed)]
                  for own in self.workers]  # fmt: skip
        number = [0] * self.size
        while any(queues):
            moved = False
            for i, queue in enumerate(queues):
                while queue:
                    event = queue[0]
                    kind, j = int(event["kind"]), int(event["shard"])
                    if kind == step_:
                        x[i] = steps[i](x[i], self.batches[i][int(event["clock"])])
                    elif kind == offer:
                        sent[i, j, int(event["version"]) & 0xFFFFFFFF] = x[i]
                    elif kind == take:
                        number[i] = int(event["version"]) & 0xFFFFFFFF
                    elif (j, i, number[i]) not in sent:
                        break  # the other one is behind
                    else:
                        x[i] = x[i] + 0.5 * (sent[j, i, number[i]] - sent[i, j, number[i]])
                    queue.pop(0)
                    moved = True
            assert moved, "who averaged with whom is no order"
        here = [it for it, own in zip(x, self.workers, strict=True) if (own["kind"] == leave).any()]
        return np.mean(here, axis=0)  # whoever has died has not said how it ended

    def _updates(self) -> list[list[list[tuple[int, int]]]]:
        """Return by shard and version the pushes, (worker, clock), that made it, in their order."""
        found = []
        for events in self.shards:
            applied = events[events["kind"] == 18]
            versions = range(1, int(applied["version"].max(initial=0)) + 1)
            found.append([
                [(int(it["worker"]), int(it["clock"])) for it in applied[applied["version"] == v]
                 if it["samples"] > 0]
                for v in versions
            ])  # fmt: skip
        return found

    def _reads(self) -> dict[tuple[int, int, int], int]:
        """Return by worker, clock and shard the version that was computed with."""
        return {
            (i, int(it["clock"]), int(it["shard"])): int(it["version"])
            for i, events in enumerate(self.workers)
            for it in events[events["kind"] == 1]  # whoever reads once more has the last
        }

    def served(self) -> Vector:
        """Each version of a shard, as soon as what it is made of is known."""
        config, updates, reads = self.config, self._updates(), self._reads()
        held = [[self.start[slice(*it)]] for it in self.spans]  # by shard and version
        optimizers = [Optimizer(config) for _ in self.spans]
        rules = [StalenessRule(config) for _ in self.spans]
        by_samples, code = config["mode"] == "sync", CODECS.get(config["codec"])

        def ready(worker: int, clock: int) -> bool:
            return all(reads[worker, clock, s] < len(versions) for s, versions in enumerate(held))

        def gradient(worker: int, clock: int) -> Vector:
            if (worker, clock) not in self._gradients:
                theta = [versions[reads[worker, clock, s]] for s, versions in enumerate(held)]
                self._gradients[worker, clock] = self.network.gradient(
                    np.concatenate(theta), self.batches[worker][clock]
                )
            return self._gradients[worker, clock]

        def pushed(worker: int, clock: int, s: int) -> Vector:
            """Return a shard's gradient as it is decoded: frames before it have left something."""
            if code is None:
                return gradient(worker, clock)[slice(*self.spans[s])]
            pushes = self.workers[worker][self.workers[worker]["kind"] == 2]
            for c in pushes["clock"][(pushes["shard"] == s) & (pushes["samples"] > 0)]:
                if c <= clock and (worker, int(c), s) not in self._sent:
                    whole = gradient(worker, int(c))[slice(*self.spans[s])] + 0.0  # −0 is 0
                    whole = whole + self._kept.get((worker, s), 0.0)
                    sent = self._sent[worker, int(c), s] = code(whole, self.knobs)
                    self._kept[worker, s] = whole - sent
            return self._sent[worker, clock, s]

        def make(s: int, pushes: Sequence[tuple[int, int]]) -> Vector:
            now, version = held[s][-1], len(held[s]) - 1
            if not pushes:
                return now
            terms = [
                rules[s](
                    pushed(*it, s),
                    version - reads[*it, s],
                    now,
                    held[s][reads[*it, s]],
                )
                for it in pushes
            ]
            of_pushes = [self.batches[i][c] for i, c in pushes]
            weights = [it.samples if by_samples else 1 for it in of_pushes]
            mean = np.average(terms, axis=0, weights=weights)
            progress = float(np.mean([it.progress for it in of_pushes]))
            after = optimizers[s](now, mean, progress)
            rules[s].learn(now, after, rate_of(config, progress))
            return after

        while True:
            moved = False
            for s, due in enumerate(updates):
                while len(held[s]) <= len(due) and all(ready(*it) for it in due[len(held[s]) - 1]):
                    held[s].append(make(s, due[len(held[s]) - 1]))
                    moved = True
            if not moved:
                break
        for versions, due in zip(held, updates, strict=True):
            assert len(versions) == len(due) + 1, "it was made of what is to come"
        return np.concatenate([versions[-1] for versions in held])

    def parts(self) -> list[list[int]]:
        """Return by fragment the shards of its layers."""
        count = self.config["fragments"] or 1
        starts = [{a for a, _ in self.network.layers[f::count]} for f in range(count)]
        layer = [max(a for a, _ in self.network.layers if a <= start) for start, _ in self.spans]
        return [
            [s for s, a in enumerate(layer) if count == 1 or a in starts[f]] for f in range(count)
        ]

    def merged(self) -> Vector:
        """What servers make of what learners bring, Σ w r(τ) Δ / Σ w for each merge."""
        config, updates, reads, parts = self.config, self._updates(), self._reads(), self.parts()
        count, period, delay = len(parts), config["local_steps"], config["sync_delay"] or 0
        mixing = _or(config.get("mixing"), 0.5) if delay else 0.0
        ranks = config.get("learner_ranks") or 1
        held = [[self.start[slice(*it)]] for it in self.spans]  # by shard and version
        outer = [Outer(config) for _ in self.spans]
        rules = [StalenessRule({**config, "lr": it.lr}) for it in outer]
        #: By worker, clock and fragment: what it has learnt, its samples and steps.
        learnt: dict[tuple[int, int, int], tuple[Vector, int, int]] = {}

        def learner(i: int) -> Iterator[None]:
            """Train; yield as long as a version that is needed is not made."""
            step, x, base = Optimizer(config), self.start.copy(), self.start.copy()
            clock, since, samples = [0] * count, [0] * count, [0] * count
            turn, flight = 0, -1

            def push() -> None:
                nonlocal turn, flight
                flight = turn % count
                learnt[i, clock[flight], flight] = base - x, samples[flight], since[flight]
                clock[flight] += 1
                since[flight] = samples[flight] = 0
                turn += 1

            def adopt() -> Iterator[None]:
                nonlocal flight
                f, flight = flight, -1
                for s in parts[f]:
                    version = reads.get((i, clock[f], s), math.inf)  # of the dead, never
                    while version >= len(held[s]):
                        yield
                    at, new = slice(*self.spans[s]), held[s][int(version)]
                    keep = mixing if since[f] else 0.0
                    x[at], base[at] = keep * x[at] + (1 - keep) * new, new

            for at, row in enumerate(zip(*self.batches[i : i + ranks], strict=True)):
                taken = sum(it.samples for it in row)
                if taken:  # the mean over the samples of all ranks of a learner
                    terms = [it.samples * self.network.gradient(x, it) for it in row if it.samples]
                    x = step(x, np.sum(terms, axis=0) / taken, row[0].progress).copy()
                since = [it + 1 for it in since]
                samples = [it + taken for it in samples]
                if flight >= 0 and since[flight] >= delay:
                    yield from adopt()
                # Fragment f after the step ⌈(f + 1)·H/F⌉ of a period.
                due = [math.ceil((f + 1) * period / count) for f in range(count)]
                if at % period + 1 in due:
                    if flight >= 0:
                        yield from adopt()
                    push()
                    if not delay:
                        yield from adopt()
            if flight >= 0:
                yield from adopt()
            for _ in parts:
                if since[turn % count]:
                    push()
                    yield from adopt()
                else:
                    turn += 1

        def weight(m: int, steps: int) -> float:
            by = config.get("merge_weights", "samples")
            if config.get("merge") in ("median", "trimmed"):
                return 1.0
            return {"samples": m, "equal": 1.0, "quality": m * m / steps}[by]

        def make(s: int, f: int, pushes: Sequence[tuple[int, int]]) -> Vector:
            now, version = held[s][-1], len(held[s]) - 1
            if not pushes:
                return now
            found, terms = [learnt[i, c, f] for i, c in pushes], []
            weights, factors = list[float](), list[float]()
            for (i, c), (delta, m, steps) in zip(pushes, found, strict=True):
                read = reads[i, c, s]
                delta = delta[slice(*self.spans[s])]
                term = rules[s](delta, version - read, now, held[s][read])
                # A factor of all elements is that of a weight, which adds up as if there were none.
                is_factor = config["staleness_rate"] not in ("delay-compensated", "gap-aware")
                moved = np.linalg.norm(delta) if is_factor else 0.0
                factors.append(float(np.linalg.norm(term) / moved) if moved else 1.0)
                terms.append(term / factors[-1])
                weights.append(weight(m, steps))
            start, stop = self.spans[s]
            tensors = [
                (max(a, start) - start, min(b, stop) - start)
                for a, b in self.network.tensors
                if a < stop and b > start
            ]
            shares = np.array(weights) / sum(weights) * factors
            of = config.get("merge", "mean"), np.array(terms), shares
            after = outer[s](now, merge_of(*of, tensors, trim=config.get("merge_trim", 1)))
            rules[s].learn(now, after, outer[s].lr)
            return after

        learners = [learner(i) for i in range(0, self.size, ranks)]
        moved = True
        while moved:
            before = len(learnt), sum(map(len, held))
            for it in learners:
                next(it, None)
            for f, shards in enumerate(parts):
                for s in shards:
                    while len(held[s]) <= len(updates[s]) and all(
                        (*it, f) in learnt for it in updates[s][len(held[s]) - 1]
                    ):
                        held[s].append(make(s, f, updates[s][len(held[s]) - 1]))
            moved = (len(learnt), sum(map(len, held))) != before
        for versions, due in zip(held, updates, strict=True):
            assert len(versions) == len(due) + 1, "it was made of what is to come"
        return np.concatenate([versions[-1] for versions in held])

    def drawn(self) -> Vector:
        """Each worker and a shard of the centre draw each other whenever that worker comes."""
        alpha, period = self.config["elastic"] / self.size, self.config["local_steps"]
        held = [self.start[slice(*it)] for it in self.spans]
        queues = [[push[0][0] for push in versions if push] for versions in self._updates()]
        x, steps = [self.start] * self.size, self.local()
        left = [list(it) for it in self.batches]
        #: By worker, the shards of this average that it has not been drawn to.
        due: list[set[int]] = [set() for _ in self.batches]

        def go_on(i: int) -> None:
            """Take the steps up to the next average with samples."""
            samples = 0
            while left[i] and not samples:
                period_, left[i] = left[i][:period], left[i][period:]
                for batch in period_:
                    x[i] = steps[i](x[i], batch)
                samples = sum(it.samples for it in period_)
            x[i], due[i] = x[i].copy(), set(range(len(self.spans)))

        while any(queues):
            moved = False
            for s, queue in enumerate(queues):
                while queue:
                    i, span = queue[0], slice(*self.spans[s])
                    if not due[i]:
                        go_on(i)
                    if s not in due[i]:
                        break  # it comes here once more when it has been drawn elsewhere
                    force = alpha * (x[i][span] - held[s])
                    held[s] = held[s] + force
                    x[i][span] -= force
                    due[i].remove(s)
                    queue.pop(0)
                    moved = True
            assert moved, "who was drawn when is no order"
        return np.concatenate(held)
