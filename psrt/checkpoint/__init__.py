"""Checkpoints on disk: the state of a run at one step, whole or absent. Pure, except for files."""

from psrt.checkpoint.disk import Disk
from psrt.checkpoint.folder import Checkpoints, Found
from psrt.checkpoint.manifest import Manifest
from psrt.checkpoint.part import (
    PartEntry,
    announce,
    announce_failure,
    announced,
    read_part,
    write_part,
)
from psrt.checkpoint.reshard import assemble
from psrt.checkpoint.state import marked, paths_by_element, restore, state_of
from psrt.checkpoint.text import from_text, to_text
from psrt.checkpoint.tree import Tree

__all__ = [
    "Checkpoints",
    "Disk",
    "Found",
    "Manifest",
    "PartEntry",
    "Tree",
    "announce",
    "announce_failure",
    "announced",
    "assemble",
    "from_text",
    "marked",
    "paths_by_element",
    "read_part",
    "restore",
    "state_of",
    "to_text",
    "write_part",
]
