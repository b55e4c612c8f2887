"""A run is never written over what it is made from."""

import pytest

from support.cases import pairs

pytestmark = pytest.mark.xdist_group("own source")

TRAIN = ["train", "--steps", "20", "--hidden", "4", "--record"]

SOURCES = [
    ["simulate", "--like", "run"],
    ["simulate", "--like", "run/history"],
    ["simulate", "--compute", "run:run"],
    ["simulate", "--replay", "run"],
    ["train", "--machine-costs", "run/costs.json", "--mode", "allreduce"],
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, launch_in):
    launch = launch_in(tmp_path_factory.mktemp("recorded"))
    done = launch.train(2, *TRAIN[1:], "--mode", "async", "--out", "run")
    assert done.status == 0, done.stderr
    (launch.folder / "link").symlink_to("run")
    (launch.folder / "run/costs.json").write_text("{}")
    return launch


@pytest.mark.parametrize(
    ("words", "out"), pairs(SOURCES, ["run", "run/", "link", "./x/../run"], one_in=4), ids=str
)
def test_it_is_refused(recorded, words, out):
    (recorded.folder / "x").mkdir(exist_ok=True)
    before = {path: path.read_bytes() for path in recorded.folder.rglob("run/**/*.*")}
    done = recorded.psrt(*words, "--out", out, "--overwrite")
    assert done.status == 2, done.stderr
    assert len(done.errors) == 1, done.stderr
    assert "would be written over what --" in done.errors[0]
    assert {path: path.read_bytes() for path in before} == before


def test_beside_it_is_another_matter(recorded):
    for words in (["--like", "run"], ["--replay", "run"]):
        done = recorded.psrt("simulate", *words, "--out", "run/again", "--overwrite")
        assert done.status == 0, done.stderr
