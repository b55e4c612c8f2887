"""Draws schedules and modes step by step, with their costs. No MPI."""
