"""Totals of events: each figure is computed in one place, a fold that a run and its check share.

Pure. A fold takes events one after another, and has the totals so far at any time. A role feeds its
fold as events happen, recorded or not; ``history.folds.history`` feeds the same folds with the
events of a recorded run.
"""
