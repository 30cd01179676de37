"""Notes that the script keeps steps in memory by a Checkpointer or a storage writer: no other save goes there then."""

from __future__ import annotations


class ScriptSteps:
    """`are_kept` once the script has made something that keeps them."""

    def __init__(self) -> None:
        self.are_kept = False


of_this_process = ScriptSteps()
