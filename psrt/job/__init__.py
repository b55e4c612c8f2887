"""A run, from its config to its files: alone, over MPI, and in virtual time."""
