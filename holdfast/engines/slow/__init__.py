"""Slowness of a running job: the rank, node or link that causes it, or no machine at all. Pure.

GREYHOUND §4 tracks and locates while a job trains; `engines.stragglers` reads recorded timings of operations.
"""
