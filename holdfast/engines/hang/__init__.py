"""Find the ranks that block a hanging job, from stacks and from the ranks' collectives. Pure.

`stacks` groups stacks (ByteRobust §5.1), `graph` follows the wait-for graph (FT-HSDP §2.3), `hang_verdict` joins them.
"""
