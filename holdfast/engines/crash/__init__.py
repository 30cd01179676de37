"""Diagnosis of a crash: from logs and exit codes of all ranks to one symptom with evidence. See docs/classify.md.

The path of a log: `scan` reads lines, `traceback` finds exceptions, `rule_matches` applies `rules_in_order`, `cascade`
finds the rank that failed first, `diagnose` decides, `words` guesses where no rule knows the end.
"""

from holdfast.engines.crash.diagnose import (
    diagnose,
    diagnose_end,
    hands_of_log,
    rule_of_exception,
    scan_end,
    scan_lines,
)
from holdfast.engines.crash.verdict import Diagnosis

__all__ = [
    "Diagnosis",
    "diagnose",
    "diagnose_end",
    "hands_of_log",
    "rule_of_exception",
    "scan_end",
    "scan_lines",
]
