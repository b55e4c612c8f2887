"""Collectives over MPI: schedules compiled for a communicator, and their execution."""
