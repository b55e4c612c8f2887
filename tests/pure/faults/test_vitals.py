"""What a rank tells of itself: for how long it has been at one thing."""

from psrt.faults.detector import Busy, Waiting
from psrt.faults.vitals import Vitals


def test_it_is_busy_for_as_long_as_it_is_at_one_thing():
    vitals = Vitals()
    vitals.doing = "trains"
    first = vitals.condition(10.0)
    assert vitals.condition(13.0) == Busy(3.0, first.where, "trains")
    vitals.doing = "is in evaluate()"
    assert vitals.condition(14.0).seconds == 0.0
    assert vitals.condition(16.0).seconds == 2.0
    vitals.doing = "trains"
    assert vitals.condition(17.0).seconds == 0.0


def test_a_step_is_one_thing_also_where_nothing_is_sent():
    clock = 0
    vitals = Vitals()
    vitals.where = lambda: f"clock {clock}"
    for clock in range(3):
        assert vitals.condition(10.0 * clock).seconds == 0.0
        assert vitals.condition(10.0 * clock + 9.0) == Busy(9.0, f"clock {clock}", "starts")


def test_what_waits_gets_on_with_its_bytes():
    received = 0
    vitals = Vitals()
    vitals.pulse = lambda: received
    with vitals.blocked("rank 0"):
        vitals.condition(1.0)
        assert vitals.condition(4.0) == Waiting(3.0, "", "rank 0")
        received = 64
        assert vitals.condition(5.0).seconds == 0.0
