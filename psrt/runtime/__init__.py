"""The roles: what a server and a worker do, as coroutines over a port that they are given."""
