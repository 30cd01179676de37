"""Stop-time checks (ByteRobust §4.2): the tests of a run, the pairs of nodes, and the verdict on the results. Pure."""
