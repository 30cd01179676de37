# type: ignore
"""As the package of torchtitan is laid out."""
