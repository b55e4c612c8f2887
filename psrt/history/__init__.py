"""The history of a run: every read, push and update, as compact numpy records.

Roles write events through an ``EventLog``; ``read_history`` reads a run's ``history/`` folder back;
``check`` verifies that a history keeps the contract of its mode, independently of the code that
ran; ``replay`` makes servers handle their events in the recorded order again.
"""

from __future__ import annotations

from psrt.history.events import EVENT, EVENT_BYTES, Kind
from psrt.history.header import Header
from psrt.history.log import EventLog
from psrt.history.reading import History, read_history

__all__ = ["EVENT", "EVENT_BYTES", "EventLog", "Header", "History", "Kind", "read_history"]
