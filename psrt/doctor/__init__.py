"""What ``psrt doctor`` finds out about the ranks of a job, and what it concludes.

``facts`` defines what is known about ranks and pairs of hosts, ``gather`` collects it over MPI,
``findings`` judges it without MPI, and ``page`` prints both.
"""
