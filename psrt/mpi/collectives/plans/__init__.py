"""Collectives, compiled: a plan has its views, words and requests ready and runs again and again.

==============  ================================================================================
plan            how the numbers move
==============  ================================================================================
``in_place``    ranks of a host fold each other's windows directly, each its own slice
``staged``      the same through staging memory, for arrays that peers cannot see
``flat``        the smallest messages: one meeting, then every rank folds everything
``stepwise``    the steps of a schedule, through windows inside a host, else by MPI
``library``     the MPI library's own all-reduce
==============  ================================================================================

A run is a generator that yields, wherever it cannot go on, the question whether it can. So one
rank can have several under way, and whoever drives them owns the waiting (``engine``).
"""
