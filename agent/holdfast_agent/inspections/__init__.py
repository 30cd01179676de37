"""Looks at the node beside training (ByteRobust §4.1): checks that read real sources and never hold the agent up."""
