"""Who holds up a job that stands still: from stacks, and from what the ranks did in their collectives. Pure.

ByteRobust §5.1 groups stacks, FT-HSDP §2.3 follows who waits for whom; `verdict` puts both together.
"""
