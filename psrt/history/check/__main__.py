"""Prints the table of rules as docs/history.md has it: ``python -m psrt.history.check``."""

from __future__ import annotations

from psrt.history.check.rules import table

if __name__ == "__main__":
    print(table())
