"""All modules that import MPI: the port, the communicator, hosts, and how ranks agree."""
