"""A thread that is there before there is something to do."""

from __future__ import annotations

from threading import Event, Thread, current_thread
from unittest import mock

from psrt.job.background import Background


def test_it_does_all_in_order_and_only_then_has_finished():
    background, may_go, done = Background(), Event(), []
    background.do(lambda: done.append(may_go.wait(60)))
    for i in range(5):
        background.do(lambda i=i: done.append(i))
    assert done == []  # whoever asks goes on
    may_go.set()
    background.finish()
    assert done == [True, 0, 1, 2, 3, 4]
    background.close()


def test_asking_starts_no_thread():
    background, ran_in = Background(), []
    with mock.patch.object(Thread, "start", side_effect=AssertionError):
        background.do(lambda: ran_in.append(current_thread()))
        background.finish()
    assert ran_in[0] is not current_thread()
    background.close()


def test_it_goes_on_after_an_error_and_prints_it(capfd):
    background, done = Background(), []
    background.do(lambda: 1 / 0)
    background.do(lambda: done.append(1))
    background.finish()
    assert done == [1]
    assert "ZeroDivisionError" in capfd.readouterr().err
    background.close()


def test_its_thread_ends():
    background, seen = Background(), []
    background.do(lambda: seen.append(current_thread()))
    background.finish()
    background.close()
    seen[0].join(60)
    assert not seen[0].is_alive()
