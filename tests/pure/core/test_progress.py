"""What a person who waits is told: when, of how much, how fast, and what is left. By a clock."""

import pytest

from psrt.core.progress import SILENT_S, Amount, Progress


class Clock:
    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


def lines_of(progress, clock, seconds, happens=lambda seconds: None):
    """Return (seconds, line) for all lines of that long; ``happens`` is told the time before."""
    found, began = [], clock.time
    while (at := clock.time - began + progress.due_s()) <= seconds:
        clock.time = began + at
        happens(at)
        found.append((round(at, 3), progress.line()))
    return found


def started(**how):
    clock = Clock()
    progress = Progress(clock, **how)
    progress.begin(**how)
    return progress, clock


def test_lines_that_stay_come_after_two_seconds_and_ever_more_rarely():
    progress, clock = started()
    times = [at for at, _ in lines_of(progress, clock, 4000.0)]
    assert times == [SILENT_S, 5, 10, 20, 40, 80, 160, 320, 640, 1240, 1840, 2440, 3040, 3640]


@pytest.mark.parametrize(("how", "first", "step"), [
    ({"live": True}, 2.0, 0.25),
    ({"verbose": True}, 0.0, 1.0),
    ({"live": True, "verbose": True}, 0.0, 0.25),
])  # fmt: skip
def test_a_terminal_and_whoever_wants_more_see_more(how, first, step):
    progress, clock = started(**how)
    times = [at for at, _ in lines_of(progress, clock, first + 2 * step)]
    assert times == [first, first + step, first + 2 * step]


def test_a_line_that_is_late_puts_the_next_one_off():
    progress, clock = started()
    clock.time += 7.0
    assert progress.due_s() == 0.0
    assert progress.line() == "starting  time 0:07"
    assert progress.due_s() == 3.0


def test_it_says_what_of_how_many_how_fast_and_what_is_left():
    progress, clock = started()
    done = 0

    def happens(at):
        nonlocal done
        done = int(10 * at)

    with progress.doing("training", lambda: Amount(done, 200, "step", "here", "loss 1")):
        lines = lines_of(progress, clock, 10.0, happens)
    assert [line for _, line in lines] == [
        "training: step 20 of 200 (10 %)  here  10 steps/s  time 0:02  left 0:18",
        "training: step 50 of 200 (25 %)  here  10 steps/s  time 0:05  left 0:15",
        "training: step 100 of 200 (50 %)  here  10 steps/s  time 0:10  left 0:10",
    ]


def test_who_wants_more_is_told_more_and_what_cannot_be_read_just_now_is_left_out():
    progress, _ = started(verbose=True)
    with progress.doing("training", lambda: Amount(1, None, "step", "here", "loss 1")):
        assert progress.line() == "training: step 1  here  loss 1  time 0:00"

    def look():
        raise RuntimeError("dictionary changed size during iteration")

    with progress.doing("training", look):
        assert progress.line() == "training  time 0:00"


def test_what_was_done_before_says_nothing_about_the_speed():
    progress, clock = started()
    clock.time += 60.0  # of setting up
    done = 100.0
    with progress.doing("training", lambda: Amount(done, 200.0, "epoch")):
        clock.time += 10.0
        done = 150.0
        assert progress.line() == "training: epoch 150.0 of 200 (75 %)  time 1:10  left 0:10"


def test_parts_of_parts_count():
    progress, clock = started()
    lines = []
    for _ in progress.each("abcd", "measuring", "size"):
        for _ in progress.each(range(2), "measuring", "round"):
            clock.time += 5.0
            lines.append(progress.line())
    assert lines[3] == (
        "measuring: size 1 of 4 (25 %), round 1 of 2 (50 %)  0.05 sizes/s  time 0:20  left 0:33"
    )
    assert progress.line() == "finishing  time 0:40"


def test_each_ends_where_the_loop_does():
    progress, _ = started()
    for _ in progress.each("abcd", "reading", "file"):
        break
    assert progress.line().startswith("finishing")
    with pytest.raises(ValueError, match="here"), progress.doing("writes"):
        raise ValueError("here")
    assert progress.line().startswith("finishing")
    left = progress.each("abcd", "reading", "file")
    next(left)
    with progress.doing("training"):  # from which a loop that is closed late takes nothing away
        left.close()
        assert progress.line().startswith("training")
    assert progress.line().startswith("finishing")


def test_after_the_last_part_a_line_waits_for_more_than_the_end():
    progress, clock = started()
    with progress.doing("training"):
        clock.time += SILENT_S
        assert progress.due_s() == 0.0
    assert progress.due_s() == SILENT_S
    clock.time += SILENT_S
    assert progress.line() == "finishing  time 0:04"
