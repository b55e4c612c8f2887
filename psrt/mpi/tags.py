"""Tags of psrt's own messages: each kind has one of its own, so all may share a communicator."""

#: A message between a worker and a server's first shard on different hosts, and its payload; those
#: of the server's next shards are ``SHARD_TAGS`` further each.
FRAME, DATA = 1, 2
#: A vector on its way to rank 0.
FETCH = 3
#: A report to rank 0.
REPORT = 4
#: What a rank calls.
CALL = 5
#: What the clock of a host says.
CLOCK = 6
#: What rank 0 and another rank tell each other at the end of a job.
STAR = 7
#: From here on, the steps of schedules; jobs with servers have none.
FIRST_STEP = 16
SHARD_TAGS = 16
#: Messages that set up the watch over a job. They go over a program's own communicator, since
#: duplicating one waits for every rank; these tags a program is unlikely to have.
MEMBER, ADDRESS, READY = 32741, 32742, 32743
