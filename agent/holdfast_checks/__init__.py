"""Stop-time checks of a node, run as a generation of ranks of its own (ByteRobust §4.2). `python -m` runs them."""
