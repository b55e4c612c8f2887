"""Links between two ranks: shared memory on a host, MPI messages between hosts."""
