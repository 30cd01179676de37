# type: ignore
"""Parts of the trainer."""
