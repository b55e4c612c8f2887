"""psrt: parameter-server and all-reduce training on MPI, in Python and numpy."""

__version__ = "0.1.0"
