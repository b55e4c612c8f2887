"""The roles of server and worker, as coroutines over a port."""
