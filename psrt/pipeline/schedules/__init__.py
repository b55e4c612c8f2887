"""Schedules of pipelines, one file each: in which order a stage computes, and why."""
