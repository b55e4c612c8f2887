"""One schedule a file: what a rank sends, receives and combines, in order."""
