"""What an agent and the starter of the nursery know of it: the process that forks zygotes for agents of one machine."""

NURSERY_VARIABLE = "HOLDFAST_NURSERY"
"""Path of the nursery's socket. Without it an agent starts its zygote itself, and `holdfast up` a nursery."""

ROOM = "x" * 8192
"""Padding behind the arguments and variables of a nursery, as the option --room and as `ROOM_VARIABLE`.

A forked zygote writes its own in their place, and they may be longer: a few paths. Without room it is declined.
"""
ROOM_VARIABLE = "HOLDFAST_NURSERY_ROOM"
