"""What events add up to: each figure counted once, by a fold that a run and its check share. Pure.

A fold takes events one after the other, and has at any time what they come to so far. A role counts
into one as its events happen, recorded or not; ``history.folds.history`` has the same folds take
the events of a recorded run.
"""
