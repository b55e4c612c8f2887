"""What users choose by its name, and the knobs of it. Needs no numpy."""
