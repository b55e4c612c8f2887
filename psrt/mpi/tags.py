"""Tags of psrt's own messages: each kind has its own, so all may share a communicator."""

#: A message between a worker and a server's first shard on different hosts, and its payload. The
#: tags of the server's k-th further shard are ``SHARD_TAGS`` · k larger.
FRAME, DATA = 1, 2
#: A vector on its way to rank 0.
FETCH = 3
#: A report to rank 0.
REPORT = 4
#: The signature of a rank's call.
CALL = 5
#: The clock of a host.
CLOCK = 6
#: Texts between rank 0 and another rank at the end of a job.
STAR = 7
#: From here on the steps of schedules, which jobs with servers do not have.
FIRST_STEP = 16
SHARD_TAGS = 16
#: Messages that set up the watch over a job. They use the program's own communicator, since
#: duplicating it would wait for every rank; a program is unlikely to use these tags.
MEMBER, ADDRESS, READY = 32741, 32742, 32743
