"""The address of the nursery, which forks zygotes for the agents of one machine: known to agents and to its starter."""

NURSERY_VARIABLE = "HOLDFAST_NURSERY"
"""Path of the nursery's socket. Without it an agent starts its zygote itself, and `holdfast up` a nursery."""
