"""Diagnosis of a crash: from logs and exit codes of all ranks to one symptom with evidence. See docs/classify.md."""

from holdfast.engines.crash.diagnose import diagnose, diagnose_end, hands_of_log, rule_of_exception
from holdfast.engines.crash.verdict import CascadeRank, Diagnosis, EvidenceLine

__all__ = [
    "CascadeRank",
    "Diagnosis",
    "EvidenceLine",
    "diagnose",
    "diagnose_end",
    "hands_of_log",
    "rule_of_exception",
]
