"""psrt plan: what it lists can be run, what it predicts follows from what was given."""

from __future__ import annotations

import json
import math
import re
import shlex

import pytest

from psrt.__main__ import main as psrt
from psrt.checkpoint.interval import daly_lost
from psrt.cli.flags import parse_train
from psrt.cli.plan import main
from psrt.config import MODES, from_toml, resolve
from psrt.core.errors import ConfigError
from psrt.planning.ranking import words_of
from support.pages import of_time

#: Parameters, and milliseconds of a gradient; bytes of gradient that are applied per second.
N, MS, RATE = 250_000, 20, 2e9
GIVEN = f"--parameters {N} --gradient-ms {MS}"
#: Seconds of a gradient, and of an update of all parameters.
T, U = MS / 1e3, 4 * N / RATE


def planned(tmp_path, capsys, flags):
    """Return what psrt plan writes and prints, and the TOML of its best row."""
    files = {name: tmp_path / f"plan.{name}" for name in ("json", "toml")}
    words = [*shlex.split(flags), "--json", str(files["json"]), "--out", str(files["toml"])]
    assert main(words) == 0
    found = json.loads(files["json"].read_text())
    return found, capsys.readouterr().out, files["toml"].read_text()


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan of everything for two workers on two hosts."""
    folder = tmp_path_factory.mktemp("plan")
    words = f"{GIVEN} --workers 2 --link 1e-5:1e9 --json {folder}/plan.json --hidden 7,8"
    assert psrt(["plan", *words.split()]) == 0
    return json.loads((folder / "plan.json").read_text())


def one(tmp_path, capsys, flags):
    """Return the only row of a plan."""
    found, _, _ = planned(tmp_path, capsys, flags)
    (row,) = found["rows"]
    return row


def test_every_row_can_be_run(plan):
    for row in plan["rows"]:
        words = shlex.split(row["command"])
        at = words.index("launch")
        assert words[at + 1 : at + 4] == ["-n", str(row["ranks"]), "--knobs"], row
        config = resolve(parse_train(shlex.split(words[at + 4])), ranks=row["ranks"])
        assert (config.servers or 0) == row["servers"] == row["ranks"] - row["workers"]
        assert (row["workers"], config.hidden) == (2, (7, 8))
        assert config.allreduce != "auto" or row["knobs"].get("codec") or config.scheme.shard


def test_rows_are_in_order_and_differ(plan):
    rows = plan["rows"]
    useful = [row["samples_per_s"] * (1 - row["dropped"]) for row in rows]
    assert useful == sorted(useful, reverse=True)
    assert [row["number"] for row in rows] == [*range(1, len(rows) + 1)]
    assert len({json.dumps(row["knobs"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["low"] <= row["samples_per_s"] <= row["high"]
        assert math.isclose(row["step_s"], 2 * 32 / row["samples_per_s"])


def test_all_modes_and_promises_are_compared(plan):
    several = {name for name in MODES.own if not MODES[name].single}
    found = {row["knobs"]["mode"].partition(":")[0] for row in plan["rows"]}
    assert found == several
    averages = [row for row in plan["rows"] if row["knobs"]["mode"].startswith("local-sgd")]
    assert {bool(row["servers"]) for row in averages} == {True, False}
    for row in plan["rows"]:
        name = row["knobs"]["mode"].partition(":")[0]
        promise = {"sync": "same", "allreduce": "same", "ssp": "bounded"}.get(name, "stale")
        promise = "local" if name in ("local-sgd", "easgd", "gossip") else promise
        if promise == "same" and ("codec" in row["knobs"] or "backup" in row["knobs"]["mode"]):
            promise = "bounded"
        assert row["promise"] == promise, row


def test_closed_forms_are_near(plan):
    for row in plan["rows"]:
        assert 0.5 < row["closed_step_s"] / row["step_s"] < 2.0, row


def test_known_again(plan, tmp_path, capsys):
    """What a plan knows is enough for the same plan, for the ranks that it has."""
    (tmp_path / "known.json").write_text(json.dumps(plan))
    flags = f"--known {tmp_path}/known.json --mode allreduce --hidden 7,8"
    found, _, _ = planned(tmp_path, capsys, flags)
    before = [row for row in plan["rows"] if row["knobs"]["mode"].startswith("allreduce")]
    by_flags = {row["command"]: row["step_s"] for row in found["rows"]}
    for row in before:
        assert math.isclose(by_flags[row["command"]], row["step_s"], rel_tol=1e-6)


def test_the_best_row_is_a_config(tmp_path, capsys):
    flags = f"{GIVEN} --ranks 3 --promise same --lr 0.25 --batch-size 16"
    found, text, toml = planned(tmp_path, capsys, flags)
    best = found["rows"][0]
    words = shlex.split(shlex.split(best["command"])[-2])
    assert from_toml(toml) == parse_train(words)
    assert {"--lr", "--batch-size"} <= {*words}
    assert all(row["promise"] == "same" for row in found["rows"])
    assert all(row["ranks"] == 3 for row in found["rows"])
    assert "another promise" in found["pruned"]
    assert max(map(len, text.partition("\n\n1  ")[0].splitlines())) <= 100


@pytest.mark.parametrize(
    ("flags", "step_s"),
    [
        # 2·(p − 1) messages of n/p, and each worker applies the sum.
        ("--mode allreduce:bucket-bytes=1048576 --allreduce ring --link 1e-4:1e8 --workers 4",
         T + 6 * (1e-4 + N / 1e8) + U),
        # A push, an update and a reply; nobody else is there.
        ("--mode async --servers 1 --shards-per-server 1 --link 1e-4:1e8 --workers 1",
         T + 2 * (1e-4 + 4 * N / 1e8) + U),
        ("--mode local-sgd:local-steps=10,quorum=1 --servers 1 --link 0:inf --workers 1",
         T + 1.1 * U),
        ("--mode serial --ranks 1", T + U),
        # No worker waits for the slow one: 3 of 4 take T.
        ("--mode async --servers 2 --shards-per-server 1 --link 0:inf --workers 4 "
         "--inject 0:slow:3:1000 --inject 1:pause:1:100", 4 / (3 / T + 1 / (3 * T))),
        # All wait for it.
        ("--mode allreduce --allreduce node --workers 3 --link 0:inf --ranks-per-host 3 "
         "--inject 2:slow:3", 3 * T + U),
    ],
)  # fmt: skip
def test_steps_take_what_they_are_made_of(tmp_path, capsys, flags, step_s):
    """Against formulas by hand; gradients all take the same time."""
    found, _, _ = planned(tmp_path, capsys, f"{GIVEN} {flags}")
    best = next(row for row in found["rows"] if "codec" not in row["knobs"])
    assert math.isclose(best["step_s"], step_s, rel_tol=0.04), best
    assert "inject" not in best["knobs"]


def test_intervals_contain_the_mean_of_many_seeds(tmp_path, capsys):
    flags = "--parameters 1000 --gradient-ms 14 --mode async --servers 1 --workers 2"
    flags += " --inject 0:jitter:0.006 --inject 1:jitter:0.006"
    row = one(tmp_path, capsys, flags)
    assert row["low"] < row["samples_per_s"] < row["high"]
    assert row["low"] <= 2 * 32 / T <= row["high"] * 1.005
    assert row["high"] / row["samples_per_s"] < 1.05


def test_what_would_take_too_long_is_not_simulated(tmp_path, capsys):
    """Then a row has the time of the closed form, and nothing else: in the table, too."""
    flags = f"{GIVEN} --workers 4096 --mode ssp:staleness=3 --shards-per-server 4"
    found, text, _ = planned(tmp_path, capsys, f"{flags} --servers 64 --link 1e-5:1e9")
    for row in found["rows"]:
        assert (row["steps"], row["low"], row["high"]) == (0, None, None)
        assert row["sent_per_step"] is row["staleness_mean"] is row["staleness_max"] is None
        assert row["step_s"] == row["closed_step_s"]
        assert math.isclose(row["samples_per_s"], 4096 * 32 / row["step_s"])
    assert "simulated: 0 configurations of" in text
    lines = [line for line in text.splitlines() if re.search(r"bounded$", line)]
    assert lines
    assert all(re.search(r" –  +– .* –  bounded$", line) for line in lines)
    assert "by closed forms: 1, 2" in text


def test_what_is_fixed_is_not_tried(tmp_path, capsys):
    flags = f"{GIVEN} --workers 3 --servers 1 --mode"
    found, _, _ = planned(tmp_path, capsys, f"{flags} ssp")
    modes = {row["knobs"]["mode"] for row in found["rows"]}
    assert modes == {"ssp:staleness=1", "ssp", "ssp:staleness=8"}
    assert one(tmp_path, capsys, f"{flags} ssp:staleness=3")["knobs"]["mode"] == "ssp"
    config = tmp_path / "fixed.toml"
    config.write_text('mode = "ssp:staleness=5"\nservers = 2\ntimeout_s = 9.0\nrecord = true\n')
    row = one(tmp_path, capsys, f"{GIVEN} --workers 3 --config {config}")
    assert (row["knobs"]["mode"], row["servers"]) == ("ssp:staleness=5", 2)


def test_failures(tmp_path, capsys):
    flags = f"{GIVEN} --mode allreduce --allreduce node --ranks 2 --mtbf 1000"
    costs = "--checkpoint-cost 2 --restart-cost 10"
    row = planned(tmp_path, capsys, f"{flags} {costs}")[0]["rows"][0]
    every = int(row["knobs"]["checkpoint-every"])
    assert math.isclose(every * row["step_s"], math.sqrt(2 * 2 * 1000), rel_tol=0.05)
    lost = daly_lost(every * row["step_s"], 2.0, 10.0, 1000.0)
    assert math.isclose(row["goodput"], 1 / (1 + lost), rel_tol=0.01)
    row = planned(tmp_path, capsys, f"{flags} {costs} --checkpoint-every 77")[0]["rows"][0]
    assert row["knobs"]["checkpoint-every"] == "77"


def test_budgets(tmp_path, capsys):
    flags = f"{GIVEN} --workers 2 --link 1e-5:1e9 --servers 1 --mode ssp:staleness=1 --codec int8"
    for budget, column in (("samples:1e6", "time"), ("seconds:60", "samples")):
        found, text, _ = planned(tmp_path, capsys, f"{flags} --budget {budget}")
        head, row, *_ = text.partition("\n\n")[2].splitlines()
        assert head.split()[-1] == column
        rate, cell = found["rows"][0]["samples_per_s"], " ".join(row.split()[-2:])
        asked = (
            of_time(cell) * rate / 1e6 if column == "time" else float(cell.split()[1]) / rate / 60
        )
        assert math.isclose(asked, 1.0, rel_tol=0.01)


def test_like_a_run(tmp_path, capsys):
    """A recorded run has the model, and the times of gradients and updates."""
    run = str(tmp_path / "run")
    flags = "--timing-only --parameters 5000 --steps 12 --workers 3 --compute constant:0.01"
    costs = "--server-apply 1e6 --batch-size 8 --lr 0.25"
    words = f"simulate --mode ssp {flags} {costs} --record --out {run}".split()
    assert psrt(words) == 0
    like = f"--like {run} --servers 1 --mode ssp:staleness=3"
    found, _, _ = planned(tmp_path, capsys, like)
    work, site = found["known"]["workload"], found["known"]["site"]
    assert (work["n"], work["batch_size"], len(site["hosts"])) == (5000, 8, 4)
    assert math.isclose(sum(map(sum, work["gradient_s"])), 4 * 12 * 0.01, rel_tol=0.01)
    assert math.isclose(found["known"]["apply"]["sgd"], 1e6, rel_tol=0.01)
    (row,) = found["rows"]
    assert (row["ranks"], row["workers"], row["knobs"]["lr"]) == (4, 3, "0.25")
    assert math.isclose(row["step_s"], 3 * 4 * 5000 / 1e6, rel_tol=0.05)  # the server is busy
    assert one(tmp_path, capsys, f"{like} --workers 5")["ranks"] == 6


def test_hosts(tmp_path, capsys):
    """Slots are ranks; servers are some of them, on several hosts, and codecs are tried."""
    (tmp_path / "hosts").write_text("a:2\nb:2\n")
    flags = f"{GIVEN} --hosts {tmp_path}/hosts --mode sync:backup=0 --servers 2"
    found, _, _ = planned(tmp_path, capsys, flags)
    assert {row["knobs"]["placement"] for row in found["rows"]} == {"spread"}
    assert {row["knobs"].get("codec") for row in found["rows"]} >= {None, "int8", "top-k"}
    for row in found["rows"]:
        assert (row["ranks"], row["workers"]) == (4, 2)
        assert f"--hostfile {tmp_path}/hosts" in row["command"]


def test_a_codec_that_cannot_take_a_model_is_left_out(tmp_path, capsys):
    model = "--parameters 5000000000 --gradient-ms 1000 --workers 2 --link 5e-5:1e9"
    found, said, _ = planned(tmp_path, capsys, f"{model} --mode sync --servers 1")
    assert not any("codec" in row["knobs"] for row in found["rows"])
    assert "impossible, such as: a codec for 5000000000 elements" in " ".join(said.split())


#: A model of psrt train: its parameters by layer, and the products in which each is used. The best
#: two stages have the first two layers and the last two.
LAYERS, PRODUCTS = (16640, 65792, 20560, 810), (2, 3, 3, 3)
DEEP = f"--parameters {sum(LAYERS)} --gradient-ms {MS} --hidden 256,256,80"
_OPERATIONS = [n * k for n, k in zip(LAYERS, PRODUCTS, strict=True)]
WORK = [it / sum(_OPERATIONS) for it in _OPERATIONS]


def test_models_are_split(tmp_path, capsys):
    flags = f"{DEEP} --workers 4 --link 1e-5:1e9 --mode allreduce"
    found, text, _ = planned(tmp_path, capsys, flags)
    rows = {it["knobs"]["parallel"]: it for it in found["rows"] if "parallel" in it["knobs"]}
    assert rows.keys() == {"pipeline:2", "tensor:2"}  # of 4 stages one has two thirds of the work
    for split, row in rows.items():
        copies = 4 // int(split[-1])
        config = resolve(parse_train(words_of(row["knobs"])), ranks=4)
        assert (config.axes.data, row["ranks"], row["promise"]) == (copies, 4, "same")
        assert math.isclose(row["samples_per_s"], copies * 32 / row["step_s"])
        assert 0.5 < row["closed_step_s"] / row["step_s"] < 2
        assert f"allreduce {split}" in text
    others = planned(tmp_path, capsys, f"{GIVEN} --workers 4 --mode allreduce")[0]["rows"]
    assert not any("parallel" in row["knobs"] for row in others)  # their layers are unknown


@pytest.mark.parametrize(
    ("split", "step_s"),
    [
        # The first stage works all the time: the second has less to do.
        ("pipeline:2", T * sum(WORK[:2]) + 4 * sum(LAYERS[:2]) / RATE),
        ("tensor:2", T / 2 + 2 * sum(LAYERS) / RATE),
        # No stage waits for another's updates.
        ("pipeline:2 --pipeline-schedule pipedream", T * sum(WORK[:2])),
    ],
)
def test_splits_take_what_they_are_made_of(tmp_path, capsys, split, step_s):
    flags = f"--workers 2 --link 0:inf --mode allreduce:bucket_bytes=1048576 --parallel {split}"
    for row in planned(tmp_path, capsys, f"{DEEP} {flags}")[0]["rows"]:
        assert math.isclose(row["step_s"], step_s, rel_tol=0.03), row
        assert row["knobs"]["parallel"] == split.partition(" ")[0]
        is_late = "pipedream" in split
        assert (row["promise"], row["staleness_max"]) == (
            ("bounded", 1) if is_late else ("same", None)
        )


def test_stages_of_a_pipeline_wait_at_both_ends_of_a_batch(tmp_path, capsys):
    """Two equal stages, of 4,160 and 4,158 products: one waits for the other's first and last."""
    flags = "--parameters 3466 --gradient-ms 20 --hidden 32,32 --workers 2 --link 0:inf"
    for parts in (2, 4, 16):
        split = f"--mode allreduce --parallel pipeline:2 --micro-batches {parts}"
        for row in planned(tmp_path, capsys, f"{flags} {split}")[0]["rows"]:
            assert T / 2 * (1 + 0.3 / parts) < row["step_s"] < T / 2 * (1 + 1.02 / parts)


