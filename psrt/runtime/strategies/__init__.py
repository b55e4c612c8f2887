"""What a worker does with a gradient: one strategy for each kind of mode."""
