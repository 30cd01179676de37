"""Stop-time checks (ByteRobust §4.2): which tests are run, which nodes meet, and what the results say. Pure."""
