"""Inspections of the node beside training (ByteRobust §4.1): checks of real sources that never block the agent."""
