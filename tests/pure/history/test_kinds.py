"""Each kind of event is declared once, and what writes and shows one follows from that.

Seen red: a column that two fields of a kind share, an adder that takes columns in another order.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from psrt.config import TrainConfig
from psrt.history import EVENT, EventLog, Kind
from psrt.history.check import check
from psrt.history.events import UNUSED
from psrt.history.kinds import KINDS, Event, Field, Residual, Take
from support.cases import each
from support.histories import record, recorded
from support.recording import Ledger


def test_every_kind_is_declared_and_has_each_field_in_a_column_of_its_own():
    assert set(KINDS) == set(Kind)
    for kind, it in KINDS.items():
        assert it.kind == kind
        assert len(it.columns()) == len(it.fields)
        assert it.columns() <= UNUSED.keys()
        assert all(field.name == name for name, field in it.fields.items())
    with pytest.raises(AssertionError, match="gap"):

        class Twice(Event):
            one = Field("gap")
            other = Field("gap")


def test_a_field_is_its_column_and_reads_one_event_or_many():
    events = np.concatenate([record(Kind.RESIDUAL, 0.0, 0, 0, 0, rate=rate) for rate in (1, 2)])
    assert events[Residual.given].tolist() == [1, 2]
    assert Residual.given.of(events.view(np.recarray)[1]) == 2


@each("kind", KINDS)
def test_an_event_has_its_fields_by_name_and_nothing_else(tmp_path, kind):
    fields = KINDS[kind].fields
    names = {str(field): name for name, field in fields.items()}
    values = {name: 1 + i for i, name in enumerate(fields)}
    with EventLog(tmp_path / f"{kind.name}.npy") as log:
        add = log.adder((False, 0), KINDS[kind])
        add(0.5, 3, **values)
        add(0.5, 3, *(values[names[it]] for it in UNUSED if it in names))
        add(0.5, 3)
        with pytest.raises(TypeError):
            add(0.5, 3, nothing=1)
    named, ordered, bare = np.load(tmp_path / f"{kind.name}.npy")[:-1]
    due = UNUSED | {str(field): values[name] for name, field in fields.items()}
    due |= {"kind": kind, "worker": 3, "time": 0.5}
    for event, wanted in ((named, due), (ordered, due), (bare, due | UNUSED)):
        for column in EVENT.names:
            said = event[column]
            assert said == wanted[column] or (math.isnan(said) and math.isnan(wanted[column]))


def test_a_report_calls_fields_as_their_kind_does():
    config = TrainConfig(mode="gossip", optimizer="sgd", lr=0.5, epochs=1, batch_size=1)
    history = recorded(config, Ledger((4, 4, 4), 1), workers=3).history
    events = history.workers[1]
    events[Take.factor][events["kind"] == Kind.TAKE] *= 2
    outcome = check(history)
    assert "gives what worker 0 has for round 0 the weight 0.6" in outcome.violation.text
    told = [it for it in outcome.document()["violation"]["events"] if it["kind"] == "TAKE"]
    assert all({"neighbour", "factor", "tau"} < it.keys() for it in told)
    assert not any({"shard", "weight", "version"} & it.keys() for it in told)
