"""Compiled collectives: a plan has its views, words and requests ready and is run many times.

==============  ================================================================================
plan            how the numbers move
==============  ================================================================================
``direct``      ranks of a host fold each other's windows directly, each its own slice
``staged``      the same through staging memory, for arrays that peers cannot see
``one_shot``    the smallest messages: one barrier, then every rank folds everything
``copy``        copies what a rank should end with out of the other windows of a host
``exchange``    copies a block for each rank out of the windows of a host
``scheduled``   the steps of a schedule, through windows inside a host, else by MPI
``framed``      frames of a codec between ranks, each to the owner of its chunk and back
``vendor``      the MPI library's own all-reduce
==============  ================================================================================

A run is a generator. Where it cannot continue, it yields a function that says whether it can. So
one rank can have several runs in progress, and the code that drives them owns the waiting
(``executor``).
"""
