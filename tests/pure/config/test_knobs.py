"""What the knobs say of themselves, written down a second time."""

from psrt.config import TrainConfig
from psrt.config.knobs import knobs_of

KNOBS = knobs_of(TrainConfig)


def those(has):
    return {name for name, knob in KNOBS.items() if has(knob)}


def test_which_knobs_touch_no_numbers():
    assert those(lambda knob: not knob.numeric) == {
        "out", "overwrite", "record", "last_events", "replay", "timeout_s",
        "busy_timeout_s", "log_every", "inject", "shared_memory", "placement", "machine_costs",
        "check_every", "consensus_every",
        "gather", "bind_cores", "stages", "checkpoint_every", "mtbf", "keep", "resume", "survive",
    }  # fmt: skip


def test_which_knobs_are_of_how_a_run_was_watched():
    watched = those(lambda knob: not knob.of_run)
    assert watched == {
        "out", "overwrite", "record", "last_events", "gather", "replay", "inject", "machine_costs",
        "checkpoint_every", "mtbf", "keep", "resume", "survive",
    }  # fmt: skip
    assert all(not KNOBS[name].numeric for name in watched)


def test_which_knobs_are_about_real_time():
    assert those(lambda knob: knob.real_time) == {
        "timeout_s",
        "busy_timeout_s",
        "last_events",
        "gather",
        "bind_cores",
        "mtbf",
    }


def test_which_knobs_show_in_a_timeline():
    assert those(lambda knob: knob.drawn) == {
        "servers", "shards_per_server", "backup", "staleness", "softsync", "local_steps",
        "post_local_epoch", "outer_lr", "outer_momentum", "allreduce", "fragments",
        "fragment_order", "eager", "sync_delay", "mixing", "elastic", "asynchronous",
    }  # fmt: skip


def test_a_synonym_stands_for_one_knob_and_is_none():
    words = [word for knob in KNOBS.values() for word in knob.synonyms]
    assert len(set(words)) == len(words)
    assert not {word.replace("-", "_") for word in words} & KNOBS.keys()
