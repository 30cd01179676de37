"""Progress of a rank, noted in shared memory: written without a lock, and readable while the rank hangs."""
