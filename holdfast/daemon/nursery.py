"""What an agent and the starter of the nursery know of it: the process that forks zygotes for agents of one machine."""

NURSERY_VARIABLE = "HOLDFAST_NURSERY"
"""Path of the nursery's socket. Without it an agent starts its zygote itself, and `holdfast up` a nursery."""