@pytest.mark.parametrize(("ranks", "each", "name"), [(4, 4, "node"), (18, 2, "ring")])
def test_copies_of_split_models_sum_as_simulated(tmp_path, capsys, ranks, each, name):
    """As psrt simulate says of the same costs: parts are summed, and share the links of hosts."""
    split = f"--mode allreduce --allreduce {name} --hidden 256,256,80 --parallel pipeline:2"
    hosts = ",".join([str(each)] * (ranks // each))
    costs = f"--compute constant:0.001 --link 1e-4:1e8 --worker-apply {RATE:g} --hosts {hosts}"
    flags = f"{split} {costs} --steps 20 --timing-only --out {tmp_path}/run"
    assert psrt(["simulate", *flags.split()]) == 0
    seconds = json.loads((tmp_path / "run" / "summary.json").read_text())["seconds"] / 20
    there = f"--workers {ranks} --ranks-per-host {each} --link 1e-4:1e8"
    model = f"--parameters {sum(LAYERS)} --gradient-ms 1"
    found, _, _ = planned(tmp_path, capsys, f"{model} {split} {there}")
    row = next(it for it in found["rows"] if it["knobs"]["mode"] == "allreduce")
    assert math.isclose(row["step_s"], seconds, rel_tol=0.015)


W2 = f"{GIVEN} --workers 2"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--parameters 5 --workers 3", "--parameters 5 has no effect without --gradient-ms"),
        ("--gradient-ms 5 --workers 3", "--gradient-ms 5 has no effect without --parameters"),
        (GIVEN, "--parameters needs ranks"),
        (f"{GIVEN} --workers 0", "workers must be at least 1, got 0"),
        (f"{GIVEN} --workers 99999", "workers must be at most 4096, got 99999"),
        (f"{W2} --ranks 3", "--workers 2 and --ranks 3 cannot be combined"),
        (f"{W2} --parallel pipeline:2", "--parallel pipeline:2: psrt plan knows no layers but"),
        (f"{DEEP} --workers 4 --parallel tensor:2 --servers 2", "splits models without servers"),
        (f"{DEEP} --workers 3 --parallel tensor:2", "needs 2 ranks or a multiple, got 3 ranks"),
        (f"{DEEP} --workers 8 --parallel pipeline:8", "4 layers cannot be split into 8 stages"),
        (f"{DEEP} --workers 2 --parallel pipeline:2 --mode async", "splits models without servers"),
        (f"{DEEP} --workers 2 --micro-batches 4", "has no effect without --parallel"),
        (f"--known x {W2}", f"--parameters {N} and --known x cannot be combined"),
        ("--like x --hosts y", "--like x and --hosts y cannot be combined"),
        (f"{GIVEN} --hosts x --link 1:1", "--link 1:1 has no effect without --workers"),
        (f"{W2} --ranks-per-host 2", "--ranks-per-host 2 has no effect without --link"),
        ("--parameters 5 --workers 2 --gradient-ms nan", "gradient-ms must be"),
        ("--parameters 5 --workers 2 --gradient-ms 0", "gradient-ms must be"),
        (f"{W2} --link 1", "link must be LATENCY_S:BYTES_PER_S"),
        (f"{W2} --budget money", "budget must be samples:N or seconds:T"),
        (f"{W2} --budget samples:nan", "budget samples must be"),
        (f"{W2} --tune", "--tune has no effect on a plan"),
        (f"{W2} --promise much", "promise must be one of same, bounded, any, got 'much'"),
        (f"{W2} --replay x", "--replay x has no effect on a plan"),
        (f"{W2} nowhere.py", "no script nowhere.py"),
        (f"{W2} --restart-cost 2", "--restart-cost 2 has no effect without --mtbf"),
        (f"{W2} --checkpoint-every 2", "--checkpoint-every 2 has no effect without --mtbf"),
        (f"{W2} --try-seconds 2", "--try-seconds 2 has no effect without --try"),
        (f"{W2} --mode serial", "--mode serial is one process, got 2 ranks"),
        (f"{GIVEN} --ranks 1 --mode sync", "needs at least 1 server"),
        (f"{W2} --mode local-sgd:quorum=9", "needs at least 9 workers, got 2"),
        (f"{W2} --inject 7:slow:3", "names a worker that does not exist; the last is 1"),
        (f"{W2} --html page.txt", "must end in .html"),
        (f"{W2} --out /nowhere/plan.toml", "cannot write /nowhere/plan.toml"),
        (f"{W2} --top 0", "top must be at least 1, got 0"),
        (f"{W2} --bogus", "unknown flag --bogus"),
        ("--known /nowhere", "/nowhere: cannot be read"),
        ("--like /nowhere", "no run at /nowhere"),
        (f"{GIVEN} --hosts /nowhere", "/nowhere: cannot be read"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(flags, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        main(flags.split())
    assert "\n" not in str(caught.value)


#: What no plan has measured: each part, and something in its place.
UNSOUND = [
    ("workload", "n", -5), ("workload", "n", "5"), ("workload", "gradient_s", []),
    ("workload", "gradient_s", [[]]), ("workload", "gradient_s", [["x"]]), ("site", "hosts", []),
    ("site", "cores", [0]), ("site", "machines", [7]),
]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"known": {"workload": 3}}', "null", *map(str, UNSOUND)]
)
def test_files_that_are_no_plan(plan, tmp_path, text):
    for part, name, value in (it for it in UNSOUND if str(it) == text):
        text = json.dumps({"known": plan["known"] | {part: plan["known"][part] | {name: value}}})
    (tmp_path / "known.json").write_text(text)
    with pytest.raises(ConfigError, match="--known: not what planning has measured") as caught:
        main(["--known", f"{tmp_path}/known.json"])
    assert "\n" not in str(caught.value)
