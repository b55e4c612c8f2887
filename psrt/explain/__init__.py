"""Schedules and modes drawn for people: what happens step by step, and what it costs. No MPI."""
