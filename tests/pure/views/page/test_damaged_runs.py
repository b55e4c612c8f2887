"""Of what is damaged a page says what is wrong; the rest is whole; no text becomes HTML."""

import json
import random
import shutil

import pytest

from psrt.views.report.page import MOST_NBYTES, page_of
from support.cases import also
from support.pages import Page

EVIL = "</script></style></svg><img src=x onerror=alert(1)>"


def write(run, name, text):
    (run / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def told(run):
    """Return the page of a run, and what it says of damage."""
    page = Page(page_of([str(run)]))
    return page, page.sections["outcome"]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("config.toml", "mode = ", "config.toml: not TOML: "),
        ("config.toml", b"\xff\xfe", "not a text in UTF-8"),
        ("config.toml", None, "config.toml is missing, so the configuration is not known"),
        ("summary.json", "[]", "summary.json: summary is not an object of fields"),
        ("metrics.jsonl", "\0" * 300_000, "metrics.jsonl: its last line is incomplete"),
        ("metrics.jsonl", '{"step": "1"}\n{"step": 2}\n[]\n', "line 1, and 1 more left out"),
        ("metrics.jsonl", '{"step": 2}\n{"step": 1}\n', "its steps are not in order"),
        ("simulation.json", "{}", "simulation.json: not what psrt writes: 'servers'"),
        ("roster.json", '[{"rank": 0}]', "roster.json: not what psrt writes"),
        ("progress.json", "nan?", "progress.json: not JSON"),
        ("end.json", '{"text": 1, "status": 5, "ended": ""}', "end.json: not what psrt writes"),
        ("model.safetensors", "x", "model.safetensors: not a file of tensors"),
        ("history/header.json", "{}", "header.json: of format None; this psrt reads"),
        ("history/events.npy", None, "events.npy is missing"),
        ("history/events.npy", "flipped", "its checksum does not match its events"),
    ],
)  # fmt: skip
def test_damage_is_told_and_the_rest_is_shown(copied, name, text, line):
    run = copied("ssp")
    if text is None:
        (run / name).unlink()
    elif text == "flipped":
        data = bytearray((run / name).read_bytes())
        data[-64 * 9] ^= 1
        write(run, name, bytes(data))
    else:
        write(run, name, text)
    page, outcome = told(run)
    assert line in outcome
    assert str(run) not in outcome
    assert ("Training loss, by steps" in page.text) == (name != "metrics.jsonl")
    assert "Staleness τ of" in page.sections["staleness"]
    if text == "flipped":  # they are neither drawn nor checked
        assert "Waiting over the run" not in page.sections["waiting"]
        assert "Not checked: " in page.sections["check"]


def spoiled(value, rng):
    """Return what JSON made, with one leaf of it replaced."""
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        return {**value, key: spoiled(value[key], rng)}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [spoiled(it, rng) if i == place else it for i, it in enumerate(value)]
    numbers = -1, 10**400, -1e308, 1e308, float("nan")
    return rng.choice([*numbers, None, True, "", [], {}, EVIL, [EVIL], {EVIL: EVIL}])


@pytest.mark.parametrize("kind", ["ssp", also("gossip"), also("pipeline"), "codec"])
@pytest.mark.parametrize("seeds", [range(2), also(range(1000, 1050))])
def test_whatever_files_say_there_is_a_page(copied, kind, seeds):
    run = copied(kind)
    files = [run / name for name in ("summary.json", "simulation.json", "metrics.jsonl")]
    texts = {path: path.read_text() for path in files}
    shutil.rmtree(run / "history")  # its header has a checksum
    tags = {tag for tag, _ in Page(page_of([str(run)])).elements}
    for seed in seeds:
        rng = random.Random(seed)
        for path, text in texts.items():
            if path.suffix == ".jsonl":
                lines = [json.loads(it) for it in text.splitlines()]
                lines = [spoiled(it, rng) if rng.random() < 0.3 else it for it in lines]
                path.write_text("".join(json.dumps(it) + "\n" for it in lines))
            else:
                value = json.loads(text)
                for _ in range(rng.randrange(3)):
                    value = spoiled(value, rng)
                path.write_text(json.dumps(value))
        html = page_of([str(run)])
        page = Page(html)
        assert {tag for tag, _ in page.elements} <= tags | {"h3", "p"}, seed
        assert len(html.encode()) <= MOST_NBYTES


def test_texts_of_all_files_are_escaped(copied):
    """Every text that a file may hold, in the places that psrt itself writes them to."""
    run = copied("codec")
    tags = [tag for tag, _ in Page(page_of([str(run)])).elements]
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"mode": EVIL, "mpi": EVIL, "shards_why": EVIL, "allreduce_why": EVIL}
    summary |= {"allreduce": EVIL, "parameters_sha256": EVIL}
    missing = {"worker": 1, "rank": 2, "host": EVIL, "pid": 3, "clock": 4}
    summary["missing"] = [missing]
    write(run, "summary.json", json.dumps(summary))
    simulation = json.loads((run / "simulation.json").read_text())
    simulation |= {name: EVIL for name, it in simulation.items() if isinstance(it, str)}
    simulation["faults"] = [EVIL]
    write(run, "simulation.json", json.dumps(simulation))
    roster = [{"rank": 0, "role": EVIL, "host": EVIL, "pid": 1}]
    write(run, "roster.json", json.dumps(roster))
    config = (run / "config.toml").read_text()
    write(run, "config.toml", config + f"warp = {json.dumps(EVIL)}\n{json.dumps(EVIL)} = 1\n")
    manifest = next((run / "checkpoints").iterdir()) / "manifest.json"
    values = json.loads(manifest.read_text())
    write(run, f"checkpoints/{manifest.parent.name}/manifest.json",
          json.dumps(values | {"created": EVIL, "parent": EVIL}))  # fmt: skip
    run = run.rename(run.with_name("<img src=x onerror=alert(2)>&amp;"))
    html = page_of([str(run)])
    page = Page(html)
    assert html.count("&lt;img src=x") > 15
    assert "<img" not in html
    assert "<img src=x onerror=alert(2)>&amp;" in page.text
    more = {tag for tag, _ in page.elements} - set(tags)
    assert more <= {"h3", "p", "caption"}
    assert not [name for _, attributes in page.elements for name in attributes if name[:2] == "on"]
