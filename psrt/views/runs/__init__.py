"""What runs left in their folders: read, compared, exported, watched. No MPI."""
