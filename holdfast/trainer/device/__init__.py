"""Checkpoints of state on an accelerator: copied beside training, straight into memory that outlives the rank.

`copies.py` is the entry. `guards.py` and `copy_plan.py` decide, the other files act.
"""
