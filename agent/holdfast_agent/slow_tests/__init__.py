"""The node's part in finding the cause of a slow job: profile its ranks, hold them, and test the hardware."""
