"""Benchmarks: candidates interleaved in one run, their results verified."""
