"""Sums by a codec, of gradients and of local steps, in virtual time: numbers, bytes, time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

import psrt
from psrt.codec import CODECS
from psrt.codec.table import Demo, TopK
from psrt.config import TrainConfig
from psrt.core.partition import even_spans
from psrt.history import Kind, read_history
from psrt.history.check.run import check_run
from psrt.history.events import BACK
from psrt.job.virtual import simulate
from psrt.optim.table import OuterNesterov, Steps
from psrt.simulation import SimulationCosts
from support.cases import each, pairs
from support.histories import codec_knobs
from support.knobs import together

pytestmark = pytest.mark.rest_one_in(3)

#: The last batch of an epoch is smaller, so the divisor changes; several buckets of gradient.
SUMS = {
    "dataset": "synthetic:46x12x4", "hidden": (16,), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "mode": "allreduce:bucket-bytes=64", "check_every": 1,
}  # fmt: skip
#: Three layers.
LOCAL = {
    "dataset": "synthetic:70x12x4", "hidden": (16, 8), "batch_size": 4, "epochs": 2, "lr": 0.05,
    "mode": "local-sgd:local-steps=4",
}  # fmt: skip
KINDS = {
    "as a whole": {},
    "outer": {"outer": OuterNesterov(0.7)},
    "post-local": {"post_local_epoch": 1},
    "fragments": {"fragments": 2},
    "late": {"sync_delay": 2},
    "all at once": {
        "fragments": 3, "sync_delay": 4, "mixing": 0.3, "outer": "nesterov",
        "post_local_epoch": 1,
    },
    "eager": {"eager": True},
    "eager fragments": {"eager": True, "fragments": 3, "outer": OuterNesterov(0.7)},
    "means": {"fragments": 2, "codec_reply": "low-rank:rank=1"},
    "servers": {"servers": 2, "outer": OuterNesterov(0.7)},
    "replies": {"servers": 1, "codec_reply": "sign"},
}  # fmt: skip
#: Codecs of means in two phases.
MEANS = ["nonzero", "float16", "sign", "top-k:density=0.1", "int8", "random-k:density=0.1"]


def summed(codec=None, **more):
    """Return the config of gradients that are summed."""
    rule = {"optimizer": "sign-sgd"} if codec == "demo" else {}
    return TrainConfig(**together(SUMS | codec_knobs(codec) | rule | more))


def local(codec=None, kind="as a whole", **more):
    """Return the config of local steps, of a kind."""
    return TrainConfig(**together(LOCAL | KINDS[kind] | codec_knobs(codec) | more))


def recorded(config, out, workers=3, problem=None):
    """Run a config, check what it recorded, repeat it to the bit, and return the run."""
    config = replace(config, record=True, out=str(out))
    run = simulate(config, problem, workers=workers)
    outcome = check_run(out)
    assert outcome.ok, "\n".join(outcome.lines())
    again = replace(config, replay=config.out, out=None, record=False)
    again = simulate(again, problem, workers=workers, seed=99)
    assert again.summary.parameters_sha256 == run.summary.parameters_sha256
    assert np.isfinite(run.theta).all()
    return run


@pytest.mark.parametrize(("codec", "reply"), pairs(["sign", "top-k", "int8"], MEANS, one_in=9))
@pytest.mark.one_in(3)
def test_means_may_have_a_codec_of_their_own(tmp_path, codec, reply):
    run = recorded(summed(codec, codec_reply=reply), tmp_path / "run")
    assert run.summary.allreduce == "all-pairs"


@pytest.mark.parametrize(("codec", "kind"), pairs(CODECS, KINDS, one_in=6))
@pytest.mark.one_in(20)
def test_local_steps_are_averaged_checked_and_repeated(tmp_path, codec, kind):
    run = recorded(local(codec, kind), tmp_path / "run")
    assert 0 < run.summary.frame_bytes < run.summary.bytes_sent


# --- bytes by formula ----------------------------------------------------------------------------


@each("codec", ["bfloat16", "float4-e3m0", "int8", "qsgd", "ternary", "sign", "random-k"])
@each("way", ["all-pairs", "naive"])
def test_bytes_are_those_of_the_formula(codec, way):
    config = summed(codec, mode="allreduce:overlap=false", allreduce=way, epochs=None, steps=3)
    run = simulate(config, workers=3)
    sizes = [chunk.size for chunk in even_spans(run.theta.size, 3 if way == "all-pairs" else 1)]
    lengths = [config.codec.codec(size).nbytes for size in sizes]
    # Every frame goes to its owner, and every mean to all others; or three frames to two others.
    copies = 2 * 2 if way == "all-pairs" else 3 * 2
    assert run.summary.frame_bytes == run.summary.updates * copies * sum(lengths)


def test_a_mean_is_no_longer_than_all_contributions_or_the_numbers():
    """Bytes by formula: without numerics the union of all, and dense from where that is shorter."""
    n, workers = 4096, 4
    for density in (0.001, 0.01, 0.05, 0.2, 0.24, 0.25, 0.5, 1.0):
        config = summed("top-k", codec_reply="nonzero", epochs=None, steps=2)
        config = replace(config, codec=TopK(density), mode="allreduce:overlap=false")
        bare = simulate(config, workers=workers, numerics=False, parameters=n)
        k = -(-int(density * 1e6) * (n // workers) // 10**6)
        one = min(4 * n // workers, 4 * k + min(4 * k, n // workers // 8))
        mean = min(4 * n // workers, workers * one)
        a_round = workers * (workers - 1) * (2 * 20 + one + mean)
        assert bare.summary.frame_bytes == bare.summary.updates * a_round, density


@each("fragments", [1, 3])
def test_a_period_sends_the_frames_of_its_fragments(tmp_path, fragments):
    out = str(tmp_path / f"{fragments}")
    config = local("int8:bucket=64", "late", record=True, out=out, steps=24, epochs=None)
    run = simulate(replace(config, mode=replace(config.scheme, fragments=fragments)), workers=3)
    sizes = [[208, 136, 36][f::fragments] for f in range(fragments)]

    def frames(f):
        """As all ranks send them: two of each chunk go out, and its mean comes back to two."""
        chunks = [chunk.size for chunk in even_spans(sum(sizes[f]), 3)]
        return sum(2 * 2 * (20 + n + 4 * -(-n // 64)) for n in chunks)

    sent = defaultdict(int)
    for worker, events in enumerate(read_history(out).workers):
        for it in events[events["kind"] == Kind.SUM_ENCODE]:
            copies = 2 if it["flag"] == BACK else int(it["shard"] != worker)
            sent[int(it["clock"])] += copies * int(it["samples"])
    # Six periods of four steps, then what was not sent after the last step is once more.
    due = [frames(k % fragments) for k in range(7 * fragments - 1)]
    assert [sent[k] for k in sorted(sent)] == due
    assert run.summary.frame_bytes == sum(sent.values())
    mine = run.workers[0].strategy.plan.frames  # chunks differ by an element
    assert abs(3 * mine.frame_bytes - sum(map(frames, range(fragments)))) < 30
    assert abs(3 * mine.peak_bytes - max(map(frames, range(fragments)))) < 30


# --- what loses nothing is none ------------------------------------------------------------------


@each(
    ("way", "workers", "lossless"),
    [
        ("all-pairs", 3, {"codec": "top-k:density=1.0"}),
        ("ring", 3, {"codec": "random-k:density=1.0"}),
        ("tree", 3, {"codec": "low-rank:rank=7"}),
    ],
)
def test_all_elements_and_matrices_that_are_not_shorter_are_the_dense_sum_to_the_bit(
    way, workers, lossless
):
    dense, framed = (
        simulate(TrainConfig(**SUMS, allreduce=way, optimizer="adam", **more), workers=workers)
        for more in ({}, lossless)
    )
    assert framed.theta.tobytes() == dense.theta.tobytes()


@each("kind", ["as a whole", "all at once", "late", "eager fragments", "servers"])
def test_differences_that_lose_nothing_come_to_the_same_but_for_what_float32_rounds(kind):
    """Eager steps are along differences anyway: to the bit."""
    sums = {} if "server" in kind else {"allreduce": "all-pairs"}
    plain = simulate(local(None, kind, **sums), workers=3)
    coded = simulate(local("nonzero", kind), workers=3)
    most = 0 if "eager" in kind else 1e-6
    np.testing.assert_allclose(coded.theta, plain.theta, rtol=0, atol=most)
    assert coded.summary.frame_bytes > 0


@each("kind", ["outer", "all at once", "eager fragments"])
def test_one_worker_sends_nothing_and_loses_nothing(kind):
    plain, coded = (simulate(local(codec, kind), workers=1) for codec in (None, "sign"))
    assert coded.theta.tobytes() == plain.theta.tobytes()
    assert coded.summary.frame_bytes == 0


# --- who waits for whom --------------------------------------------------------------------------


def test_nobody_waits_for_weights_while_it_has_steps_to_make():
    """On links on which a sum takes about three steps, as with none."""
    slow = SimulationCosts(compute=lambda *_: 1e-3, latency=lambda _: 1e-3, per_byte=1e-6)
    more = {"late": {"sync_delay": 6}, "fragments": {"sync_delay": 8}}
    seconds = {}
    for kind in ("as a whole", "late", "eager", "fragments"):
        config = local("bfloat16", kind, steps=48, epochs=None, local_steps=8, **more.get(kind, {}))
        seconds[kind] = simulate(config, workers=3, costs=slow).seconds
    assert max(seconds[it] for it in seconds if it != "as a whole") < 0.9 * seconds["as a whole"]


# --- what a user sees ----------------------------------------------------------------------------


def test_the_first_lines_say_what_is_sent():
    def lines(**knobs):
        said = []
        simulate(summed(**knobs, epochs=None, steps=2), workers=3, say=said.append)
        return "\n".join(said)

    text = lines(codec="sign")
    assert "all-reduce: all-pairs, because others lose or send more" in text
    assert "codec: sign, with error feedback: a worker sends 240 B an update instead of" in text
    assert "which depends on the numbers" in lines(codec="top-k")


# --- decoupled momentum, against the published algorithm in float64 -------------------------------

#: A matrix of 10 × 9 behind 3 numbers, and 5 numbers behind it.
START, ROWS, COLUMNS, N = 3, 10, 9, 98
BETA, CHUNK, KEPT, STEPS = 0.9, 4, 3, 8
DEMO = {
    "mode": "allreduce", "optimizer": "demo", "codec": Demo(CHUNK, KEPT, BETA),
    "lr": 0.03, "epochs": 2, "schedule": Steps(1.0, 0.25),
    "batch_size": 4,
}  # fmt: skip


def drawn(worker, step):
    return np.random.default_rng((worker, step)).standard_normal(N).astype(np.float32)


class Drawn:
    """Gradients that are drawn; the last batch of an epoch is smaller at all but worker 0."""

    def initial(self):
        return np.zeros(N, np.float32)

    def matrices(self):
        return [(START, ROWS, COLUMNS)]

    def batches(self, worker, workers, epoch):
        first = epoch * STEPS // 2
        sizes = [4] * (STEPS // 2 - 1) + [4 if worker == 0 else 1]
        return [np.full(size, 100 * worker + first + i) for i, size in enumerate(sizes)]

    def loss_and_grad(self, theta, batch, out):
        out[:] = drawn(*divmod(int(batch[0]), 100))
        return 1.0

    def evaluate(self, theta):
        return {"loss": 0.0}


def transform(rows, columns):
    """Return the DCT-II of blocks as one matrix, entry by entry."""
    found = np.empty((rows * columns, rows * columns))
    for u, v in np.ndindex(rows, columns):
        for i, j in np.ndindex(rows, columns):
            found[u * columns + v, i * columns + j] = (
                np.sqrt((1 if u == 0 else 2) / rows * (1 if v == 0 else 2) / columns)
                * np.cos(np.pi * (i + 0.5) * u / rows)
                * np.cos(np.pi * (j + 0.5) * v / columns)
            )
    return found


def blocks():
    """Yield the indices and the transform of every chunk."""
    for start, rows, columns in ((0, 1, START), (START, ROWS, COLUMNS), (93, 1, 5)):
        place = np.arange(start, start + rows * columns).reshape(rows, columns)
        for top in range(0, rows, CHUNK):
            for left in range(0, columns, CHUNK):
                block = place[top : top + CHUNK, left : left + CHUNK]
                yield block.ravel(), transform(*block.shape)


def published(workers, kept, beta=BETA):
    """Return θ of the published algorithm, each worker's gradient by its share of the samples."""
    theta, chunks = np.zeros(N), list(blocks())
    momentum = np.zeros((workers, N))
    for step in range(STEPS):
        rate = 0.03 * (1 if step < STEPS // 2 else 0.25)
        small = step % (STEPS // 2) == STEPS // 2 - 1
        sizes = np.array([1 if small and worker else 4 for worker in range(workers)])
        total = np.zeros(N)
        for worker, share in enumerate(sizes / sizes.sum()):
            momentum[worker] = beta * momentum[worker] + rate * share * drawn(worker, step)
            for place, forth in chunks:
                values = forth @ momentum[worker][place]
                values[np.argsort(-np.abs(values))[kept:]] = 0
                sent = forth.T @ values
                momentum[worker][place] -= sent
                total[place] += sent
        theta -= rate * np.sign(total)
    return theta


@each(("workers", "kept"), [(1, 1), (2, KEPT), (5, 7)])
def test_it_is_the_published_algorithm(workers, kept):
    config = TrainConfig(**DEMO | {"codec": Demo(CHUNK, kept, BETA)})
    run = simulate(config, Drawn(), workers=workers)
    np.testing.assert_allclose(run.theta, published(workers, kept), atol=1e-6)


def test_one_worker_that_sends_all_is_signed_descent():
    """θ ← θ − η·sign(g), to the bit, with any momentum."""
    plain = {name: it for name, it in DEMO.items() if not name.startswith("codec")}
    whole, signed = (
        psrt.run(TrainConfig(**it), Drawn()).theta
        for it in (DEMO | {"codec": Demo(CHUNK, 16, BETA)}, plain | {"optimizer": "sign-sgd"})
    )
    assert whole.tobytes() == signed.tobytes()
