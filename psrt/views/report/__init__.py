"""The page about runs, made from their folders, even damaged ones.

``folder`` reads the files. Each other module except ``page`` makes one section, or the part of a
section about a single run. A section takes the runs in order, which is also the order of colours,
and the detail that fits. A running job is only known by its files.
"""
