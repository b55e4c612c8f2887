"""Tags of psrt's own messages: each kind has one of its own, so all may share a communicator."""

#: A message between roles on different hosts, and its payload.
FRAME, DATA = 1, 2
#: A vector on its way to rank 0.
FETCH = 3
#: A report to rank 0.
REPORT = 4
#: An announcement of long work.
BUSY = 5
#: What a rank calls.
CALL = 6
#: From here on, the steps of schedules.
FIRST_STEP = 16
