"""One schedule per file: a rank's sends, receives and combines, in order."""
