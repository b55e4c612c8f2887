"""Draws schedules and modes for people, step by step, with their costs. No MPI."""
