"""The files in the folders of runs: read, compared, exported, watched. No MPI."""
