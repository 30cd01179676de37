# type: ignore
"""Constants of the run, and the place of this package's files."""

from pathlib import Path

PLACE = Path(__file__).resolve().parent / "runs"
STEPS = 160
EVERY = 50
