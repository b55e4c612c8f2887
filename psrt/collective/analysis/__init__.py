"""Schedules proved, timed and priced, and the fastest one chosen."""
