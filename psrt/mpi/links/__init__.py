"""From one rank to another: shared memory on a host, messages between hosts."""
