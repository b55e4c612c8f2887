"""Pages that play an explanation of ``psrt explain`` step by step.

``film`` is what a player shows: ranks, what each holds, and frames of messages; ``scene`` is where.
A file for each kind of explanation turns it into a film: every number comes from the explanation,
none is computed anew. ``layout`` finds places, ``thin`` leaves out what is too much, ``page`` makes
the page, and ``template/play.js`` plays it.
"""
