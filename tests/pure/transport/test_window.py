"""What may be pushed before earlier pushes are answered."""

from hypothesis import given
from hypothesis import strategies as st

from psrt.transport.window import BYTES, SHARDS, Window


def pushes(window, sizes):
    """Push shards of these sizes; return those that have left, a list that grows."""
    left = []
    for shard, nbytes in enumerate(sizes):
        if window.admits(nbytes, lambda shard=shard: left.append(shard)):
            left.append(shard)
    return left


def test_long_shards_wait_for_the_answer_to_the_one_before_the_last():
    window = Window()
    left = pushes(window, [BYTES] * 5)
    assert left == [0, 1]
    window.answered(BYTES)
    assert left == [0, 1, 2]


def test_short_shards_do_not_wait():
    assert pushes(Window(), [BYTES // 16] * 16) == list(range(16))


def test_one_long_answer_lets_several_short_ones_go():
    window = Window()
    left = pushes(window, [BYTES, BYTES, 8, 8, 8])
    window.answered(BYTES)
    assert left == [0, 1, 2]
    window.answered(BYTES)
    assert left == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(1, 2 * BYTES)), st.data())
def test_all_leave_in_order_and_never_too_many_at_a_time(sizes, data):
    window, answered = Window(), set()
    left = pushes(window, sizes)
    while len(answered) < len(sizes):
        open_ = [shard for shard in left if shard not in answered]
        assert open_
        assert len(open_) <= SHARDS or sum(sizes[shard] for shard in open_) <= BYTES
        shard = data.draw(st.sampled_from(open_))
        answered.add(shard)
        window.answered(sizes[shard])
        assert left == sorted(left)
    assert left == list(range(len(sizes)))
