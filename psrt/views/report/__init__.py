"""The page about runs, from the folders that they left behind; damaged ones, too.

``folder`` reads what is there; each other file but ``page`` makes one section of it, or the part
of one that is about a single run. A section is made of runs in their order, which is that of
colours, and of how much detail there is room for. Nothing here looks into a run under way but by
its files.
"""
