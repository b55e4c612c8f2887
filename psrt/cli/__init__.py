"""The command line: one file per subcommand, each with a ``main(argv) -> int``.

Imports nothing, so that a subcommand pays only for what it uses: ``show`` and every ``--help``
run without MPI and without numpy.
"""
