"""What people look at: explanations, films, pages, traces and comparisons. No MPI.

They read rows, events and the files that a run left behind, and never look into a run. No rank
loads this package.
"""
