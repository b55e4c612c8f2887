"""Everything that imports MPI: the port, the communicator, hosts, and how ranks agree."""
