"""Planning: which mode, servers and codec suit a model on given ranks, before anything is trained.

It is a fold over what exists: rows say what can be combined, closed forms prune, the simulator
predicts, and ``costs_for`` is the only place that turns measurements into its costs.
"""
