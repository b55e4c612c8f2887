"""Parts of the benchmarks of model parallelism."""
