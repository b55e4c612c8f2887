"""Benchmarks: everything side by side and interleaved in one run, results verified."""
