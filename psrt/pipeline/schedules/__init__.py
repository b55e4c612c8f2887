"""Schedules of pipelines, one file each: the order in which a stage computes, and why."""
