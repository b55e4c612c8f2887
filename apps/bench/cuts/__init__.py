"""Parts of the benchmarks of models that are cut across ranks."""
