"""What people look at: explanations, films, pages, traces and comparisons. No MPI.

They read rows, events and the files of a run, and never look into a running process. No rank loads
this package.
"""
