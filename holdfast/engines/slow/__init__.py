"""What makes a job slow that goes on: which rank, node or link, or no machine at all. Pure.

GREYHOUND §4 tracks and locates while a job trains; `what_if` reads recorded timings of operations.
"""
