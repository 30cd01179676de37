"""The variable by which an agent finds the nursery: the process that forks zygotes for the agents of one machine."""

NURSERY_VARIABLE = "HOLDFAST_NURSERY"
"""Path of the nursery's socket. Without it an agent starts its zygote itself."""
