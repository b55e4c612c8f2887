"""What ``psrt doctor`` finds out about the ranks of a job, and what it makes of it.

``facts`` is what can be known of ranks and of pairs of hosts, ``gather`` finds it out over MPI,
``findings`` judges it and knows nothing of MPI, ``page`` writes both for people.
"""
