"""The source of the numbers of a job's steps."""

from __future__ import annotations

from typing import Literal

StepSource = Literal["", "script", "framework", "restored", "log", "optimizer"]
"""`script`: it reports its steps; `framework`: what trains counts them; `restored`: counted steps of the optimizer,
from the step that the script has restored; `log`: counted from 0, and numbered by the script's output; `optimizer`:
counted steps of the optimizer in one generation, from 0; "": not known."""
